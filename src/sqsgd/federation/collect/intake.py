"""Slots, the reports that fill them, and reasons for refusals; many requests in one transaction."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sqsgd.core.codec import MalformedReport
from sqsgd.core.task import Task, Tasks
from sqsgd.federation.collect.database import Database
from sqsgd.federation.collect.study import OPEN, Study

CODES: dict[str, tuple[int, str]] = {
    # Status, and what the device should do, which is never to make a second report of the same user.
    "bad-request": (400, "send what docs/collect.md describes"),
    "malformed": (400, "do not encode again, which would be a second report; check the encoder"),
    "invitation-invalid": (403, "ask the operator for an invitation to this study"),
    "invitation-used": (409, "repeat the request with its first ticket, or ask for an invitation"),
    "wrong-study": (404, "read /study, and ask its owner before taking part in another study"),
    "not-found": (404, "send what docs/collect.md describes"),
    "unknown-ticket": (404, "do not report again: the slot went to another device, or was never yours"),
    "slot-taken": (409, "nothing: the report that came first counts"),
    "round-over": (410, "nothing: this report comes too late, and a second one is not wanted"),
    "closed": (410, "nothing: the study has ended"),
    "wrong-method": (405, "send what docs/collect.md describes"),
    "too-slow": (408, "repeat the same request over a better connection"),
    "too-long": (413, "send what docs/collect.md describes"),
    "too-many": (429, "repeat the same request later"),
    "internal": (500, "repeat the same request later"),
    "no-slot": (503, "repeat the same request later"),
    "busy": (503, "repeat the same request later"),
    "storage": (503, "repeat the same request later; nothing was counted that was not confirmed"),
}


class Rejection(Exception):
    """A refusal; ``seconds``: when to repeat the request, if that helps."""

    def __init__(self, code: str, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.code, self.reason, self.seconds = code, reason, seconds
        self.status, self.what_to_do = CODES[code]


FREE = "SELECT slot FROM slots WHERE round = ? AND report IS NULL AND draw IS NOT NULL ORDER BY draw LIMIT ?"
WAITING = "SELECT slot FROM slots WHERE round = ? AND report IS NULL AND draw IS NOT NULL"
_LATE = "SELECT slot FROM slots WHERE round = ? AND report IS NULL AND draw IS NULL AND expires < ?"

OPENED, CLOSING, ENDED = "open", "closing", "ended"
"""A round takes reports, a round is being averaged, the study has ended."""


class Stage(NamedTuple):
    """The row of the study: where it is, and until when."""

    round: int
    state: str
    ending: bool
    deadline: float
    unscrubbed: bool  # what was deleted at the end of a round is still on the disk
    bound: float


def stage(database: Database) -> Stage:
    (row,) = database.read(
        "SELECT s.round, s.state, s.ending, s.deadline, s.unscrubbed, r.bound "
        "FROM study s JOIN rounds r ON r.round = s.round"
    )
    return Stage(*row)


def task_of(study: Study, at: Stage, slot: int) -> Task:
    return Task(round=at.round, client=slot, seed=study.seed, dim=study.dim, bound=at.bound)


def new_round(database: Database, round: int, slots: int) -> None:
    """Free slots in a random order of the operating system's: the next device gets the first of them."""
    rows = [(round, slot, os.urandom(16).hex()) for slot in range(slots)]
    database.write_many("INSERT INTO slots (round, slot, draw) VALUES (?, ?, ?)", rows)


def free_expired(database: Database, at: Stage, now: float) -> int:
    """Free the slots whose devices are late, and put all free slots in a new random order.

    New for all: those that were free before are the last of their order. A late report still counts if it
    comes before the slot has another owner.
    """
    if not database.read(f"{_LATE} LIMIT 1", at.round, now):
        return 0
    with database.transaction(alone=True):
        late = database.read(_LATE, at.round, now)
        free = late + database.read(WAITING, at.round) if late else []
        rows = [(os.urandom(16).hex(), at.round, slot) for (slot,) in sorted(free)]
        database.write_many("UPDATE slots SET draw = ?, expires = NULL WHERE round = ? AND slot = ?", rows)
    return len(late)


class Join(NamedTuple):
    """A device asks for a slot."""

    ticket: str  # the digest of the device's secret
    invitation: str = ""  # the number of a valid one


class Report(NamedTuple):
    """A device fills its slot."""

    ticket: str
    message: bytes


class Probe(NamedTuple):
    """A transaction without a request: is the database there, and is there room on the disk?"""


class Granted(NamedTuple):
    """A slot, and how long it is the device's."""

    round: int
    slot: int
    bound: float
    seconds: float


class Accepted(NamedTuple):
    """The report counts. ``again``: it did before."""

    round: int
    again: bool


