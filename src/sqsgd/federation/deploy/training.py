"""Submits a training to Flower and follows it to its end; what run folders and ledgers say about it."""

import contextlib
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import tomli_w

from sqsgd._internal.exact import rounded_down, rounded_up
from sqsgd._internal.files import read_toml, write_atomically
from sqsgd.federation.deploy.certificates import expiry
from sqsgd.federation.deploy.federation import Federation, load_federation
from sqsgd.federation.deploy.folders import node_folders, server_folder, write_known_keys
from sqsgd.federation.deploy.node import QUIET, read_node_config
from sqsgd.federation.flower import app_folder
from sqsgd.federation.node.policy import PER_RECORD
from sqsgd.privacy.ledger import Ledger
from sqsgd.training.run_folder import read_lines

COMPLETED = "finished:completed"
_ASK_EVERY = 10.0  # each call of flwr costs seconds of CPU time
_MOST_REASONS = 20  # are counted one by one: a server or a node could invent any number of them


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training, in ``run-N.json`` next to its run's folder."""

    name: str
    run_id: str = ""
    status: str = "new"
    attempts: int = 1

    def write(self, server: Path) -> None:
        content = json.dumps(asdict(self), indent=2).encode()
        write_atomically(server / f"runs/{self.name}.json", content)


def last_job(server: Path) -> Job | None:
    files = sorted((server / "runs").glob("run-*.json"), key=lambda path: (len(path.name), path.name))
    return Job(**json.loads(files[-1].read_text())) if files else None


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _flwr(server: Path, *arguments: str) -> str:
    """Return the output of a ``flwr`` command; OSError with its message if it fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, **QUIET, "PATH": path, "FLWR_HOME": str(server / "flwr")}
    options: Any = {"capture_output": True, "text": True, "check": False, "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(["flwr", *arguments], env=environment, timeout=300, **options)  # noqa: S603, S607
    except FileNotFoundError:
        raise OSError("Flower is not installed here: pip install 'sqsgd[flower]'") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"flwr {arguments[0]}: no answer from the SuperLink") from None
    text, failed = done.stdout, bool(done.returncode)
    if "json" in arguments:  # Flower reports some failures in it and exits with 0
        with contextlib.suppress(ValueError):
            answer = json.loads(text)
            failed, text = not answer.get("success", True), answer.get("error-message", text)
    if failed:
        raise OSError(f"flwr {arguments[0]} failed: {' '.join((text + done.stderr).split())[-600:]}")
    return str(done.stdout)


def register(server: Path, federation: Federation) -> None:
    """Register the keys in ``nodes/`` that the SuperLink does not have yet; waits for the SuperLink."""
    address, deadline = ("127.0.0.1", federation.link_port), time.monotonic() + federation.wait_timeout
    while True:
        try:
            socket.create_connection(address, timeout=5.0).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"no SuperLink at {address}: is ./superlink.sh running? ({error})") from None
        time.sleep(0.5)
    link = {"address": f"127.0.0.1:{federation.link_port}", "root-certificates": str(server / "ca.pem")}
    settings = {"superlink": {"default": "federation", "federation": link}}
    write_atomically(server / "flwr/config.toml", tomli_w.dumps(settings).encode())
    (server / "registered").mkdir(mode=0o700, exist_ok=True)
    for key in sorted((server / "nodes").glob("*.pub")):
        mark = server / "registered" / key.stem
        if not mark.exists() or mark.read_bytes() != key.read_bytes():
            _flwr(server, "supernode", "register", str(key), "federation")
            write_atomically(mark, key.read_bytes())
            _tell(f"registered {key.stem}")
    write_known_keys(server)


def train(folder: Path, *, app: Path | None = None, resume: bool = False) -> Job:
    """Register new nodes, train to the end, and resume a server app that died from its last checkpoint.

    It is resumed while an attempt adds rounds that move the model, so that spent budgets end the training.
    """
    server = server_folder(folder)
    federation, last = load_federation(server), last_job(server)
    unread = _undeclared(app, federation.run_config(Path(), resume=False)) if app else []
    if not resume:
        job = Job(name=f"run-{int(last.name[4:]) + 1 if last else 1}")
    elif last is None:
        raise ValueError(f"{server / 'runs'} has no run: nothing to resume")
    elif last.status == COMPLETED and len(metrics(server, last)) >= federation.rounds:
        raise ValueError(f"{server / 'runs' / last.name} is completed: nothing to resume")
    else:
        job = replace(last, attempts=last.attempts + 1)
    register(server, federation)
    if last is not None and not last.status.startswith("finished"):
        with contextlib.suppress(OSError):  # two runs must not train at once; it is over, or unknown
            _flwr(server, "stop", last.run_id, "federation")
    source, settings = str(app.absolute() if app else app_folder()), server / "flwr/run-config.toml"
    while True:
        out, before = server / "runs" / job.name, _stepped(metrics(server, job))
        config = federation.run_config(out, resume=job.attempts > 1)
        under_way = json.dumps({"out": str(out), "resume": job.attempts > 1})  # for apps that declare neither
        write_atomically(server / "flwr/run.json", under_way.encode())
        settings.write_text(tomli_w.dumps({key: config[key] for key in config if key not in unread}))
        options = ("--run-config", str(settings), "--format", "json")
        submitted = json.loads(_flwr(server, "run", source, "federation", *options))
        job = replace(job, run_id=str(submitted["run-id"]), status="submitted")
        job.write(server)
        _tell(f"run {job.run_id}: attempt {job.attempts}, into {out}")
        job = _follow(server, job, federation.rounds)
        with contextlib.suppress(OSError), out.with_name(f"{job.name}.log").open("a") as file:
            file.write(_flwr(server, "log", job.run_id, "federation", "--show"))
        if job.status == COMPLETED:
            if not (out / "summary.json").exists():
                _tell(f"nothing is in {out}: the app's server does not use sqsgd.flower.SqsgdStrategy")
            return job
        if _stepped(metrics(server, job)) <= before:
            _tell(_last_error(server, job) or f"run {job.run_id} ended as {job.status}")
            return job
        _tell(f"run {job.run_id} ended as {job.status}: resuming from its checkpoint")
        job = replace(job, attempts=job.attempts + 1)


def _undeclared(app: Path, given: Mapping[str, Any]) -> list[str]:
    """Return the settings that an app does not declare; Flower refuses them."""
    if not (app / "pyproject.toml").is_file():
        raise ValueError(f"{app} is not a Flower app: it has no pyproject.toml")
    declared: Any = read_toml(app / "pyproject.toml")
    for key in ("tool", "flwr", "app", "config"):
        declared = declared.get(key, {})
    found = [key for key in given if key not in declared]
    own = [key for key in found if key not in ("out", "resume")]  # these reach its strategy in any case
    _tell(f"decided by the app itself, since its pyproject.toml lacks them: {', '.join(own) or 'nothing'}")
    return found


def _follow(server: Path, job: Job, rounds: int) -> Job:
    shown, asked = len(metrics(server, job)), time.monotonic()
    summary = server / "runs" / job.name / "summary.json"  # a resumed training removes its summary
    while not job.status.startswith("finished"):
        if time.monotonic() - asked > (1.0 if summary.exists() else _ASK_EVERY):
            try:
                found = _flwr(server, "list", "federation", "--run-id", job.run_id, "--format", "json")
                job = replace(job, status=str(json.loads(found)["runs"][0]["status"]))
                job.write(server)
            except (OSError, LookupError) as error:  # the SuperLink is restarting
                _tell(str(error))
            asked = time.monotonic()
        lines = metrics(server, job)
        for line in lines[shown:]:
            accuracy = f"  accuracy {line['accuracy']:.2%}" if line.get("accuracy") is not None else ""
            reasons = "; ".join(sorted({str(each.get("reason")) for each in line.get("rejected") or []}))
            rejected = f"  {len(line['rejected'])} rejected ({reasons})" if reasons else ""
            answers = f"  {line.get('clients', 0)} answers"
            _tell(f"round {line['round'] + 1} of {rounds}{accuracy}{answers}{rejected}")
        shown = max(shown, len(lines))
        time.sleep(0.3)
    return job


def _stepped(lines: Iterable[Mapping[str, Any]]) -> int:
    return sum(bool(line.get("stepped", line.get("clients"))) for line in lines)


def _last_error(server: Path, job: Job) -> str:
    """Return the exception with which the server app ended, and where the rest of its log is."""
    log = server / f"runs/{job.name}.log"
    text = log.read_text(errors="replace") if log.is_file() else ""
    errors = re.findall(r"(?m)^(?:\w+\.)*[A-Z]\w*: (.+)$", text)
    return f"{errors[-1][:500]}; see {log}" if errors else ""


def metrics(server: Path, job: Job) -> list[dict[str, Any]]:
    return _json_lines(server / f"runs/{job.name}/metrics.jsonl")


def read_status(folder: Path) -> dict[str, Any]:
    """What this machine knows, for JSON: in a federation's, a server's or a node's folder."""
    folder = folder.absolute()
    if (folder / "node.conf").is_file():
        ends = expiry(folder / "ca.pem").isoformat()
        return {"kind": "node", "folder": str(folder), **node_status(folder), "certificate_ends": ends}
    server = server_folder(folder)
    return {
        "kind": "server" if server == folder else "federation",
        "folder": str(folder),
        "keys": sorted(path.stem for path in (server / "nodes").glob("*.pub")),
        "nodes": [node_status(node) for node in node_folders(folder)],
        "run": run_status(server),
        "certificate_ends": expiry(server / "server.pem").isoformat(),
    }


