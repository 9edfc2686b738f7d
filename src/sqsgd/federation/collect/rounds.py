"""The life of a study: created, stepped at the end of each round, shown to its operator, written as a run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from sqsgd._internal.checks import Vector
from sqsgd._internal.files import locked, prepared, put
from sqsgd.core import Indices
from sqsgd.core.codec import Bytes
from sqsgd.core.task import Tasks
from sqsgd.federation.collect.database import FILE, URL, Database, DatabaseFailed, new_database, open_database
from sqsgd.federation.collect.intake import (
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
)
from sqsgd.federation.collect.study import KEY, OPEN, PAGE, STUDY, Study, load_study, make_study, new_key
from sqsgd.federation.node.structure import Arrays, Structure, flatten
from sqsgd.training import RunConfig, Settings, State, initial_state
from sqsgd.training.algorithm import server_step
from sqsgd.training.run_folder import RunFolder
from sqsgd.training.summary import about_once, summarise

_LOG = logging.getLogger("sqsgd.federation.collect")
_warned: dict[str, float] = {}
"""When this process last complained about what."""
_AT_ONCE = 4096  # reports read at a time
_CLOSE = "UPDATE study SET state = ? WHERE round = ? AND state = ?"


def _count(database: Database, round: int) -> int:
    """The reports of a round."""
    found = database.read("SELECT count(*) FROM slots WHERE round = ? AND report IS NOT NULL", round)
    return int(found[0][0])


def begin(database: Database, study: Study, weights: Vector, structure: Structure) -> None:
    """Round 0 of a new study."""
    now = database.now()
    with database.transaction(alone=True):
        database.write(
            "INSERT INTO study VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            study.id, study.made_scheme.fingerprint, json.dumps(list(structure.shapes.items())), now,
            0, OPENED, 0, now + study.round_seconds, now, 0,
        )  # fmt: skip
        _write_state(database, initial_state(weights, study), now)
        new_round(database, 0, study.slots)


def check_study(database: Database, study: Study) -> None:
    """Refuse a database of another study, and a clock that cannot be right; ValueError says why."""
    found = database.read("SELECT id, created, fingerprint FROM study")
    if len(found) != 1 or found[0][0] != study.id:
        other = found[0][0] if found else "none"
        raise ValueError(
            f"the database holds study {other}, but study.toml describes {study.id}: restore the file that "
            "the study was created with, or name its own database"
        )
    _, created, fingerprint = found[0]
    if fingerprint != study.made_scheme.fingerprint:
        raise ValueError(
            "this version of sqsgd reads reports otherwise than the one that created the study: use that"
        )
    ago = created - database.now()
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
    if trouble := clock(study, at.seen, now):
        _warn("clock", trouble)
    elif now > at.seen + 1:
        database.write("UPDATE study SET seen = ? WHERE seen < ?", now, now)
    if jumped(study, at.seen, now):  # a clock that went back only makes rounds longer
        return False
    if at.state == OPENED:
        late = free_expired(database, at, now)
        if late:
            _LOG.info("round %d: %d slots are free again, their devices did not report", at.round, late)
        if not _over(database, study, at, now):
            return False
        with database.transaction(alone=True):  # waits for reports under way; none is accepted afterwards
            database.write(_CLOSE, CLOSING, at.round, OPENED)
    with database.stepping() as alone:
        return alone and step(database, study, stage(database))


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
    reports = _count(database, at.round)
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


@contextlib.contextmanager
def _alone(database: Database) -> Iterator[None]:
    """Wait until no other process takes a step or writes the run."""
    while True:
        with database.stepping() as alone:
            if alone:
                yield
                return
        time.sleep(0.05)


def end_study(database: Database, study: Study) -> int:
    """End the study now. The current round counts if it has enough reports; returns how many it left out."""
    while (at := stage(database)).state != ENDED:
        with database.transaction(alone=True):  # a worker that is taking a step will see it
            database.write("UPDATE study SET ending = 1")
            database.write(_CLOSE, CLOSING, at.round, OPENED)
        with _alone(database):
            step(database, study, stage(database))
    if at.unscrubbed:
        scrub(database)
    return _count(database, at.round)


def step(database: Database, study: Study, at: Stage) -> bool:
    """Average the round that is closing and begin the next; False if another process did."""
    if at.state != CLOSING:
        return False
    count, now, line = _count(database, at.round), database.now(), ""
    before = after = read_state(database, at.round)
    if enough := count >= (study.fewest if at.ending else 1):
        task = task_of(study, at, 0)
        reports = ((Tasks(task, slots), messages, None) for slots, messages in _reports(database, at.round))
        after, record = server_step(study.made_scheme, study, before, reports, paid=())
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
        if not moved:
            return False
        nobody = "UPDATE slots SET draw = NULL, ticket = NULL, expires = NULL"
        database.write(f"{nobody} WHERE round = ? AND report IS NULL", at.round)
        if enough:
            database.write("UPDATE rounds SET record = ? WHERE round = ?", line, at.round)
            _write_state(database, after, now)
            if not ending:
                new_round(database, after.round, study.slots)
        if ending:  # nobody needs to know any more which tickets and invitations there were
            database.write(nobody)
            database.write("DELETE FROM invitations")
            database.write("DELETE FROM joins")
    counted = "averaged" if enough else "left out, they are too few"
    end = "; the study has ended" if ending else ""
    _LOG.info("round %d: %d reports %s%s", at.round, count, counted, end)
    return True


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


def progress(database: Database, study: Study) -> dict[str, Any]:
    """What anybody may know: nothing of it depends on who reported."""
    at, now = stage(database), database.now()
    ended = at.state == ENDED
    return {
        "round": at.round,
        "state": at.state,
        "model": model_path(study, at.round),
        "reports": 0 if ended else _count(database, at.round),
        "slots": study.slots,
        "seconds_left": 0.0 if ended else max(0.0, round(at.deadline - now, 1)),
    }


def full_status(database: Database, study: Study) -> dict[str, Any]:
    """What the operator sees: progress, refusals, and the central guarantee so far."""
    at, now = stage(database), database.now()
    lines = rounds_done(database)
    known = progress(database, study)
    (taken,) = database.read(
        "SELECT count(*) FROM slots WHERE round = ? AND report IS NULL AND expires IS NOT NULL", at.round
    )[0]
    return {
        "study": study.id,
        "name": study.name,
        **known,
        "rounds": study.rounds,
        "all_reports": sum(line["clients"] for line in lines) + known["reports"],
        "tickets_out": taken,
        "admission": admission(study),
        "invitations_used": database.read("SELECT count(*) FROM invitations")[0][0],
        "refusals": refusals(database),
        "unscrubbed": bool(at.unscrubbed),
        "clock": clock(study, at.seen, now),
        "epsilon": study.made_scheme.privacy.epsilon,
        "message_bytes": study.made_scheme.bits // 8,
        **guarantee(study, lines),
    }


def model_path(study: Study, round: int) -> str:
    """Where the weights before a round are. They are cached for good, so the path names the study."""
    return f"/model/{study.id}/{round}"


def guarantee(study: Study, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Users, order and central guarantee of the rounds that are over; none where one person may be all users.

    Guarantees
    ----------
    * An open study has no central figure:
      tests/collect/test_stepping.py::test_an_open_study_has_no_central_guarantee.
    """
    found = about_once(study.made_scheme, "round", lines, seeded=False, slots=len(lines) * study.slots)
    if study.admission != OPEN:
        return found
    return {
        **{name: value for name, value in found.items() if not name.startswith("central_")},
        "central_epsilon": None,
        "central_note": f"none: local {study.made_scheme.privacy.epsilon:g} against everyone; in an open "
        "study one person may have made all the other reports",
    }


