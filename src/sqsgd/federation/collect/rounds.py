"""The life of a study: created, stepped at the end of each round, shown to its operator, written as a run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
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
from sqsgd.federation.collect import intake
from sqsgd.federation.collect.database import FILE, URL, Database, DatabaseFailed, new_database, open_database
from sqsgd.federation.collect.intake import Stage, stage
from sqsgd.federation.collect.study import KEY, OPEN, PAGE, STUDY, Study, load_study, make_study, new_key
from sqsgd.federation.node.structure import Arrays, Structure, flatten
from sqsgd.training import RunConfig, Settings, State, initial_state
from sqsgd.training.algorithm import server_step
from sqsgd.training.run_folder import RunFolder
from sqsgd.training.summary import about_once, certificate, summarise

_LOG = logging.getLogger("sqsgd.federation.collect")
_AT_ONCE = 4096  # reports read at a time
_CLOSE = "UPDATE study SET state = ? WHERE round = ? AND state = ?"


def _count(database: Database, round: int) -> int:
    found = database.read("SELECT count(*) FROM slots WHERE round = ? AND report IS NOT NULL", round)
    return int(found[0][0])


def begin(database: Database, study: Study, weights: Vector, structure: Structure) -> None:
    now = database.now()
    with database.transaction(alone=True):
        database.write(
            "INSERT INTO study VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            study.id, study.made_scheme.fingerprint, json.dumps(list(structure.shapes.items())),
            0, intake.OPENED, 0, now + study.round_seconds, 0,
        )  # fmt: skip
        _write_state(database, initial_state(weights, study), now)
        intake.new_round(database, 0, study.slots)


def check_study(database: Database, study: Study) -> None:
    found = database.read("SELECT id, fingerprint FROM study")
    if len(found) != 1 or found[0][0] != study.id:
        other = f"the database holds study {found[0][0] if found else 'none'}"
        restore = "restore the file that the study was created with, or name its own database"
        raise ValueError(f"{other}, but study.toml describes {study.id}: {restore}")
    if found[0][1] != study.made_scheme.fingerprint:
        raise ValueError("this version of sqsgd reads reports otherwise than the study's own: use that")


def tick(database: Database, study: Study) -> bool:
    """Do the work that is due: free late slots, end a round, take a step. True if a step was taken.

    Guarantees
    ----------
    * Whichever workers are killed, each round is stepped once, with exactly its accepted reports:
      tests/collect/test_stepping.py::test_two_workers_step_once,
      tests/collect/test_killed_workers.py::test_nothing_is_lost_and_nothing_counts_twice.
    """
    at, now = stage(database), database.now()
    if at.unscrubbed:
        scrub(database)
    if at.state == intake.OPENED:
        if late := intake.free_expired(database, at, now):
            _LOG.info("round %d: %d slots are free again, their devices did not report", at.round, late)
        if not _over(database, study, at, now):
            return False
        with database.transaction(alone=True):  # waits for reports under way; none is accepted afterwards
            database.write(_CLOSE, intake.CLOSING, at.round, intake.OPENED)
    with database.stepping() as alone:
        return alone and step(database, study, stage(database))


def _over(database: Database, study: Study, at: Stage, now: float) -> bool:
    if not database.read("SELECT 1 FROM slots WHERE round = ? AND report IS NULL LIMIT 1", at.round):
        return True
    if now < at.deadline:
        return False
    if (reports := _count(database, at.round)) >= study.fewest:
        return True
    move = "UPDATE study SET deadline = ? WHERE round = ? AND deadline = ?"
    if database.write(move, now + study.round_seconds, at.round, at.deadline):
        text = "round %d has %d reports and needs %d: it goes on for another %g s"
        _LOG.warning(text, at.round, reports, study.fewest, study.round_seconds)
    return False


@contextlib.contextmanager
def _alone(database: Database) -> Iterator[None]:
    while True:
        with database.stepping() as alone:
            if alone:
                yield
                return
        time.sleep(0.05)


def end_study(database: Database, study: Study) -> int:
    """End the study now. The current round counts if it has enough reports; returns how many it left out."""
    while (at := stage(database)).state != intake.ENDED:
        with database.transaction(alone=True):  # a worker that is taking a step will see it
            database.write("UPDATE study SET ending = 1")
            database.write(_CLOSE, intake.CLOSING, at.round, intake.OPENED)
        with _alone(database):
            step(database, study, stage(database))
    if at.unscrubbed:
        scrub(database)
    return _count(database, at.round)


def step(database: Database, study: Study, at: Stage) -> bool:
    """Average the round that is closing and begin the next; False if another process did."""
    if at.state != intake.CLOSING:
        return False
    count, now, line = _count(database, at.round), database.now(), ""
    before = after = read_state(database, at.round)
    if enough := count >= (study.fewest if at.ending else 1):
        task = intake.task_of(study, at, 0)
        reports = ((Tasks(task, slots), messages, None) for slots, messages in _reports(database, at.round))
        after, record = server_step(study.made_scheme, study, before, reports, paid=())
        now = database.now()
        (began,) = database.read("SELECT began FROM rounds WHERE round = ?", at.round)[0]
        times = {"seconds_gradient": None, "seconds_encode": None, "seconds": max(0.0, now - began)}
        record = dataclasses.replace(record, **times)
        line = json.dumps({**record.to_dict(), "asked": study.slots}, allow_nan=False)
    with database.transaction(alone=True):
        ending = at.ending or stage(database).ending or after.round == study.rounds
        then = intake.ENDED if ending else intake.OPENED
        if not database.write(
            "UPDATE study SET round = ?, state = ?, deadline = ?, unscrubbed = 1 "
            "WHERE round = ? AND state = ?",
            after.round, then, now + study.round_seconds, at.round, intake.CLOSING,
        ):  # fmt: skip
            return False
        nobody = "UPDATE slots SET draw = NULL, ticket = NULL, expires = NULL"
        database.write(f"{nobody} WHERE round = ? AND report IS NULL", at.round)
        if enough:
            database.write("UPDATE rounds SET record = ? WHERE round = ?", line, at.round)
            _write_state(database, after, now)
            if not ending:
                intake.new_round(database, after.round, study.slots)
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

    If that fails, it is logged for the operator and tried again:
    tests/collect/test_stepping.py::test_scrubbing_is_repeated_until_it_succeeds.
    """
    with database.stepping() as alone:
        if alone:
            try:
                database.scrub()
                database.write("UPDATE study SET unscrubbed = 0")
                database.complained = False
            except DatabaseFailed as error:
                if not database.complained:
                    _LOG.warning("traces of the last round are still on the disk, for now: %s", error)
                database.complained = True