def node_status(node: Path) -> dict[str, Any]:
    state, found = node / "state", dict[str, Any]()
    try:
        settings = read_node_config(node)
        state = Path(settings["state-dir"])
        ledger = Ledger(state / "ledger", witness=settings.get("witness"))
        cap = min(ledger.max_epsilon, settings.get(PER_RECORD, settings.get("max-epsilon", 0.0)))
        found["unit"] = ledger.unit
        found["epsilon_spent"], found["epsilon_cap"] = rounded_up(ledger.spent), cap
        found["epsilon_left"] = max(0.0, rounded_down(Fraction(cap) - ledger.spent))
        found["ledger"] = ledger.interrupted or "good"
    except (ValueError, OSError) as error:  # also LedgerDamaged
        found = dict.fromkeys(("epsilon_spent", "epsilon_cap", "epsilon_left"))
        found["ledger"] = f"NOT GOOD: {error}"
    answers, refusals = _json_lines(state / "answers.jsonl"), _json_lines(state / "refusals.jsonl")
    zeros = [answer["zero"] for answer in answers if answer.get("zero")]
    told = (each.get("told") or "code not allowed" for each in refusals)
    return {
        "name": node.name,
        **found,
        "answers": len(answers),
        "zeros": len(zeros),
        "last_zero": zeros[-1] if zeros else "",
        "refusals": len(refusals),
        "refusals_by_reason": _counted(told),
        "last_refusal": refusals[-1].get("reason", "") if refusals else "",
        "bytes_up": sum(int(answer.get("payload_bytes", 0)) for answer in answers),
    }


