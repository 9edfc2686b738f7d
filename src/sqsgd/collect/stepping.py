"""The end of a round: its reports are averaged in the order of their slots, and the model takes a step."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from sqsgd.checks import Vector
from sqsgd.codec import Bytes
from sqsgd.collect import statements
from sqsgd.collect.database import Database, DatabaseFailed
from sqsgd.collect.slots import (
    CLOSING,
    ENDED,
    OPENED,
    Stage,
    clock,
    free_expired,
    jumped,
    new_round,
    stage,
    task_of,
)  # fmt: skip
from sqsgd.collect.study import Study
from sqsgd.core import Indices
from sqsgd.task import Tasks
from sqsgd.training import State, initial_state, server_step

_LOG = logging.getLogger("sqsgd.collect")
_warned: dict[str, float] = {}
"""When this process last complained about what."""
_AT_ONCE = 4096  # reports read at a time
_COUNT = "SELECT count(*) FROM slots WHERE round = ? AND report IS NOT NULL"
_CLOSE = "UPDATE study SET state = ? WHERE round = ? AND state = ?"


def begin(database: Database, study: Study, weights: Vector, names: str) -> None:
    """Round 0 of a new study. ``names``: JSON about the arrays that the weights are."""
    known = {**dataclasses.asdict(study), "fingerprint": study.made_scheme.fingerprint}
    settings = json.dumps(known, sort_keys=True)
    now, state = database.now(), initial_state(weights, study.settings)
    with database.transaction(alone=True):
        database.write(
            "INSERT INTO study VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            study.id, settings, names, now, 0, OPENED, 0, now + study.round_seconds, now, 0,
        )  # fmt: skip
        _write_state(database, state, now)
        new_round(database, 0, study.slots)


def check_study(database: Database, study: Study) -> None:
    """Refuse a database of another study, and a clock that cannot be right; ValueError says why."""
    found = database.read("SELECT id, created, settings FROM study")
    if len(found) != 1 or found[0][0] != study.id:
        other = found[0][0] if found else "none"
        raise ValueError(
            f"the database holds study {other}, but study.toml describes {study.id}: restore the file that "
            "the study was created with, or name its own database"
        )
    if json.loads(found[0][2])["fingerprint"] != study.made_scheme.fingerprint:
        raise ValueError(
            "this version of sqsgd reads reports otherwise than the one that created the study: use that"
        )
    ago = found[0][1] - database.now()
    if ago > 60:
        raise ValueError(
            f"the clock is wrong: the study was created {ago:,.0f} s in the future; set the clock"
        )


def tick(database: Database, study: Study) -> bool:
    """What has to be done by now: free late slots, end a round, take a step. True if a step was taken.

    Guarantees
    ----------
    * Whoever is killed in between, and however many do this at once, each round is stepped once, with
      exactly its accepted reports: tests/collect/test_stepping.py::test_two_workers_step_once,
      tests/collect/test_killed_workers.py::test_nothing_is_lost_and_nothing_counts_twice.
    """
    at, now = stage(database), database.now()
    if at.unscrubbed:
        scrub(database)
    if not _clock_is_right(database, study, at, now):
        return False
    if at.state == OPENED:
        late = free_expired(database, at, now)
        if late:
            _LOG.info("round %d: %d slots are free again, their devices did not report", at.round, late)
        if not _over(database, study, at, now):
            return False
        _close_round(database, at)
        at = stage(database)
    if at.state != CLOSING:
        return False
    with database.stepping() as alone:
        return alone and step(database, study, stage(database))


def _clock_is_right(database: Database, study: Study, at: Stage, now: float) -> bool:
    """Whether time passed as it should; one that went back only makes rounds longer."""
    if trouble := clock(study, at.seen, now):
        _warn("clock", trouble)
    elif now > at.seen + 1:
        database.write("UPDATE study SET seen = ? WHERE seen < ?", now, now)
    return not jumped(study, at.seen, now)


def _warn(about: str, text: str) -> None:
    """Once a minute, however often it is tried."""
    if time.monotonic() > _warned.get(about, -math.inf) + 60:
        _warned[about] = time.monotonic()
        _LOG.warning("%s", text)


def confirm_clock(database: Database) -> None:
    """The operator says that the clock is right, however long no worker ran."""
    database.write("UPDATE study SET seen = ?", database.now())


def _over(database: Database, study: Study, at: Stage, now: float) -> bool:
    """Whether the round is full, or its time is over and it has enough reports."""
    if not database.read("SELECT 1 FROM slots WHERE round = ? AND report IS NULL LIMIT 1", at.round):
        return True
    if now < at.deadline:
        return False
    reports = database.read("SELECT count(*) FROM slots WHERE round = ? AND report IS NOT NULL", at.round)[0][
        0
    ]
    if reports >= study.fewest:
        return True
    moved = database.write(
        "UPDATE study SET deadline = ? WHERE round = ? AND deadline = ?",
        now + study.round_seconds, at.round, at.deadline,
    )  # fmt: skip
    if moved:
        _LOG.warning(
            "round %d has %d reports and needs %d: it goes on for another %g s",
            at.round, reports, study.fewest, study.round_seconds,
        )  # fmt: skip
    return False


def _close_round(database: Database, at: Stage) -> None:
    """No report is accepted for the round from now on; those under way are waited for."""
    with database.transaction(alone=True):
        database.write(_CLOSE, CLOSING, at.round, OPENED)


def end_study(database: Database, study: Study) -> int:
    """End the study now. The current round counts if it has enough reports; returns how many it left out."""
    while (at := stage(database)).state != ENDED:
        with database.transaction(alone=True):  # a worker that is taking a step will see it
            database.write("UPDATE study SET ending = 1")
            database.write(_CLOSE, CLOSING, at.round, OPENED)
        with database.stepping() as alone:
            if alone:
                step(database, study, stage(database))
            else:
                time.sleep(0.05)
    if at.unscrubbed:
        scrub(database)
    return int(
        database.read("SELECT count(*) FROM slots WHERE round = ? AND report IS NOT NULL", at.round)[0][0]
    )


def step(database: Database, study: Study, at: Stage) -> bool:
    """Average the round that is closing and begin the next; False if another process did."""
    if at.state != CLOSING:
        return False
    line, before = "", read_state(database, at.round)
    count, after = int(database.read(_COUNT, at.round)[0][0]), before
    now = database.now()
    if enough := count >= (study.fewest if at.ending else 1):
        task = task_of(study, at, 0)
        reports = ((Tasks(task, slots), messages, None) for slots, messages in _reports(database, at.round))
        after, record = server_step(study.made_scheme, study.settings, before, reports, paid=())
        now = database.now()
        (began,) = database.read("SELECT began FROM rounds WHERE round = ?", at.round)[0]
        record = dataclasses.replace(
            record, seconds=max(0.0, now - began), seconds_gradient=None, seconds_encode=None
        )
        line = json.dumps({**record.to_dict(), "asked": study.slots}, allow_nan=False)
    with database.transaction(alone=True):
        ending = at.ending or stage(database).ending or after.round == study.rounds
        moved = database.write(
            "UPDATE study SET round = ?, state = ?, deadline = ?, unscrubbed = 1 "
            "WHERE round = ? AND state = ?",
            after.round, ENDED if ending else OPENED, now + study.round_seconds, at.round, CLOSING,
        )  # fmt: skip
        if moved and enough:
            database.write("UPDATE rounds SET record = ? WHERE round = ?", line, at.round)
            _write_state(database, after, now)
            if not ending:
                new_round(database, after.round, study.slots)
        if moved:
            database.write(statements.UNUSED, at.round)
        if moved and ending:
            _forget(database)
    if moved:
        counted = "averaged" if enough else "left out, they are too few"
        _LOG.info("round %d: %d reports %s%s", at.round, count, counted, "; the study has ended" * ending)
    return bool(moved)


def scrub(database: Database) -> None:
    """Leave nothing on the disk of what was deleted, nor of the order in which devices came.

    If that fails, the operator is told, and the next ``tick`` or ``close`` tries again:
    tests/collect/test_stepping.py::test_scrubbing_is_repeated_until_it_succeeds.
    """
    with database.stepping() as alone:
        if not alone:
            return
        try:
            database.scrub()
            database.write("UPDATE study SET unscrubbed = 0")
        except DatabaseFailed as error:
            _warn("scrub", f"traces of the last round are still on the disk; it is tried again: {error}")


def _forget(database: Database) -> None:
    """At the end nobody needs to know any more which tickets and invitations there were."""
    database.write("UPDATE slots SET ticket = NULL, expires = NULL, draw = NULL")
    database.write("DELETE FROM invitations")
    database.write("DELETE FROM joins")


def _reports(database: Database, round: int) -> Iterator[tuple[Indices, Bytes]]:
    """The slots and messages of a round, in the order of slots, some at a time."""
    last = -1
    while rows := database.read(
        "SELECT slot, report FROM slots WHERE round = ? AND slot > ? AND report IS NOT NULL "
        "ORDER BY slot LIMIT ?",
        round, last, _AT_ONCE,
    ):  # fmt: skip
        last = rows[-1][0]
        messages = np.frombuffer(b"".join(bytes(message) for _, message in rows), np.uint8)
        yield np.array([slot for slot, _ in rows]), messages.reshape(len(rows), -1)


def _write_state(database: Database, state: State, now: float) -> None:
    arrays: dict[str, Any] = {
        "weights": state.weights,
        **{f"optimizer.{name}": value for name, value in state.optimizer.items()},
    }
    database.write(
        "INSERT INTO rounds (round, began, bound, content) VALUES (?, ?, ?, ?)",
        state.round, now, state.bound, save(arrays),
    )  # fmt: skip


def read_state(database: Database, round: int) -> State:
    """The state before a round; ValueError if the round has not begun."""
    found = database.read("SELECT bound, content FROM rounds WHERE round = ?", round)
    if not found:
        raise ValueError(f"round {round} has not begun")
    arrays = load(bytes(found[0][1]))
    return State(
        round=round,
        weights=arrays.pop("weights"),
        bound=found[0][0],
        optimizer={name.removeprefix("optimizer."): value for name, value in arrays.items()},
    )
