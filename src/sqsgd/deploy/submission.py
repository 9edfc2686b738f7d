"""Submits a training to Flower, follows it to its end, and resumes it if the server app died."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from sqsgd.deploy.federation import Federation
from sqsgd.deploy.live_state import json_lines
from sqsgd.deploy.processes import Process, start_time
from sqsgd.files.durable import write_atomically
from sqsgd.files.toml_reader import read_toml
from sqsgd.flower import app_folder
from sqsgd.node.server import nothing_trained

COMPLETED = "finished:completed"
_ASK_EVERY = 10.0  # each call of flwr costs seconds of CPU time
_LOOK_EVERY = 0.3
_TRY_AGAIN = 5.0
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training: its folder and its state."""

    folder: Path
    rounds: int
    run_id: str
    status: str
    attempts: int
    follower: Process
    """The process that keeps ``status`` up to date."""

    def write(self) -> None:
        """Write it beside the run's folder, atomically."""
        values = {**vars(self), "folder": str(self.folder), "follower": vars(self.follower)}
        write_atomically(_job_file(self.folder), json.dumps(values, indent=2).encode())


def last_job(server: Path) -> Job | None:
    """The last training; None if there was none."""
    number = _last_number(server)
    if not number:
        return None
    values = json.loads(_job_file(server / f"runs/run-{number}").read_text())
    values |= {"folder": Path(values["folder"]), "follower": Process(**values["follower"])}
    return Job(**values)


