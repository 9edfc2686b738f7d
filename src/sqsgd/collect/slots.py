"""The slots of rounds, in a random order that is drawn again when slots of late devices are freed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sqsgd.collect import statements
from sqsgd.collect.database import Database
from sqsgd.collect.study import Study
from sqsgd.task import Task

OPENED, CLOSING, ENDED = "open", "closing", "ended"
"""A round takes reports, a round is being averaged, the study has ended."""


@dataclass(frozen=True, kw_only=True)
class Stage:
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
    found = database.read(
        "SELECT s.round, s.state, s.ending, s.deadline, s.seen, s.unscrubbed, r.bound "
        "FROM study s JOIN rounds r ON r.round = s.round"
    )
    round, state, ending, deadline, seen, unscrubbed, bound = found[0]
    return Stage(
        round=round, state=state, ending=bool(ending), deadline=deadline, seen=seen,
        unscrubbed=bool(unscrubbed), bound=bound,
    )  # fmt: skip


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
    draws = os.urandom(16 * slots).hex()
    database.write_many(
        statements.NEW,
        [(round, slot, draws[32 * slot : 32 * slot + 32]) for slot in range(slots)],
    )


def free_expired(database: Database, at: Stage, now: float) -> int:
    """Free the slots whose devices are late, and put all free slots in a new random order.

    The order must be new for all: those that were free before are there because others were drawn earlier, so
    that a slot with a place of its own would come before them. A late report still counts if it comes before
    the slot has another owner.
    """
    if not database.read(f"{statements.LATE} LIMIT 1", at.round, now):
        return 0
    with database.transaction(alone=True):
        late = database.read(statements.LATE, at.round, now)
        free = late + database.read(statements.WAITING, at.round) if late else []
        database.write_many(
            statements.FREED,
            [(os.urandom(16).hex(), at.round, slot) for (slot,) in sorted(free)],
        )
    return len(late)
