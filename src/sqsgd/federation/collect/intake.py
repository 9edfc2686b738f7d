"""Who gets a slot, whose report fills it, and why a request is refused; many requests in one transaction."""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sqsgd.core.codec import MalformedReport
from sqsgd.core.task import Task, Tasks
from sqsgd.federation.collect.database import Database
from sqsgd.federation.collect.study import OPEN, Study

_KINDS: dict[str, tuple[int, str]] = {
    # What the device should do ends each answer; it never asks for a second report of the same user.
    "bad-request": (400, "send what /openapi.json describes"),
    "malformed": (
        400,
        "do not encode again, which would be a second report of the same data; check the encoder",
    ),
    "invitation-invalid": (403, "ask the operator for an invitation to this study"),
    "invitation-used": (
        409,
        "repeat the request with the ticket of the first attempt, or ask for an invitation",
    ),
    "wrong-study": (404, "read /study, and ask its owner before taking part in another study"),
    "not-found": (404, "see /openapi.json"),
    "unknown-ticket": (404, "do not report again: the slot went to another device, or was never yours"),
    "slot-taken": (409, "nothing: the report that came first counts"),
    "round-over": (410, "nothing: this report comes too late, and a second one is not wanted"),
    "closed": (410, "nothing: the study has ended"),
    "wrong-method": (405, "send what /openapi.json describes"),
    "too-slow": (408, "repeat the same request over a better connection"),
    "too-long": (413, "send what /openapi.json describes"),
    "too-many": (429, "repeat the same request later"),
    "internal": (500, "repeat the same request later"),
    "no-slot": (503, "repeat the same request later"),
    "busy": (503, "repeat the same request later"),
    "storage": (503, "repeat the same request later; nothing was counted that was not confirmed"),
}
CODES = tuple(_KINDS)


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """An answer that is not what the device hoped for."""

    code: str
    reason: str
    seconds: float = 0.0
    """When to try again, if that helps."""

    @property
    def status(self) -> int:
        """The status of the HTTP response."""
        return _KINDS[self.code][0]

    def to_dict(self) -> dict[str, Any]:
        """The body of the response."""
        return {"error": self.code, "reason": self.reason, "what_to_do": _KINDS[self.code][1]}

    @property
    def headers(self) -> dict[str, str]:
        """``Retry-After``, where it helps."""
        return {"retry-after": str(max(1, round(self.seconds)))} if self.status in (429, 503) else {}


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
    seen: float
    unscrubbed: bool
    """What was deleted at the end of a round is still on the disk."""
    bound: float


def stage(database: Database) -> Stage:
    """Where the study is."""
    (row,) = database.read(
        "SELECT s.round, s.state, s.ending, s.deadline, s.seen, s.unscrubbed, r.bound "
        "FROM study s JOIN rounds r ON r.round = s.round"
    )
    return Stage(*row)


def clock(study: Study, seen: float, now: float) -> str:
    """What is wrong with the clock that the workers share; empty if nothing is known."""
    if now < seen - 5:
        return f"the clock went back by {seen - now:,.0f} s: rounds and tickets end later by as much"
    if jumped(study, seen, now):
        return (
            f"no worker ran, or the clock went forward, for {now - seen:,.0f} s: no round or ticket ends "
            "until the clock is set right, or confirmed with: sqsgd collect serve STUDY --clock-is-right"
        )
    return ""


def jumped(study: Study, seen: float, now: float) -> bool:
    """Whether so much time passed unseen that it may never have: all tickets would expire at once."""
    return now > seen + max(study.round_seconds, 3600.0)


def task_of(study: Study, at: Stage, slot: int) -> Task:
    """What whoever fills the slot is asked."""
    return Task(round=at.round, client=slot, seed=study.seed, dim=study.dim, bound=at.bound)


def new_round(database: Database, round: int, slots: int) -> None:
    """Free slots in a random order of the operating system's: the next device gets the first of them."""
    rows = [(round, slot, os.urandom(16).hex()) for slot in range(slots)]
    database.write_many("INSERT INTO slots (round, slot, draw) VALUES (?, ?, ?)", rows)


def free_expired(database: Database, at: Stage, now: float) -> int:
    """Free the slots whose devices are late, and put all free slots in a new random order.

    The order must be new for all: those that were free before are there because others were drawn earlier, so
    that a slot with a place of its own would come before them. A late report still counts if it comes before
    the slot has another owner.
    """
    if not database.read(f"{_LATE} LIMIT 1", at.round, now):
        return 0
    with database.transaction(alone=True):
        late = database.read(_LATE, at.round, now)
        free = late + database.read(WAITING, at.round) if late else []
        rows = [(os.urandom(16).hex(), at.round, slot) for (slot,) in sorted(free)]
        database.write_many("UPDATE slots SET draw = ?, expires = NULL WHERE round = ? AND slot = ?", rows)
    return len(late)