def admission(study: Study) -> str:
    """Who may report, in words."""
    if study.admission == OPEN:
        return f"open to anybody, {study.joins_per_minute:,} devices a minute: one person can report often"
    return "by signed invitation, one report each"


def refusals(database: Database) -> dict[str, int]:
    """How many requests were refused, by reason, over all workers."""
    found = database.read("SELECT code, count FROM refusals WHERE count > 0 ORDER BY code")
    return {code: int(count) for code, count in found}


def rounds_done(database: Database) -> list[dict[str, Any]]:
    """The records of the rounds that are over."""
    found = database.read("SELECT record FROM rounds WHERE record IS NOT NULL ORDER BY round")
    return [json.loads(record) for (record,) in found]


def prometheus(known: Mapping[str, Any], refused: Mapping[str, int], worker: Mapping[str, float]) -> str:
    """The text that Prometheus reads; ``worker``: counters of this process."""
    gauges = {
        "round": ("The current round.", known["round"]),
        "round_reports": ("Reports of the current round.", known["reports"]),
        "round_slots": ("Slots of a round.", known["slots"]),
        "round_seconds_left": ("Time until the round may end.", known["seconds_left"]),
        "ended": ("1 if the study has ended.", int(known["state"] == ENDED)),
    }
    lines = []
    for name, (about, value) in gauges.items():
        lines += [f"# HELP sqsgd_{name} {about}", f"# TYPE sqsgd_{name} gauge", f"sqsgd_{name} {value}"]
    lines += ["# HELP sqsgd_refused_total Refused requests, by reason.", "# TYPE sqsgd_refused_total counter"]
    lines += [f'sqsgd_refused_total{{reason="{code}"}} {count}' for code, count in sorted(refused.items())]
    for name, value in sorted(worker.items()):
        lines += [f"# TYPE sqsgd_worker_{name} counter", f"sqsgd_worker_{name} {value}"]
    return "\n".join(lines) + "\n"


