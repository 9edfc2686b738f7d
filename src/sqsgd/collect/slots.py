"""The slots of rounds: drawn at random when a round begins, freed when a device is late."""

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
    bound: float


def stage(database: Database) -> Stage:
    """Where the study is."""
    found = database.read(
        "SELECT s.round, s.state, s.ending, s.deadline, s.seen, r.bound "
        "FROM study s JOIN rounds r ON r.round = s.round"
    )
    round, state, ending, deadline, seen, bound = found[0]
    return Stage(round=round, state=state, ending=bool(ending), deadline=deadline, seen=seen, bound=bound)


def clock(seen: float, now: float) -> str:
    """What is wrong with the clock that the workers share; empty if nothing is known."""
    if now < seen - 5:
        return f"the clock went back by {seen - now:,.0f} s: rounds and tickets end later by as much"
    return ""


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
    """Free the slots whose devices are late, each at a new random place in the order.

    A late report still counts if it comes before the slot has another owner.
    """
    if not database.read(f"{statements.LATE} LIMIT 1", at.round, now):
        return 0
    with database.transaction():
        late = database.read(statements.LATE + database.taking, at.round, now)
        database.write_many(
            statements.FREED,
            [(os.urandom(16).hex(), at.round, slot) for (slot,) in sorted(late)],
        )
    return len(late)