@dataclass(frozen=True, kw_only=True)
class Join:
    """A device asks for a slot. ``ticket``: the digest of a secret of its own."""

    ticket: str
    invitation: str | None = None
    """The number of a valid invitation."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A device fills its slot."""

    ticket: str
    message: bytes


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A transaction for its own sake: is the database there, and is there room on the disk?"""


@dataclass(frozen=True, kw_only=True)
class Granted:
    """A slot, and how long it is the device's."""

    round: int
    slot: int
    bound: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The report counts. ``again``: it did before."""

    round: int
    again: bool


Asked = Join | Report | Probe
Answer = Granted | Accepted | Rejection
_CLOSED = Rejection(code="closed", reason="the study has ended")


def answer(
    database: Database, study: Study, requests: Sequence[Asked], refused: Counter[str]
) -> list[Answer]:
    """The answers to many requests, in their order, after one transaction that is on the disk.

    ``refused`` are requests that were rejected since the last transaction; they are counted with it.

    Guarantees
    ----------
    * A ticket has one slot and a slot one report, however often and wherever a request is repeated:
      tests/collect/test_intake.py::test_a_request_repeated_has_the_same_answer,
      tests/collect/test_killed_workers.py::test_nothing_is_lost_and_nothing_counts_twice.
    * No row of the database links an invitation to a slot, and after the end of a round no order or version
      of rows does: tests/collect/test_intake.py::test_nothing_links_an_invitation_to_a_slot,
      tests/collect/test_stepping.py::test_what_is_left_of_a_round_is_in_the_order_of_keys.
    * Every free slot is equally likely: tests/collect/test_intake.py::test_slots_are_drawn_uniformly,
      ::test_a_slot_that_was_given_up_is_as_likely_as_the_others.
    """
    joins: dict[str, str | None] = {}
    reports: dict[tuple[str, bytes], None] = {}  # a set in the order of arrival
    for each in requests:
        if isinstance(each, Join):
            joins.setdefault(each.ticket, each.invitation)
        elif isinstance(each, Report):
            reports[each.ticket, each.message] = None
    with database.transaction():
        now, at = database.now(), stage(database)
        admitted = _admit(database, study, joins, at, now) if joins else {}
        accepted = _accept(database, study, list(reports), at) if reports else {}
        answers: list[Answer] = [
            admitted[each.ticket] if isinstance(each, Join)
            else accepted[each.ticket, each.message] if isinstance(each, Report)
            else Accepted(round=at.round, again=True)
            for each in requests
        ]  # fmt: skip
        counts = refused + Counter(given.code for given in answers if isinstance(given, Rejection))
        if not joins and not reports:
            counts["none"] += 0  # a probe writes, to see whether that is possible
        database.write_many(
            "INSERT INTO refusals VALUES (?, ?) "
            "ON CONFLICT (code) DO UPDATE SET count = refusals.count + excluded.count",
            sorted(counts.items()),
        )
    return answers


def _admit(
    database: Database, study: Study, joins: dict[str, str | None], at: Stage, now: float
) -> dict[str, Answer]:
    """Per ticket: the slot that it has already, or a new one as long as there are free slots."""
    held = database.read_among(
        "SELECT ticket, round, slot, report IS NOT NULL, expires, renewed FROM slots "
        "WHERE ticket {among}{locking}",
        joins,
    )
    answers = {ticket: _held(database, study, at, now, *row) for ticket, *row in held}
    wanted = [ticket for ticket in joins if ticket not in answers]
    if not wanted:
        return answers
    if (wait := _no_admission(study, at, now)) is not None:
        return answers | dict.fromkeys(wanted, wait)
    limit = _limit_rate if study.admission == OPEN else _check_invitations
    answers |= limit(database, study, {ticket: joins[ticket] for ticket in wanted}, now)
    wanted = [ticket for ticket in wanted if ticket not in answers]
    free = database.read(FREE + database.taking, at.round, len(wanted))
    given = {ticket: slot for ticket, (slot,) in zip(wanted, free, strict=False)}
    if study.admission != OPEN:
        database.write_many(
            "INSERT INTO invitations VALUES (?)", sorted([(joins[ticket] or "",) for ticket in given])
        )
    expires = _end_of_ticket(study, now)
    database.write_many(
        "UPDATE slots SET draw = NULL, ticket = ?, expires = ?, renewed = 0 WHERE round = ? AND slot = ?",
        [(ticket, expires, at.round, slot) for slot, ticket in sorted((s, t) for t, s in given.items())],
    )
    for ticket, slot in given.items():
        answers[ticket] = Granted(round=at.round, slot=slot, bound=at.bound, seconds=study.ticket_seconds)
    patience = min(60.0, study.ticket_seconds / 10) * (0.5 + os.urandom(1)[0] / 256)  # not all at once
    full = Rejection(code="no-slot", reason=f"all slots of round {at.round} are taken", seconds=patience)
    return dict.fromkeys(wanted, full) | answers


def _held(database: Database, study: Study, at: Stage, now: float, *row: Any) -> Answer:
    """The answer to a device that asks again for the slot that it has, or had and nobody took since."""
    round, slot, reported, expires, renewed = row
    if at.state == ENDED:
        return _CLOSED
    if round != at.round or at.state != OPENED:
        return Rejection(code="round-over", reason=f"round {round} is over")
    if reported:
        return Rejection(code="slot-taken", reason="a report was made with this ticket already")
    if expires is None or expires < now:
        if renewed:
            return Rejection(code="unknown-ticket", reason="the ticket was renewed once, and expired again")
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
    """Why nobody can join at the moment."""
    if at.state == ENDED:
        return _CLOSED
    if at.state == CLOSING:
        return Rejection(code="no-slot", reason=f"round {at.round} is being averaged", seconds=1.0)
    left = at.deadline - now
    if left < study.ticket_seconds:
        return Rejection(
            code="no-slot", reason=f"round {at.round} takes no more devices", seconds=min(left + 1, 3600.0)
        )
    return None


def _check_invitations(
    database: Database, _study: Study, joins: dict[str, str | None], _now: float
) -> dict[str, Answer]:
    """Refuse the tickets whose invitation was used."""
    rows = database.read_among(
        "SELECT number FROM invitations WHERE number {among}", [number or "" for number in joins.values()]
    )
    used, answers = {number for (number,) in rows}, dict[str, Answer]()
    for ticket, number in joins.items():
        if number in used:
            known = Rejection(code="invitation-used", reason="the invitation was used with another ticket")
            answers[ticket] = known
        used.add(number)
    return answers


def _limit_rate(
    database: Database, study: Study, joins: dict[str, str | None], now: float
) -> dict[str, Answer]:
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
    return dict.fromkeys(
        list(joins)[allowed:], Rejection(code="too-many", reason=reason, seconds=60 - now % 60)
    )


def _accept(
    database: Database, study: Study, reports: list[tuple[str, bytes]], at: Stage
) -> dict[tuple[str, bytes], Answer]:
    """Per ticket and message, which all differ: store the reports that fit their slots."""
    rows = database.read_among(
        "SELECT ticket, round, slot, report FROM slots WHERE ticket {among}{locking}",
        [ticket for ticket, _ in reports],
    )
    held = {ticket: row for ticket, *row in rows}
    answers: dict[tuple[str, bytes], Answer] = {}
    new: dict[int, tuple[str, bytes]] = {}  # by slot
    for ticket, message in reports:
        round, slot, kept = held.get(ticket, (-1, -1, None))
        given: Answer
        if kept is not None and bytes(kept) == message:
            given = Accepted(round=round, again=True)
        elif kept is not None:
            given = Rejection(code="slot-taken", reason="another report was made with this ticket")
        elif at.state == ENDED:
            given = _CLOSED
        elif slot < 0:
            unknown = "the round is over, the slot went to another device, or the ticket was never issued"
            given = Rejection(code="unknown-ticket", reason=unknown)
        elif round != at.round or at.state != OPENED:
            given = Rejection(code="round-over", reason=f"round {round} is over")
        elif slot in new:
            two = "two different reports came with one ticket at the same time"
            given = Rejection(code="busy", reason=two)
        else:
            new[slot] = (ticket, message)
            given = Accepted(round=at.round, again=False)
        answers[ticket, message] = given
    for slot, wrong in _malformed(study, at, {slot: message for slot, (_, message) in new.items()}).items():
        answers[new.pop(slot)] = wrong
    database.write_many(
        "UPDATE slots SET report = ?, draw = NULL, expires = NULL "
        "WHERE round = ? AND slot = ? AND report IS NULL",
        [(message, at.round, slot) for slot, (_, message) in sorted(new.items())],
    )
    return answers


def _malformed(study: Study, at: Stage, messages: dict[int, bytes]) -> dict[int, Rejection]:
    """What is wrong with which slot's message."""
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
            wrong[slot] = Rejection(code="malformed", reason=str(error))
    return wrong