def write_outcome(path: Path, database: Database, study: Study) -> dict[str, Any]:
    """Write the run of a study that has ended, if no other process has; returns its summary."""
    at, lines, folder = stage(database), rounds_done(database), RunFolder(path)
    if at.state != ENDED:
        raise ValueError(f"study {study.name} has not ended: it is in round {at.round} of {study.rounds}")
    whole: dict[str, Any] = {
        "dataset": "data of the devices", "model": study.name,
        "participation": "once", "clients": study.users,
    }  # fmt: skip
    summary = summarise(
        lines,
        study.made_scheme,
        study,
        once=True,
        held_out="nothing: the service has no data",
        noise="secure",
        study=study.id,
        admission=admission(study),
        refusals=refusals(database),
        **whole,
        **guarantee(study, lines),
    )
    about = {"fingerprint": study.made_scheme.fingerprint, "rate": study.lr}
    settings = {each.name: getattr(study, each.name) for each in dataclasses.fields(Settings)}
    config = RunConfig(**{**settings, **whole, "rounds": max(1, len(lines)), "engine": "devices"})
    last = read_state(database, at.round)
    with _alone(database):  # a worker may write it at the same moment
        if folder.finished:
            return summary
        with folder.held():
            if not folder.begun:
                folder.save(initial_state(read_state(database, 0).weights, study), about)
            folder.write_config(config.to_toml())
            folder.keep_rounds(0)
            for line in lines:
                folder.write(line)
            folder.save(last, about)
            shapes = dict(json.loads(database.read("SELECT shapes FROM study")[0][0]))
            model = Structure(shapes=shapes, constants={}, order=tuple(shapes))
            folder.finish(model.sent(last.weights), summary)
    return summary


DIGITS, DIGITS_DIM = "digits", 3920
"""The page on which a person draws a digit, and the weights of its model: ten classes of 392 features."""


def create_study(
    folder: Path, arrays: Arrays, values: Mapping[str, Any], url: str = "", page: str = ""
) -> Study:
    """A new study: settings, signing key, database with round 0; refuses a folder that is in use.

    If it fails, nothing of it stays:
    tests/collect/test_study.py::test_a_failure_half_way_leaves_nothing_behind.

    Args:
        folder: A new folder, or one without a study.
        arrays: The model to start with.
        values: Fields of ``Study`` other than ``dim`` and ``key``.
        url: The URL of an empty PostgreSQL database; empty: SQLite.
        page: ``"digits"`` for a web page on which people take part; empty: none.
    """
    structure, weights = flatten(dict(sorted(arrays.items())))
    if structure.constants or not np.isfinite(weights).all():
        raise ValueError("the model to start with must have finite floats, and nothing else")
    if page not in ("", DIGITS):
        raise ValueError(f"page = {page!r} must be {DIGITS!r}; pages of your own go into {folder / PAGE}")
    if page == DIGITS and weights.size != DIGITS_DIM:
        raise ValueError(f"page = {page!r} needs a model of {DIGITS_DIM} weights, not {weights.size}")
    make_study({**values, "dim": weights.size}, "")  # says what is wrong before anything is written
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder, os.O_RDONLY):
        if any((folder / name).exists() for name in (STUDY, FILE, KEY, URL)):
            raise ValueError(f"{folder} holds a study already: choose another folder")
        if page and (folder / PAGE).exists():
            raise ValueError(f"{folder / PAGE} exists already: it is served as it is without page = {page!r}")
        with contextlib.ExitStack() as undo:
            undo.callback((folder / KEY).unlink, missing_ok=True)
            study = make_study({**values, "dim": weights.size}, new_key(folder))
            if url:  # it may hold a password
                undo.callback((folder / URL).unlink, missing_ok=True)
                put(prepared(folder / URL, url.encode() + b"\n", 0o600), folder / URL)
            if page:
                undo.callback(shutil.rmtree, folder / PAGE, ignore_errors=True)
                shutil.copytree(Path(__file__).with_name("digit_page"), folder / PAGE)
            database = undo.enter_context(contextlib.closing(new_database(folder, url)))
            undo.callback(database.discard)
            begin(database, study, weights, structure)
            study.write(folder)  # last: now it can be served
            undo.pop_all()
            database.close()
    return study


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[Study, Database]]:
    """A study and its database, after checking that they belong together."""
    study = load_study(folder)
    with contextlib.closing(open_database(folder)) as database:
        check_study(database, study)
        yield study, database