def _reports(database: Database, round: int) -> Iterator[tuple[Indices, Bytes]]:
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
    arrays: dict[str, Any] = {f"optimizer.{name}": value for name, value in state.optimizer.items()}
    content = save({"weights": state.weights, **arrays})
    insert = "INSERT INTO rounds (round, began, bound, content) VALUES (?, ?, ?, ?)"
    database.write(insert, state.round, now, state.bound, content)


def read_state(database: Database, round: int) -> State:
    """The state before a round; ValueError if the round has not begun."""
    found = database.read("SELECT bound, content FROM rounds WHERE round = ?", round)
    if not found:
        raise ValueError(f"round {round} has not begun")
    arrays = load(bytes(found[0][1]))
    weights = arrays.pop("weights")
    optimizer = {name.removeprefix("optimizer."): value for name, value in arrays.items()}
    return State(round=round, weights=weights, bound=found[0][0], optimizer=optimizer)


def progress(database: Database, study: Study) -> dict[str, Any]:
    """What anybody may know: nothing of it depends on who reported."""
    at, now = stage(database), database.now()
    ended = at.state == intake.ENDED
    return {
        "round": at.round, "state": at.state, "model": model_path(study, at.round),
        "reports": 0 if ended else _count(database, at.round), "slots": study.slots,
        "seconds_left": 0.0 if ended else max(0.0, round(at.deadline - now, 1)),
    }  # fmt: skip


def full_status(database: Database, study: Study) -> dict[str, Any]:
    """What the operator sees: progress, refusals, and the central guarantee so far."""
    at, lines, known = stage(database), rounds_done(database), progress(database, study)
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
        "epsilon": study.made_scheme.privacy.epsilon,
        "message_bytes": study.made_scheme.bits // 8,
        **guarantee(study, lines),
    }


def model_path(study: Study, round: int) -> str:
    """Of the weights before a round; it names the study, because they are cached for good."""
    return f"/model/{study.id}/{round}"


def guarantee(study: Study, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Users, order and central guarantee of the rounds that are over.

    Guarantees
    ----------
    * An open study has no central figure:
      tests/collect/test_stepping.py::test_an_open_study_has_no_central_guarantee.
    """
    found = about_once(study.made_scheme, "round", lines, seeded=False, slots=len(lines) * study.slots)
    if study.admission != OPEN:
        return found
    local = f"none: local {study.made_scheme.privacy.epsilon:g} against everyone"
    note = f"{local}; in an open study one person may have made all the other reports"
    kept = {name: value for name, value in found.items() if not name.startswith("central_")}
    return {**kept, "central_epsilon": None, "central_note": note}


def admission(study: Study) -> str:
    if study.admission == OPEN:
        return f"open to anybody, {study.joins_per_minute:,} devices a minute: one person can report often"
    return "by signed invitation, one report each"


def refusals(database: Database) -> dict[str, int]:
    found = database.read("SELECT code, count FROM refusals WHERE count > 0 ORDER BY code")
    return {code: int(count) for code, count in found}


def rounds_done(database: Database) -> list[dict[str, Any]]:
    found = database.read("SELECT record FROM rounds WHERE record IS NOT NULL ORDER BY round")
    return [json.loads(record) for (record,) in found]


def write_outcome(path: Path, database: Database, study: Study) -> dict[str, Any]:
    """Write the run of a study that has ended, if no other process has; returns its summary."""
    at, lines, folder = stage(database), rounds_done(database), RunFolder(path)
    if at.state != intake.ENDED:
        raise ValueError(f"study {study.name} has not ended: it is in round {at.round} of {study.rounds}")
    whole: dict[str, Any] = {"dataset": "data of the devices", "model": study.name}
    whole |= {"participation": "once", "clients": study.users}
    origin = {"study": study.id, "admission": admission(study), "refusals": refusals(database)}
    known = {"held_out": "nothing: the service has no data", "noise": "secure", **origin, **whole}
    summary = summarise(lines, study.made_scheme, study, reports=1, **known, **guarantee(study, lines))
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
            made = certificate(study.made_scheme, summary)
            folder.finish(model.sent(last.weights), summary, made)
    return summary


DIGITS, DIGITS_DIM = "digits", 3920  # a page to draw a digit; its model has ten classes of 392 features


def create_study(
    folder: Path, arrays: Arrays, values: Mapping[str, Any], url: str = "", page: str = ""
) -> Study:
    """A new study from the fields of ``Study`` but ``dim`` and ``key``; refuses a folder that is in use.

    If it fails, nothing stays: tests/collect/test_study.py::test_a_failure_half_way_leaves_nothing_behind.

    Args:
        folder: A new folder, or one without a study.
        arrays: The model to start with.
        values: Fields of ``Study``.
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
    make_study({**values, "dim": weights.size}, "")  # names errors before anything is written
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
