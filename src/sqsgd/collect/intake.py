"""Who gets a slot, and whose report fills it: many requests in one transaction."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqsgd.codec import MalformedReport
from sqsgd.collect import statements
from sqsgd.collect.database import Database
from sqsgd.collect.rejections import Rejection
from sqsgd.collect.slots import CLOSING, ENDED, OPENED, Stage, stage, task_of
from sqsgd.collect.study import OPEN, Study
from sqsgd.core import Scheme
from sqsgd.task import Tasks


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


Request = Join | Report | Probe
Answer = Granted | Accepted | Rejection
_UNKNOWN = "the round is over, the slot went to another device, or the ticket was never issued"
_CLOSED = Rejection(code="closed", reason="the study has ended")


def answer(
    database: Database, study: Study, requests: Sequence[Request], refused: Counter[str]
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
    with database.transaction():
        now, at = database.now(), stage(database)
        answers: dict[int, Answer] = {
            i: Accepted(round=at.round, again=True)
            for i, each in enumerate(requests)
            if isinstance(each, Probe)
        }
        joins = {i: each for i, each in enumerate(requests) if isinstance(each, Join)}
        reports = {i: each for i, each in enumerate(requests) if isinstance(each, Report)}
        if joins:
            answers |= _admit(database, study, joins, at, now)
        if reports:
            answers |= _accept(database, study, reports, at)
        counts = refused + Counter(each.code for each in answers.values() if isinstance(each, Rejection))
        if not joins and not reports:
            counts["none"] += 0  # a probe writes, to see whether that is possible
        database.write_many(
            statements.REFUSED,
            sorted(counts.items()),
        )
    return [answers[i] for i in range(len(requests))]


def _admit(
    database: Database, study: Study, joins: dict[int, Join], at: Stage, now: float
) -> dict[int, Answer]:
    """Slots for those who have one already, and for as many others as there are free slots."""
    answers: dict[int, Answer] = {}
    held = {
        row[0]: row[1:]
        for row in database.read_among(
            statements.OWNED + database.locking,
            [join.ticket for join in joins.values()],
        )
    }
    fresh: dict[str, list[int]] = {}
    for i, join in joins.items():
        if join.ticket in held:
            answers[i] = _held(database, study, at, now, *held[join.ticket])
        else:
            fresh.setdefault(join.ticket, []).append(i)
    if not fresh:
        return answers
    wait = _no_admission(study, at, now)
    if wait is not None:
        return answers | {i: wait for rows in fresh.values() for i in rows}
    wanted = _with_unused_invitations(database, study, joins, fresh, answers)
    wanted = _within_the_rate(database, study, wanted, fresh, answers, now)
    free = [
        slot
        for (slot,) in database.read(
            statements.FREE + database.taking,
            at.round,
            len(wanted),
        )
    ]
    given = dict(zip(wanted, free, strict=False))
    used = [joins[fresh[ticket][0]].invitation for ticket in given]
    database.write_many(statements.USED, sorted((number,) for number in used if number is not None))
    expires, owners = _end_of_ticket(study, now), {slot: ticket for ticket, slot in given.items()}
    database.write_many(
        statements.GIVEN,
        [(ticket, expires, at.round, slot) for slot, ticket in sorted(owners.items())],
    )
    full = Rejection(
        code="no-slot", reason=f"all slots of round {at.round} are taken", seconds=_patience(study)
    )
    for ticket in wanted:
        slot = given.get(ticket)
        granted = (
            full
            if slot is None
            else Granted(round=at.round, slot=slot, bound=at.bound, seconds=study.ticket_seconds)
        )
        answers |= dict.fromkeys(fresh[ticket], granted)
    return answers


def _held(
    database: Database,
    study: Study,
    at: Stage,
    now: float,
    round: int,
    slot: int,
    reported: bool,
    expires: float | None,
    renewed: int,
) -> Answer:
    """The answer to a device that asks again for the slot that it has, or had and nobody took since."""
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
        database.write(statements.RENEWED, expires, round, slot)
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


def _with_unused_invitations(
    database: Database,
    study: Study,
    joins: dict[int, Join],
    fresh: dict[str, list[int]],
    answers: dict[int, Answer],
) -> list[str]:
    """The new tickets whose invitation was not used; the others are answered."""
    if study.admission == OPEN:
        return list(fresh)
    numbers = {ticket: joins[rows[0]].invitation or "" for ticket, rows in fresh.items()}
    used = {
        number
        for (number,) in database.read_among(
            "SELECT number FROM invitations WHERE number {among}", list(numbers.values())
        )
    }
    wanted = []
    for ticket, number in numbers.items():
        if number in used:
            known = Rejection(code="invitation-used", reason="the invitation was used with another ticket")
            answers |= dict.fromkeys(fresh[ticket], known)
        else:
            used.add(number)
            wanted.append(ticket)
    return wanted


def _within_the_rate(
    database: Database,
    study: Study,
    wanted: list[str],
    fresh: dict[str, list[int]],
    answers: dict[int, Answer],
    now: float,
) -> list[str]:
    """In an open study, as many of the new tickets as this minute allows, over all workers."""
    if study.admission != OPEN or not wanted:
        return wanted
    minute = int(now // 60)
    database.write("DELETE FROM joins WHERE minute < ?", minute - 1)
    database.write(
        "INSERT INTO joins VALUES (?, ?) "
        "ON CONFLICT (minute) DO UPDATE SET count = joins.count + excluded.count",
        minute,
        len(wanted),
    )
    count = int(database.read("SELECT count FROM joins WHERE minute = ?", minute)[0][0])
    allowed = max(0, len(wanted) - max(0, count - study.joins_per_minute))
    much = Rejection(
        code="too-many",
        reason=f"{study.joins_per_minute} devices may join in a minute",
        seconds=60 - now % 60,
    )
    for ticket in wanted[allowed:]:
        answers |= dict.fromkeys(fresh[ticket], much)
    return wanted[:allowed]


def _accept(database: Database, study: Study, reports: dict[int, Report], at: Stage) -> dict[int, Answer]:
    """Store the reports that fit their slots."""
    held = {
        ticket: (round, slot, kept)
        for ticket, round, slot, kept in database.read_among(
            statements.FILLED + database.locking,
            [report.ticket for report in reports.values()],
        )
    }
    answers: dict[int, Answer] = {}
    new: dict[int, tuple[int, bytes]] = {}  # slot: the request and its message
    copies: list[tuple[int, int]] = []  # a request, and the slot that it wants to fill a second time
    for i, report in reports.items():
        round, slot, kept = held.get(report.ticket, (-1, -1, None))
        if kept is not None and bytes(kept) == report.message:
            answers[i] = Accepted(round=round, again=True)
        elif kept is not None:
            answers[i] = Rejection(code="slot-taken", reason="another report was made with this ticket")
        elif at.state == ENDED:
            answers[i] = _CLOSED
        elif slot < 0:
            answers[i] = Rejection(code="unknown-ticket", reason=_UNKNOWN)
        elif round != at.round or at.state != OPENED:
            answers[i] = Rejection(code="round-over", reason=f"round {round} is over")
        elif slot in new:
            copies.append((i, slot))
        else:
            new[slot] = (i, report.message)
    wrong = _malformed(study, at, {slot: message for slot, (_, message) in new.items()})
    for slot, (i, _) in new.items():
        answers[i] = wrong.get(slot) or Accepted(round=at.round, again=False)
    for i, slot in copies:
        two = Rejection(code="busy", reason="two different reports came with one ticket at the same time")
        answers[i] = answers[new[slot][0]] if reports[i].message == new[slot][1] else two
    database.write_many(
        statements.KEPT,
        [(new[slot][1], at.round, slot) for slot in sorted(new) if slot not in wrong],
    )
    return answers


def _malformed(study: Study, at: Stage, messages: dict[int, bytes]) -> dict[int, Rejection]:
    """What is wrong with which slot's message."""
    scheme, size = study.made_scheme, study.made_scheme.bits // 8
    if not messages or (
        all(len(message) == size for message in messages.values()) and _all_good(scheme, study, at, messages)
    ):
        return {}
    wrong = {}
    for slot, message in messages.items():
        try:
            scheme.open(message, task_of(study, at, slot))
        except MalformedReport as error:
            wrong[slot] = Rejection(code="malformed", reason=str(error))
    return wrong


def _all_good(scheme: Scheme, study: Study, at: Stage, messages: dict[int, bytes]) -> bool:
    rows = np.frombuffer(b"".join(messages.values()), np.uint8).reshape(len(messages), -1)
    try:
        scheme.open_many(rows, Tasks(task_of(study, at, 0), np.fromiter(messages, np.int64)))
    except MalformedReport:
        return False
    return True


def _patience(study: Study) -> float:
    """Seconds after which a device that found no slot asks again; random, so that not all come at once."""
    return min(60.0, study.ticket_seconds / 10) * (0.5 + os.urandom(1)[0] / 256)
