"""The life of a study: created, stepped at the end of each round, shown to its operator, written as a run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import load, save

from sqsgd._internal.files import locked, prepared, put
from sqsgd.federation.collect import intake, oblivious
from sqsgd.federation.collect import study as studies
from sqsgd.federation.collect.database import FILE, URL, Database, connect, open_database
from sqsgd.federation.collect.intake import Stage, received, stage, task_of
from sqsgd.federation.collect.study import DRAWN, GATEWAY_KEY, KEYS, OPEN, PAGE, STUDY, Study
from sqsgd.federation.node.structure import Arrays, Structure, flatten
from sqsgd.training import RunConfig, Settings, State, initial_state
from sqsgd.training.algorithm import server_step
from sqsgd.training.run_folder import RunFolder
from sqsgd.training.summary import about_once, central, certificate, summarise

_LOG = logging.getLogger("sqsgd.federation.collect")
_LATE_SECONDS = 3600.0
KEY_SECONDS = 7 * 86400.0  # a key of the gateway is offered for so long, and valid for as long again


def rotate_keys(database: Database, signer: Ed25519PrivateKey) -> None:
    """Create and sign a new key of the gateway each week, and delete keys two weeks after they were made."""
    newest = "SELECT number FROM gateway WHERE made > ?"
    if not database.read(newest, database.now() - KEY_SECONDS):
        with database.transaction(alone=True):
            if not database.read(newest, database.now() - KEY_SECONDS):  # no other worker was quicker
                ((number,),) = database.read("SELECT number FROM gateway ORDER BY made DESC LIMIT 1")
                database.write("DELETE FROM gateway WHERE made <= ?", database.now() - 2 * KEY_SECONDS)
                _write_key(database, (number + 1) % 256, signer)


def _write_key(database: Database, number: int, signer: Ed25519PrivateKey) -> None:
    key, now = oblivious.GatewayKey(number, os.urandom(32)), database.now()
    signed = oblivious.sign_keys(key.configuration, int(now + 2 * KEY_SECONDS), signer)
    database.write("INSERT INTO gateway VALUES (?, ?, ?, ?)", *key, now, signed)


def gateway_keys(database: Database) -> tuple[list[oblivious.GatewayKey], bytes]:
    """The keys in use, and the newest one as it was signed."""
    found = database.read("SELECT number, private, signed FROM gateway ORDER BY made DESC")
    keys = [oblivious.GatewayKey(number, bytes(private)) for number, private, _ in found]
    return keys, bytes(found[0][2])


def tick(database: Database, study: Study, signer: Ed25519PrivateKey | None = None) -> bool:
    """What has to be done by now: end a round, take a step, replace a key. True if a step was taken.

    Keys are replaced where there is somebody to sign them.

    Guarantees
    ----------
    * Whichever workers are killed, each round is stepped once, with exactly its accepted reports:
      tests/collect/test_stepping.py::test_two_workers_step_once,
      tests/collect/test_killed_workers.py::test_nothing_is_lost_and_nothing_counts_twice.
    """
    if signer is not None:
        rotate_keys(database, signer)
    at = stage(database)
    if at.state == intake.OPENED:
        if not _over(database, study, at, database.now()):
            return False
        _close(database, at)
    with database.stepping() as alone:
        return alone and step(database, study)


def _over(database: Database, study: Study, at: Stage, now: float) -> bool:
    """By the schedule where devices drew their rounds; else if a round is full, or late and large enough."""
    if study.visits == DRAWN:
        return now >= at.deadline
    reports = received(database, study, at.round)
    if reports >= study.expected or (now >= at.deadline and reports >= study.fewest):
        return True
    move = "UPDATE study SET deadline = ? WHERE round = ? AND deadline = ?"
    if now >= at.deadline and database.write(move, now + study.round_seconds, at.round, at.deadline):
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
    """End the study now. The current round counts if it has enough reports. Returns how many it left out."""
    with _alone(database):
        _close(database, stage(database))
        step(database, study, ending=True)
    return sum(line.get("left_out", 0) for line in _records(database)[-1:])


def _close(database: Database, at: Stage) -> None:
    with database.transaction(alone=True):  # waits for reports under way; none is accepted afterwards
        close = "UPDATE study SET state = ? WHERE round = ? AND state = ?"
        database.write(close, intake.CLOSING, at.round, intake.OPENED)


def step(database: Database, study: Study, *, ending: bool = False) -> bool:
    """Average the round that is closing and begin the next, or none; False if another process did.

    With too few reports the model stays as it is.
    """
    if (at := stage(database)).state != intake.CLOSING:
        return False
    count, now = received(database, study, at.round), database.now()
    before, task = read_state(database, at.round), task_of(study, at.round)
    line, after, counted = {"left_out": count}, before.after(), f"left out, {study.fewest} are needed"
    if count >= study.fewest:
        counts = intake.counts(database, study, at.round)
        after, record = server_step(study.made_scheme, study, before, [(task, counts, None)], paid=())
        ((began,),) = database.read("SELECT began FROM rounds WHERE round = ?", at.round)
        times = {"seconds_gradient": None, "seconds_encode": None, "seconds": max(0.0, now - began)}
        line = {**dataclasses.replace(record, **times).to_dict(), "asked": study.expected}
        counted = "averaged"
    with database.transaction(alone=True):
        ending = ending or after.round == study.rounds
        then, late = intake.ENDED if ending else intake.OPENED, database.now() + study.round_seconds
        deadline = study.opens(after.round + 1) if study.visits == DRAWN else late
        if not database.write(
            "UPDATE study SET round = ?, state = ?, deadline = ? WHERE round = ? AND state = ?",
            after.round, then, deadline, at.round, intake.CLOSING,
        ):  # fmt: skip
            return False
        record_of = "UPDATE rounds SET record = ? WHERE round = ?"
        database.write(record_of, json.dumps(line, allow_nan=False), at.round)
        _write_state(database, after, database.now())
        if ending:
            database.write("DELETE FROM minutes")
    end = "; the study has ended" if ending else ""
    _LOG.info("round %d: %d reports %s%s", at.round, count, counted, end)
    return True


def _write_state(database: Database, state: State, now: float) -> None:
    arrays: dict[str, Any] = {f"optimizer.{name}": value for name, value in state.optimizer.items()}
    content = save({"weights": state.weights, "bound": np.array([state.bound]), **arrays})
    database.write("INSERT INTO rounds (round, began, content) VALUES (?, ?, ?)", state.round, now, content)


def read_state(database: Database, round: int) -> State:
    """Return the state before a round. Raises ValueError if the round has not begun."""
    found = database.read("SELECT content FROM rounds WHERE round = ?", round)
    if not found:
        raise ValueError(f"round {round} has not begun")
    arrays = load(bytes(found[0][0]))
    weights, bound = arrays.pop("weights"), float(arrays.pop("bound")[0])
    optimizer = {name.removeprefix("optimizer."): value for name, value in arrays.items()}
    return State(round=round, weights=weights, bound=bound, optimizer=optimizer)


def progress(database: Database, study: Study) -> dict[str, Any]:
    """What anybody may know: nothing of it depends on who reported."""
    at, now = stage(database), database.now()
    state = intake.phase(study, at, now)
    until = {intake.WAITING: study.opens(at.round), intake.ENDED: now}.get(state, at.deadline)
    return {
        "study": study.id, "round": at.round, "state": state, "model": f"/model/{study.id}/{at.round}",
        "reports": 0 if state == intake.ENDED else received(database, study, at.round),
        "seconds_left": max(0.0, round(until - now, 1)),
    }  # fmt: skip


def full_status(database: Database, study: Study) -> dict[str, Any]:
    """What the operator sees: progress, refusals, drop-outs, and the central guarantee so far."""
    known, about = progress(database, study), outcome(database, study)
    return {
        "name": study.name, **known, "rounds": study.rounds, "expected": study.expected,
        "all_reports": sum(line["clients"] for line in rounds_done(database)) + known["reports"],
        "relay": study.relay or None, "keys": _keys_note(database, study),
        "epsilon": study.made_scheme.privacy.epsilon, "message_bytes": study.made_scheme.bits // 8, **about,
    }  # fmt: skip


def _keys_note(database: Database, study: Study) -> str:
    """Until when devices use the gateway's keys, and what to do if nobody replaces them."""
    left = oblivious.valid_until(gateway_keys(database)[1]) - database.now()
    if not study.relay:
        return "not used: there is no relay"
    note = f"valid for {left / 86400:.0f} days" if left > 0 else "EXPIRED: devices send nothing"
    late = left < KEY_SECONDS - _LATE_SECONDS
    return note + (f"; nobody replaces them: one worker needs {GATEWAY_KEY} in its folder" if late else "")