Asked = Join | Report | Probe
Answer = Granted | Accepted | Rejection
_CLOSED = Rejection("closed", "the study has ended")


def answer(
    database: Database, study: Study, requests: Sequence[Asked], refused: Counter[str]
) -> list[Answer]:
    """The answers to many requests, in their order, after one transaction that is on the disk.

    ``refused`` counts the requests that were rejected since the last transaction, by code.

    Guarantees
    ----------
    * A ticket has one slot and a slot one report, however often a request is repeated:
      tests/collect/test_intake.py::test_a_request_repeated_has_the_same_answer,
      tests/collect/test_killed_workers.py::test_nothing_is_lost_and_nothing_counts_twice.
    * No row of the database links an invitation to a slot, and after the end of a round no order or version
      of rows does: tests/collect/test_intake.py::test_nothing_links_an_invitation_to_a_slot,
      tests/collect/test_stepping.py::test_what_is_left_of_a_round_is_in_the_order_of_keys.
    * Every free slot is equally likely: tests/collect/test_intake.py::test_slots_are_drawn_uniformly,
      ::test_a_slot_that_was_given_up_is_as_likely_as_the_others.
    """
    joins: dict[str, str] = {}
    for each in requests:
        if isinstance(each, Join):
            joins.setdefault(*each)
    reports = list(dict.fromkeys(each for each in requests if isinstance(each, Report)))
    with database.transaction():
        now, at = database.now(), stage(database)
        admitted = _admit(database, study, joins, at, now) if joins else {}
        accepted = _accept(database, study, reports, at) if reports else {}
        if refused or not (joins or reports):  # a probe writes, to see whether it can
            database.write_many(
                "INSERT INTO refusals VALUES (?, ?) "
                "ON CONFLICT (code) DO UPDATE SET count = refusals.count + excluded.count",
                sorted({"none": 0, **refused}.items()),
            )
    return [
        admitted[each.ticket] if isinstance(each, Join)
        else accepted[each] if isinstance(each, Report)
        else Accepted(round=at.round, again=True)
        for each in requests
    ]  # fmt: skip


def _admit(
    database: Database, study: Study, joins: dict[str, str], at: Stage, now: float
) -> dict[str, Answer]:
    """Per ticket: the slot that it has already, or a new one as long as there are free slots."""
    held = database.read_among(
        "SELECT ticket, round, slot, report IS NOT NULL, expires, renewed FROM slots "
        "WHERE ticket {among}{locking}",
        joins,
    )
    answers = {ticket: _held(database, study, at, now, *row) for ticket, *row in held}
    if not (wanted := {ticket: number for ticket, number in joins.items() if ticket not in answers}):
        return answers
    if (wait := _no_admission(study, at, now)) is not None:
        return answers | dict.fromkeys(wanted, wait)
    is_open = study.admission == OPEN
    answers |= _limit(database, study, wanted, now) if is_open else _check_invitations(database, wanted)
    admitted = [ticket for ticket in wanted if ticket not in answers]
    free = database.read(FREE + database.taking, at.round, len(admitted))
    given = {ticket: slot for ticket, (slot,) in zip(admitted, free, strict=False)}
    if not is_open:
        database.write_many("INSERT INTO invitations VALUES (?)", sorted((wanted[each],) for each in given))
    expires = _end_of_ticket(study, now)
    database.write_many(
        "UPDATE slots SET draw = NULL, ticket = ?, expires = ?, renewed = 0 WHERE round = ? AND slot = ?",
        [(ticket, expires, at.round, slot) for slot, ticket in sorted((s, t) for t, s in given.items())],
    )
    for ticket, slot in given.items():
        answers[ticket] = Granted(round=at.round, slot=slot, bound=at.bound, seconds=study.ticket_seconds)
    patience = min(60.0, study.ticket_seconds / 10) * (0.5 + os.urandom(1)[0] / 256)  # not all at once
    full = Rejection("no-slot", f"all slots of round {at.round} are taken", patience)
    return dict.fromkeys(admitted, full) | answers


def _held(database: Database, study: Study, at: Stage, now: float, *row: Any) -> Answer:
    """The answer to a device that asks again for the slot that it has, or had and nobody took since."""
    round, slot, reported, expires, renewed = row
    if at.state == ENDED:
        return _CLOSED
    if round != at.round or at.state != OPENED:
        return Rejection("round-over", f"round {round} is over")
    if reported:
        return Rejection("slot-taken", "a report was made with this ticket already")
    if expires is None or expires < now:
        if renewed:
            return Rejection("unknown-ticket", "the ticket was renewed once, and expired again")
        if (wait := _no_admission(study, at, now)) is not None:
            return wait
        expires = _end_of_ticket(study, now)
        database.write(
            "UPDATE slots SET draw = NULL, expires = ?, renewed = 1 WHERE round = ? AND slot = ?",
            expires, round, slot,
        )  # fmt: skip
    seconds = min(expires - now, at.deadline - now, study.ticket_seconds)
    return Granted(round=round, slot=slot, bound=at.bound, seconds=max(0.0, seconds))


