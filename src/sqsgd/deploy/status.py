"""The status of a federation, from its processes, the nodes' ledgers and the files of its runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqsgd.deploy import submission
from sqsgd.deploy.certificates import expiry
from sqsgd.deploy.federation import load_federation
from sqsgd.deploy.folders import node_folders
from sqsgd.deploy.live_state import SERVER_PARTS, json_lines, read_json, read_state, running_supervisor
from sqsgd.deploy.node import read_node_config
from sqsgd.deploy.processes import Process
from sqsgd.node.server import nothing_trained
from sqsgd.numerics.epsilon_sums import rounded_down, rounded_up
from sqsgd.privacy.ledger import Ledger

_MOST_REASONS = 20
"""Reasons that are counted one by one: a server or a node could invent any number of them."""


def read_status(folder: Path) -> dict[str, Any]:
    """Everything that this machine knows, for JSON: in a federation's, a server's or a node's folder."""
    folder = folder.absolute()
    if (folder / "node.conf").is_file():
        ends = expiry(folder / "ca.pem").isoformat()
        node = {"name": folder.name, **node_status(folder)}
        return {"kind": "node", "folder": str(folder), **node, "certificate_ends": ends}
    if (folder / "superlink.sh").is_file():
        return {"kind": "server", "folder": str(folder), **server_status(folder)}
    return {"kind": "federation", **_federation_status(folder)}


def server_status(server: Path) -> dict[str, Any]:
    """What a server knows: its nodes' keys, the traffic at its gate, and the last training."""
    return {
        "wire": read_json(server / "gate.json"),
        "nodes": sorted(path.stem for path in (server / "nodes").glob("*.pub")),
        "run": run_status(server),
        "certificate_ends": expiry(server / "server.pem").isoformat(),
        "rounds": load_federation(server).rounds,
    }


def _federation_status(folder: Path) -> dict[str, Any]:
    federation, state = load_federation(folder), read_state(folder) or {}
    parts = state.get("parts", {})
    supervisor = running_supervisor(folder)
    return {
        "folder": str(folder),
        "up": supervisor is not None,
        "supervisor": supervisor,
        "address": state.get("address", "") if supervisor else "",
        **{name: _part(parts.get(name)) for name in SERVER_PARTS},
        "wire": read_json(folder / "live/gate.json"),
        "nodes": [
            {"name": node.name, **_part(parts.get(node.name)), **node_status(node)}
            for node in node_folders(folder)
        ],
        "run": _with_names(run_status(folder / "server"), folder / "live/logs"),
        "events": json_lines(folder / "live/events.jsonl")[-10:],
        "certificate_ends": expiry(folder / "server/server.pem").isoformat(),
        "rounds": federation.rounds,
    }


def node_status(node: Path) -> dict[str, Any]:
    """What a node has spent, answered and refused, from its own files."""
    state = node / "state"
    try:
        settings = read_node_config(node)
        state = Path(settings["state-dir"])
        ledger = _ledger(state / "ledger", settings)
    except (ValueError, OSError) as error:  # also LedgerDamaged
        unknown = dict.fromkeys(("epsilon_spent", "epsilon_left", "epsilon_cap", "reports"))
        ledger = {**unknown, "ledger": f"NOT GOOD: {error}"}
    answers, refusals = json_lines(state / "answers.jsonl"), json_lines(state / "refusals.jsonl")
    zeros = [answer["zero"] for answer in answers if answer.get("zero")]
    return {
        **ledger,
        "answers": len(answers),
        "zeros": len(zeros),
        "last_zero": zeros[-1] if zeros else "",
        "refusals": len(refusals),
        "refusals_by_reason": _counted(each.get("told") or "code not allowed" for each in refusals),
        "last_refusal": refusals[-1].get("reason", "") if refusals else "",
        "last_answer": answers[-1].get("time", "") if answers else "",
        "bytes_up": sum(int(answer.get("payload_bytes", 0)) for answer in answers),
        "bytes_up_serialised": sum(int(answer.get("serialised_bytes", 0)) for answer in answers),
    }