def run_status(server: Path) -> dict[str, Any] | None:
    """Return the last training, or None if there was none."""
    if (job := last_job(server)) is None:
        return None
    lines = metrics(server, job)
    measured = [line["accuracy"] for line in lines if line.get("accuracy") is not None]
    rejected = [each.get("reason") for line in lines for each in line.get("rejected") or []]
    return {
        "id": job.run_id,
        "folder": str(server / "runs" / job.name),
        "status": job.status,
        "attempts": job.attempts,
        "problem": "" if job.status in ("submitted", COMPLETED) else _last_error(server, job),
        "round": len(lines),
        "rounds_stepped": _stepped(lines),
        "rounds": load_federation(server).rounds,
        "accuracy": measured[-1] if measured else None,
        "epsilon_total": lines[-1].get("epsilon_total") if lines else None,
        "answers": sum(int(line.get("clients", 0)) for line in lines),
        "rejected": len(rejected),
        "rejected_by_reason": _counted(rejected),
        **{way: sum(line.get(f"{way}_total") or 0 for line in lines) for way in ("bytes_up", "bytes_down")},
    }


def _counted(reasons: Iterable[object]) -> dict[str, int]:
    found = Counter(map(str, reasons)).most_common()
    rest = sum(count for _, count in found[_MOST_REASONS:])
    return {**dict(found[:_MOST_REASONS]), **({"other reasons": rest} if rest else {})}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file. A line that is still being written, or was cut off, is skipped."""
    with path.open("rb") if path.exists() else io.BytesIO() as file:
        return [line for line in read_lines(file) if line is not None]
