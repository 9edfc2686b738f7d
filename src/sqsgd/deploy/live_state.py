"""What is found in a federation's folder: its nodes, who runs, and how to end it without the supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from sqsgd.deploy import processes
from sqsgd.deploy.processes import Process

_PATIENCE = 30.0  # seconds for a supervisor that was asked to end


def refuse_left_overs(folder: Path) -> None:
    """Raise ValueError where processes of an earlier supervisor still run."""
    state = read_state(folder)
    if state is not None and (left := processes.marked(state["mark"])):
        raise ValueError(
            f"processes of an earlier `up` still run ({len(left)} of them): "
            f"end them with `sqsgd deploy down {folder}`"
        )


def read_state(folder: Path) -> dict[str, Any] | None:
    """What the last supervisor wrote; None before the first."""
    try:
        state: dict[str, Any] = json.loads((folder / "live/state.json").read_text())
    except FileNotFoundError:
        return None
    return state


def node_folders(folder: Path) -> list[Path]:
    """The nodes of a federation on this machine, in the order of their numbers."""
    return sorted((folder / "nodes").glob("node-*"), key=lambda path: (len(path.name), path.name))


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of JSON; one that is being written, or that a crash or a full disk cut off, is left
    out, and so is the line that was then written on to it."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return []
    found = []
    for line in text.split("\n")[:-1]:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                found.append(entry)
    return found


def running_supervisor(folder: Path) -> int | None:
    """The process that runs a federation; None where none does."""
    state = read_state(folder)
    supervisor = None if state is None else Process(**state["supervisor"])
    return supervisor.pid if supervisor is not None and supervisor.alive else None


def tail(log: Path, most: int = 500) -> str:
    """The end of a log in one line."""
    try:
        return " ".join(log.read_text(errors="replace").split())[-most:]
    except FileNotFoundError:
        return "no log"


def free_port() -> int:
    """A port of this machine that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def down(folder: Path) -> int:
    """End a federation: its supervisor first, who ends the rest; else all of it. Returns how many it was."""
    state = read_state(folder)
    if state is None:
        return 0
    recorded = [
        Process(pid=part["pid"], started=part["started"])
        for part in state["parts"].values()
        if part["pid"] is not None
    ]
    supervisor = Process(**state["supervisor"])
    count = sum(process.alive for process in [supervisor, *recorded])
    if supervisor.alive:
        os.kill(supervisor.pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        while supervisor.alive and time.monotonic() < deadline:
            time.sleep(0.1)
        if supervisor.alive:
            os.kill(supervisor.pid, signal.SIGKILL)
    processes.end(recorded, state["mark"])
    return count