def _ledger(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    if not path.exists() and settings.get("require-ledger") is not True:
        none = {"epsilon_left": None, "epsilon_cap": None, "reports": 0, "ledger": "none yet"}
        return {"epsilon_spent": 0.0, **none}
    ledger = Ledger(path, witness=settings.get("witness"))
    return {
        "epsilon_spent": rounded_up(ledger.spent),
        "epsilon_left": max(0.0, rounded_down(ledger.left)),
        "epsilon_cap": ledger.max_epsilon,
        "reports": len(ledger.entries),
        "ledger": ledger.interrupted or "good",
    }


def run_status(server: Path) -> dict[str, Any] | None:
    """The last training; None if there was none."""
    job = submission.last_job(server)
    if job is None:
        return None
    lines = submission.metrics(job.folder)
    measured = [line["accuracy"] for line in lines if line.get("accuracy") is not None]
    evaluated = [{**line["evaluation"], "round": line["round"]} for line in lines if line.get("evaluation")]
    rejected = [{**each, "round": line["round"]} for line in lines for each in line.get("rejected") or []]
    status = job.status
    if not status.startswith("finished") and not job.follower.alive:
        status = f"unknown: it was {status} when the process that followed it ended"
    sizes = {"bytes_up": "clients", "bytes_down": "asked"}  # a line has the mean over the round's clients
    return {
        "id": job.run_id,
        "folder": str(job.folder),
        "status": status,
        "attempts": job.attempts,
        "problem": nothing_trained(lines),
        "round": len(lines),
        "rounds_stepped": submission.rounds_stepped(job),
        "rounds": job.rounds,
        "accuracy": measured[-1] if measured else None,
        "evaluation": evaluated[-1] if evaluated else None,
        "epsilon": lines[-1].get("epsilon") if lines else None,
        "epsilon_total": lines[-1].get("epsilon_total") if lines else None,
        "answers": sum(int(line.get("clients", 0)) for line in lines),
        "rejected": len(rejected),
        "rejected_by_reason": _counted(each.get("reason") for each in rejected),
        "last_rejected": rejected[-5:],
        **{
            name: sum(line.get(f"{name}_total", int(line.get(name, 0)) * int(line[count])) for line in lines)
            for name, count in sizes.items()
        },
        **{  # unknown where nodes fill slots; a round's total above includes its evaluation
            name: sum(
                int(line.get(name) or 0) * int(line[count])
                + (line.get("evaluation") or {}).get(f"{name}_total", 0)
                for line in lines
            )
            for name, count in ((f"{each}_serialised", count) for each, count in sizes.items())
        },
    }


def _counted(reasons: Iterable[object]) -> dict[str, int]:
    """How often each reason occurred, the commonest first; rare ones together."""
    found = Counter(map(str, reasons)).most_common()
    rest = sum(count for _, count in found[_MOST_REASONS:])
    return {**dict(found[:_MOST_REASONS]), **({"other reasons": rest} if rest else {})}


def _with_names(run: dict[str, Any] | None, logs: Path) -> dict[str, Any] | None:
    """Replace Flower's node numbers by the nodes' names, where their logs have them."""
    if run is None:
        return None
    names = {}
    for log in logs.glob("node-*.log"):
        with log.open(errors="replace") as file:
            if found := re.search(r"SuperNode ID: (\d+)", file.read(100_000)):
                names[found[1]] = log.stem
    for each in run["last_rejected"]:
        if "node" in each:  # else it is a slot, and nobody is told which node had it
            each["node"] = names.get(str(each["node"]), each["node"])
    return run


def _part(found: dict[str, Any] | None) -> dict[str, Any]:
    found = found or {"pid": None, "restarts": 0, "last_exit": None}
    running = found["pid"] is not None and Process(pid=found["pid"], started=found["started"]).alive
    return {
        "running": running,
        "pid": found["pid"] if running else None,
        "restarts": found["restarts"],
        "last_exit": found["last_exit"],
    }