def outcome(database: Database, study: Study) -> dict[str, Any]:
    """Who was admitted, what was refused, how many reports missed their round, and what is guaranteed."""
    found = database.read("SELECT code, count FROM refusals WHERE count > 0 ORDER BY code")
    records, ((issued,),) = _records(database), database.read("SELECT count(*) FROM invitations")
    admitted = "one blind token" if study.reports == 1 else f"{study.reports} blind tokens"
    rate = f"anybody, {study.tokens_per_minute:,} devices a minute: one person can report often"
    ended = stage(database).state == intake.ENDED
    share = 1.0 if ended else len(records) / study.rounds  # of the tokens that belong to rounds that are over
    came = sum(line.get("clients", 0) + line.get("left_out", 0) for line in records)
    missed = max(0, round(issued * study.reports * share) - came)
    return {
        "admission": f"{admitted} for {rate if study.admission == OPEN else 'each signed invitation'}",
        "refusals": {code: int(count) for code, count in found},
        "invitations_used": issued,
        "missed": missed,
        **guarantee(study, rounds_done(database), missed if ended else None),
    }


def guarantee(study: Study, lines: list[dict[str, Any]], missed: int | None = None) -> dict[str, Any]:
    """Users, order and central guarantee of the rounds that are over; ``missed``: reports, at the end.

    Guarantees
    ----------
    * Where devices draw their rounds, the order is that of the run, with all reports received:
      tests/collect/test_stepping.py::test_the_order_of_drawn_rounds_is_that_of_the_run.
    * An open study has no central figure:
      tests/collect/test_stepping.py::test_an_open_study_has_no_central_guarantee.
    * The assumptions are those of check-in, and none is about an operator's order:
      tests/collect/test_stepping.py::test_the_document_states_what_is_assumed.
    """
    drawn, several = study.visits == DRAWN, study.reports > 1
    found = about_once(study.made_scheme, "run" if drawn else "round", lines, seeded=False)
    if several:  # of R reports in a pass, at most ``missed`` are missing in another
        counted = found["users" if drawn else "fewest_users"] // study.reports - (missed or 0)
        found |= {name: found[name] // study.reports for name in ("users", "fewest_users")}
        found |= central(study.made_scheme, max(0, counted), found["order"], study.reports, seeded=False)
    who = "each device drew its rounds" if drawn else "within each round: devices came when they liked"
    found["order_note"] = f"{who}; {'the relay is ' + study.relay if study.relay else 'there is no relay'}"
    if study.admission == OPEN or (several and missed is None):
        why = "several reports of a user are certified when the study has ended"
        why = "in an open study one person may have made all the others" if study.admission == OPEN else why
        found = {name: value for name, value in found.items() if not name.startswith("central_")}
        local = study.reports * study.made_scheme.privacy.epsilon
        why = f"none: local {local:g} against everyone; {why}"
        return {**found, "central_epsilon": None, "central_note": why}
    if found["central_epsilon"] is not None:
        against = "against those who see the models; the service sees who sent what"
        if study.relay:  # a device that reports when it comes has its token from the service just before
            against = "against those who see the models; the service can match reports with tokens by time"
        if study.relay and drawn:
            against = "against the service and all who see the models, unless the relay helps the service"
        note = found["central_note"].partition(" against readers of the models")[0]
        found["central_note"] = f"{note} {against}"
        found["central_assumptions"] = assumptions(study, found)
    return found


def assumptions(study: Study, found: Mapping[str, Any]) -> list[str]:
    """What the central guarantee of a study rests on: docs/proofs/check-in.md."""
    count = f"{found['central_users']:,} or more"
    sent = "one report" if study.reports == 1 else f"at most {study.reports:,} reports, which nothing links,"
    drew = f"each device drew its rounds itself, uniformly and independently of everything, and {count} came"
    came = f"{count} came in each round, and who came in which round depends on no data"
    hidden = (
        "the relay does not help the service: together they know who sent what, and against them ε is local"
    )
    if not study.relay:
        hidden = "the service reveals to nobody who sent what: it sees that, and against it ε is local"
    elif study.visits != DRAWN:
        hidden = "the service reveals no times of tokens and reports: by them it can tell who sent what"
    return [
        f"each user sends {sent} in all",
        f"{drew}; nobody else draws or knows an order" if study.visits == DRAWN else came,
        "all devices of a round have the same task, seed and models",
        hidden,
        "when a report arrives does not reveal its sender",
        "whether a device comes does not depend on its data, and depends on its user and on its round "
        "independently",
        "no other user reveals a round or a report",
    ]


def _records(database: Database) -> list[dict[str, Any]]:
    found = database.read("SELECT record FROM rounds WHERE record IS NOT NULL ORDER BY round")
    return [json.loads(record) for (record,) in found]


def rounds_done(database: Database) -> list[dict[str, Any]]:
    """Return the records of the rounds that were averaged."""
    return [record for record in _records(database) if "clients" in record]


def write_outcome(path: Path, database: Database, study: Study) -> dict[str, Any]:
    """Write the run of a study that has ended, if no other process has. Returns its summary."""
    at, lines, folder = stage(database), rounds_done(database), RunFolder(path)
    if at.state != intake.ENDED:
        raise ValueError(f"study {study.name} has not ended: it is in round {at.round} of {study.rounds}")
    whole: dict[str, Any] = {
        "dataset": "data of the devices", "model": study.name,
        "participation": "once", "clients": study.users,
    }  # fmt: skip
    known = {"held_out": "nothing: the service has no data", "noise": "secure", "study": study.id, **whole}
    known |= outcome(database, study)
    summary = summarise(lines, study.made_scheme, study, reports=study.reports, **known)
    summary["epsilon_total"] = summary["epsilon_all_rounds"]
    about = {"fingerprint": study.made_scheme.fingerprint, "rate": study.lr}
    settings = {each.name: getattr(study, each.name) for each in dataclasses.fields(Settings)}
    config = RunConfig(**{**settings, **whole, "rounds": max(1, len(lines)), "engine": "devices"})
    shapes = dict(json.loads(database.read("SELECT shapes FROM study")[0][0]))
    model, last = Structure(shapes=shapes, constants={}, order=tuple(shapes)), read_state(database, at.round)
    with _alone(database):  # a worker may write it at the same moment
        if folder.finished:
            return summary
        folder.begin(last, about, config.to_toml())
        with folder.held():
            for line in lines:
                folder.write(line)
            folder.save(last, about)
            folder.finish(model.sent(last.weights), summary, certificate(study.made_scheme, summary))
    return summary


DIGITS, DIGITS_DIM = "digits", 3920  # a page to draw a digit; its model has ten classes of 392 features


def create_study(
    folder: Path, arrays: Arrays, values: Mapping[str, Any], url: str = "", page: str = ""
) -> Study:
    """Return a new study from the fields of ``Study`` but ``dim`` and ``key``; refuses a folder that is in
    use.

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
        raise ValueError(f"page = {page!r} must be {DIGITS!r}; store your own pages in {folder / PAGE}")
    if page == DIGITS and weights.size != DIGITS_DIM:
        raise ValueError(f"page = {page!r} needs a model of {DIGITS_DIM} weights, not {weights.size}")
    values = {**values, "dim": weights.size}
    studies.make_study(values)  # says what is wrong before anything is written
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder, os.O_RDONLY), tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as place:
        for name in (STUDY, FILE, URL, *KEYS, *([PAGE] if page else [])):
            if (folder / name).exists():
                held = f"{folder} holds a study already, or what is left of one: {name}"
                raise ValueError(f"{held}; choose another folder")
        new = Path(place)
        study = studies.make_study({**values, **studies.new_keys(new)})
        signer = studies.read_key(new / GATEWAY_KEY, study.gateway_key)
        if url:  # it may hold a password
            put(prepared(new / URL, url.encode() + b"\n"), new / URL)
        if page:
            shutil.copytree(Path(__file__).with_name("digit_page"), new / PAGE)
        with contextlib.closing(connect(new, url, new=True)) as database, database.transaction(alone=True):
            database.create()
            shapes, first = json.dumps(list(structure.shapes.items())), study.opens(1)
            database.write("INSERT INTO study VALUES (?, ?, 0, ?, ?)", study.id, shapes, intake.OPENED, first)
            _write_state(database, initial_state(weights, study), study.begins)
            _write_key(database, 1, signer)
            study.write(new)
        for path in sorted(new.iterdir(), key=lambda path: path.name == STUDY):
            put(path, folder / path.name)  # the study last: now it can be served
    return study


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[Study, Database]]:
    """A study and its database, after checking that they belong together."""
    study = studies.load_study(folder)
    with contextlib.closing(open_database(folder)) as database:
        found = [name for (name,) in database.read("SELECT id FROM study")]
        if found != [study.id]:
            held = f"the database holds study {' '.join(found) or 'none'}, study.toml describes {study.id}"
            raise ValueError(f"{held}: restore the file, or use its own database and version of sqsgd")
        yield study, database
