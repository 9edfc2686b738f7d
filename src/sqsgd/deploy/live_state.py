"""The live state in a federation's folder: its nodes, running processes, and how to end them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqsgd.deploy import processes
from sqsgd.deploy.processes import Process

_PATIENCE = 60.0  # seconds for a supervisor to end after SIGTERM: its nodes first, then the server
SERVER_PARTS = ("superlink", "superexec", "gate")
_AFTER_EXIT = 600
"""Letters that a program of Flower may still write after the message about its exit."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def refuse_leftovers(folder: Path) -> None:
    """Raise ValueError if processes of an earlier supervisor still run."""
    state = read_state(folder)
    if state is not None and (left := processes.marked(state["mark"])):
        raise ValueError(
            f"processes of an earlier `up` still run ({len(left)} of them): "
            f"end them with `sqsgd deploy down {folder}`"
        )


def read_state(folder: Path) -> dict[str, Any] | None:
    """The state that the last supervisor wrote; None before the first ``up``."""
    return read_json(folder / "live/state.json")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no file."""
    return json.loads(path.read_text()) if path.exists() else None


def node_folders(folder: Path) -> list[Path]:
    """The folders of the nodes on this machine, in the order of their numbers."""
    return sorted((folder / "nodes").glob("node-*"), key=lambda path: (len(path.name), path.name))


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines. A line that is still being written, or that a crash or a full disk
    cut off, is skipped, together with the line that was then appended to it."""
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
    """The process that supervises a federation; None if it is not up."""
    state = read_state(folder)
    supervisor = None if state is None else Process(**state["supervisor"])
    return supervisor.pid if supervisor is not None and supervisor.alive else None


def tail(log: Path, most: int = 500, start: int = 0) -> str:
    """The end of a log from byte ``start`` on, on one line and without colour codes."""
    try:
        text = log.read_bytes()[start:].decode(errors="replace")
        return " ".join(_COLOURS.sub("", text).split())[-most:]
    except FileNotFoundError:
        return "no log"


def exit_reason(log: Path, most: int = 500, start: int = 0) -> str:
    """Why the program that wrote a log from byte ``start`` on ended: Flower's message, else the log's end."""
    text = tail(log, 20_000, start)
    _, found, last = text.rpartition("Exit Code: ")
    reason, _, after = last.partition(" For more information, visit")
    if not found or len(after) > _AFTER_EXIT:  # the exit was another's, such as an app's
        return text[-most:]
    return f"Exit Code: {reason}"[:most]


def in_stages(running: Iterable[tuple[str, Process]]) -> list[list[Process]]:
    """The order in which parts are ended: nodes first, which sign off at a server that still runs.

    A node that did not sign off is refused until its last heartbeat has timed out.
    """
    nodes, server = list[Process](), list[Process]()
    for name, process in running:
        (server if name in SERVER_PARTS else nodes).append(process)
    return [nodes, server]


def free_port() -> int:
    """An unused port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def down(folder: Path) -> int:
    """End a federation: its supervisor, its nodes, its server. Returns the number of processes that ran."""
    state = read_state(folder)
    if state is None:
        return 0
    recorded = [
        (name, Process(pid=part["pid"], started=part["started"]))
        for name, part in state["parts"].items()
        if part["pid"] is not None
    ]
    supervisor = Process(**state["supervisor"])
    count = supervisor.alive + sum(process.alive for _, process in recorded)
    if supervisor.alive:
        os.kill(supervisor.pid, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        while supervisor.alive and time.monotonic() < deadline:
            time.sleep(0.1)
        if supervisor.alive:
            os.kill(supervisor.pid, signal.SIGKILL)
    processes.end(in_stages(recorded), state["mark"])
    return count