def environment(server: Path) -> dict[str, str]:
    """The environment of Flower's commands: its home, no telemetry, and its other commands on the PATH."""
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join([here, os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(server / "flwr")}


def flwr(server: Path, *arguments: str) -> str:
    """The output of a ``flwr`` command; raises OSError with its message if it fails."""
    try:
        done = subprocess.run(  # noqa: S603
            ["flwr", *arguments],  # noqa: S607
            env=environment(server),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
    except FileNotFoundError:
        raise OSError("Flower is not installed here: pip install 'sqsgd[flower]'") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"flwr {' '.join(arguments[:2])}: no answer from the SuperLink") from None
    if done.returncode:
        raise OSError(f"flwr {' '.join(arguments[:2])} failed: {_said(done.stdout + done.stderr)}")
    return done.stdout


def flower_status(server: Path, run_id: str) -> str:
    """A run's status according to Flower, such as ``running`` or ``finished:completed``."""
    runs = _flwr_json(server, "runs", "list", "federation", "--run-id", run_id)
    if not runs:
        raise OSError(f"the SuperLink has no run {run_id}")
    return str(runs[0]["status"])


def _flwr_json(server: Path, key: str, *arguments: str) -> Any:
    """One value of Flower's JSON output. Flower reports some failures in it and exits with 0."""
    text = flwr(server, *arguments, "--format", "json")
    try:
        answer = json.loads(text)
        return answer[key]
    except (ValueError, KeyError, TypeError):
        raise OSError(f"flwr {' '.join(arguments[:2])} failed: {_said(text)}") from None


def _said(text: str) -> str:
    """What Flower says about a failure, and what to do about the commonest."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["error-message"])
    text = " ".join(text.split())[-600:]
    return f"{text} Is ./superlink.sh running?" if "to the SuperLink is unavailable" in text else text


def stop_run(server: Path, job: Job) -> Job:
    """Stop a run that is not over: two runs must not train in one folder."""
    if job.status.startswith("finished"):
        return job
    with contextlib.suppress(OSError):  # it is over, or the SuperLink no longer has it
        flwr(server, "stop", job.run_id, "federation")
    status = "finished:stopped"
    with contextlib.suppress(OSError):
        status = flower_status(server, job.run_id)
    job = replace(job, status=status)
    job.write()
    return job


def train(
    server: Path,
    federation: Federation,
    *,
    app: Path | None = None,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[str], None] = lambda _: None,
) -> Job:
    """Train to the end; a server app that died is resumed from its last checkpoint.

    It is resumed as long as the last attempt completed at least one more round with enough answers, so a
    persistent failure, such as spent budgets, ends the training. The job's file says ``finished`` only when
    there will be no further attempt.
    """
    server = server.absolute()
    if app is not None and (unread := unread_settings(app, federation)):
        tell(
            f"the app decides these itself, since its pyproject.toml does not have them: {', '.join(unread)}"
        )
    job = _begin(server, federation, app, resume)
    done = rounds_stepped(job)
    while True:
        tell(f"run {job.run_id}: attempt {job.attempts}, into {job.folder}")
        job = _follow(server, job, stop, tell)
        if stop():
            job = stop_run(server, job)
        before, done = done, rounds_stepped(job)
        if job.status == COMPLETED or stop() or done <= before:
            job.write()
            failed = job.status != COMPLETED and not stop()
            if problem := nothing_trained(metrics(job.folder)) or (_last_error(job) if failed else ""):
                tell(problem)
            return job
        replace(job, status="interrupted").write()
        last = len(metrics(job.folder))
        tell(f"run {job.run_id} ended as {job.status} after round {last}: resuming from its checkpoint")
        job = _submit(server, federation, app, replace(job, attempts=job.attempts + 1), resume=True)


def unread_settings(app: Path, federation: Federation) -> list[str]:
    """The federation's settings that an app does not declare in its configuration; Flower refuses them."""
    path = app / "pyproject.toml"
    if not path.is_file():
        raise ValueError(f"{app} is not a Flower app: it has no pyproject.toml")
    declared: Any = read_toml(path)
    for key in ("tool", "flwr", "app", "config"):
        declared = declared.get(key, {})
    return [key for key in federation.run_config(Path(), resume=False) if key not in declared]


def rounds_stepped(job: Job) -> int:
    """How many rounds changed the model."""
    return sum(line["stepped"] for line in metrics(job.folder))


def metrics(run: Path) -> list[dict[str, Any]]:
    """The rounds that a run has recorded."""
    return json_lines(run / "metrics.jsonl")


def _begin(server: Path, federation: Federation, app: Path | None, resume: bool) -> Job:
    me = os.getpid()
    follower = Process(pid=me, started=start_time(me) or "")
    if resume:
        job = last_job(server)
        if job is None:
            raise ValueError(f"{server / 'runs'} has no run: there is nothing to resume")
        if job.status == COMPLETED and len(metrics(job.folder)) >= federation.rounds:
            raise ValueError(f"{job.folder} is completed: there is nothing to resume")
        job = replace(
            stop_run(server, job), rounds=federation.rounds, attempts=job.attempts + 1, follower=follower
        )
        return _submit(server, federation, app, job, resume=True)
    folder = server / f"runs/run-{_last_number(server) + 1}"
    job = Job(folder=folder, rounds=federation.rounds, run_id="", status="new", attempts=1, follower=follower)
    return _submit(server, federation, app, job, resume=False)


def _submit(server: Path, federation: Federation, app: Path | None, job: Job, *, resume: bool) -> Job:
    settings, values = server / "flwr/run-config.toml", federation.run_config(job.folder, resume=resume)
    for key in () if app is None else unread_settings(app, federation):
        del values[key]
    settings.write_text(tomli_w.dumps(values))
    folder = str(app_folder() if app is None else app.absolute())
    for tries_left in (3, 2, 1, 0):  # the SuperLink may be restarting
        try:
            run_id = _flwr_json(server, "run-id", "run", folder, "federation", "--run-config", str(settings))
            break
        except OSError:
            if not tries_left:
                raise
            time.sleep(_TRY_AGAIN)
    job = replace(job, run_id=str(run_id), status="submitted")
    job.write()
    return job


def _follow(server: Path, job: Job, stop: Callable[[], bool], tell: Callable[[str], None]) -> Job:
    shown, asked, summary = len(metrics(job.folder)), time.monotonic(), job.folder / "summary.json"
    old = _modified(summary)
    while not stop():
        lines = metrics(job.folder)
        for line in lines[shown:]:
            tell(describe_round(line, job.rounds))
        shown = max(shown, len(lines))
        over = _modified(summary) not in (0.0, old)
        if time.monotonic() - asked > (1.0 if over else _ASK_EVERY):
            try:
                status = flower_status(server, job.run_id)
            except OSError as error:  # the SuperLink is restarting
                tell(str(error))
                status = job.status
            asked = time.monotonic()
            if status.startswith("finished"):
                _keep_log(server, job)
                job = replace(job, status=status)
                break
            if status != job.status:
                job = replace(job, status=status)
                job.write()
        time.sleep(_LOOK_EVERY)
    for line in metrics(job.folder)[shown:]:
        tell(describe_round(line, job.rounds))
    return job


def _modified(path: Path) -> float:
    """When a file was last written; 0 if there is none: a resumed training removes its summary."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _keep_log(server: Path, job: Job) -> None:
    """Append the server app's log to a file beside the run's folder."""
    with contextlib.suppress(OSError):  # the SuperLink is gone
        text = flwr(server, "log", job.run_id, "federation", "--show")
        with _log_file(job).open("a") as file:
            file.write(text)


def _last_error(job: Job) -> str:
    """The exception with which the server app ended, and where the rest of its log is."""
    log = _log_file(job)
    text = log.read_text(errors="replace") if log.is_file() else ""
    errors = re.findall(r"(?m)^(?:\w+\.)*[A-Z]\w*: (.+)$", text)
    return f"{errors[-1][:500]}; see {log}" if errors else ""


def describe_round(line: Mapping[str, Any], rounds: int) -> str:
    """A round on one line of text."""
    parts = [f"round {line['round'] + 1} of {rounds}"]
    if line.get("accuracy") is not None:
        parts.append(f"accuracy {line['accuracy']:.2%}")
    if line.get("evaluation"):
        parts.append(describe_evaluation(line["evaluation"]))
    parts.append(f"{line.get('clients', 0)} answers")
    if line.get("rejected"):
        reasons = "; ".join(sorted({str(each.get("reason")) for each in line["rejected"]}))
        parts.append(f"{len(line['rejected'])} rejected ({reasons})")
    if line.get("bytes_up"):
        parts.append(f"{line['bytes_up']:,} bytes per report")
    return "  ".join(parts)


def describe_evaluation(found: Mapping[str, Any]) -> str:
    """What nodes told of the model, in a few words."""
    if "mean" not in found:
        return f"{found['metric']} on nodes' data unknown: none of {found['asked']} answered"
    ends = f"95 %: {found['low']:.3f} to {found['high']:.3f}"
    return f"{found['metric']} {found['mean']:.3f} on the data of {found['answers']} nodes ({ends})"


def _log_file(job: Job) -> Path:
    return job.folder.with_name(job.folder.name + ".log")


def _job_file(run: Path) -> Path:
    return run.with_name(run.name + ".json")


def _last_number(server: Path) -> int:
    numbers = [path.stem.removeprefix("run-") for path in (server / "runs").glob("run-*.json")]
    return max((int(number) for number in numbers if number.isdecimal()), default=0)