def _end_of_ticket(study: Study, now: float) -> float:
    """When a slot may be given to another: a whole minute, so that it does not tell when its device came."""
    grain = min(60.0, study.ticket_seconds)
    return math.ceil((now + study.ticket_seconds) / grain) * grain


def _no_admission(study: Study, at: Stage, now: float) -> Rejection | None:
    if at.state == ENDED:
        return _CLOSED
    if at.state == CLOSING:
        return Rejection("no-slot", f"round {at.round} is being averaged", 1.0)
    left = at.deadline - now
    if left < study.ticket_seconds:
        return Rejection("no-slot", f"round {at.round} takes no more devices", min(left + 1, 3600.0))
    return None


def _check_invitations(database: Database, joins: dict[str, str]) -> dict[str, Answer]:
    rows = database.read_among("SELECT number FROM invitations WHERE number {among}", joins.values())
    used, answers = {number for (number,) in rows}, dict[str, Answer]()
    for ticket, number in joins.items():
        if number in used:
            answers[ticket] = Rejection("invitation-used", "the invitation was used with another ticket")
        used.add(number)
    return answers


def _limit(database: Database, study: Study, joins: dict[str, str], now: float) -> dict[str, Answer]:
    """In an open study, refuse the tickets beyond what this minute allows, over all workers."""
    minute = int(now // 60)
    database.write("DELETE FROM joins WHERE minute < ?", minute - 1)
    database.write(
        "INSERT INTO joins VALUES (?, ?) "
        "ON CONFLICT (minute) DO UPDATE SET count = joins.count + excluded.count",
        minute, len(joins),
    )  # fmt: skip
    (count,) = database.read("SELECT count FROM joins WHERE minute = ?", minute)[0]
    allowed = max(0, len(joins) - max(0, count - study.joins_per_minute))
    reason = f"{study.joins_per_minute} devices may join in a minute"
    return dict.fromkeys(list(joins)[allowed:], Rejection("too-many", reason, 60 - now % 60))


def _accept(database: Database, study: Study, reports: list[Report], at: Stage) -> dict[Report, Answer]:
    rows = database.read_among(
        "SELECT ticket, round, slot, report FROM slots WHERE ticket {among}{locking}",
        [report.ticket for report in reports],
    )
    held = {ticket: row for ticket, *row in rows}
    answers: dict[Report, Answer] = {}
    new: dict[int, Report] = {}  # by slot
    for report in reports:
        round, slot, kept = held.get(report.ticket, (-1, -1, None))
        if kept is not None and bytes(kept) == report.message:
            answers[report] = Accepted(round=round, again=True)
        elif kept is not None:
            answers[report] = Rejection("slot-taken", "another report was made with this ticket")
        elif at.state == ENDED:
            answers[report] = _CLOSED
        elif slot < 0:
            unknown = "the round is over, the slot went to another device, or the ticket was never issued"
            answers[report] = Rejection("unknown-ticket", unknown)
        elif round != at.round or at.state != OPENED:
            answers[report] = Rejection("round-over", f"round {round} is over")
        elif slot in new:
            answers[report] = Rejection("busy", "two different reports came with one ticket at the same time")
        else:
            new[slot], answers[report] = report, Accepted(round=at.round, again=False)
    for slot, wrong in _malformed(study, at, {slot: each.message for slot, each in new.items()}).items():
        answers[new.pop(slot)] = wrong
    database.write_many(
        "UPDATE slots SET report = ?, draw = NULL, expires = NULL "
        "WHERE round = ? AND slot = ? AND report IS NULL",
        [(report.message, at.round, slot) for slot, report in sorted(new.items())],
    )
    return answers


def _malformed(study: Study, at: Stage, messages: dict[int, bytes]) -> dict[int, Rejection]:
    scheme, wrong = study.made_scheme, dict[int, Rejection]()
    if {len(message) for message in messages.values()} == {scheme.bits // 8}:
        rows = np.frombuffer(b"".join(messages.values()), np.uint8).reshape(len(messages), -1)
        with contextlib.suppress(MalformedReport):  # all at once is quicker, and nearly always enough
            scheme.open_many(rows, Tasks(task_of(study, at, 0), np.fromiter(messages, np.int64)))
            return wrong
    for slot, message in messages.items():
        try:
            scheme.open(message, task_of(study, at, slot))
        except MalformedReport as error:
            wrong[slot] = Rejection("malformed", str(error))
    return wrong
