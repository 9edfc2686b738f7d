"""Runs a federation on one machine: starts its parts in order, restarts those that exit, ends them all."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from subprocess import Popen
from typing import Any

from sqsgd.deploy import processes, submission
from sqsgd.deploy.federation import NAME, Federation, load_federation
from sqsgd.deploy.folders import node_folders
from sqsgd.deploy.live_state import SERVER_PARTS, exit_reason, in_stages, refuse_leftovers, tail
from sqsgd.deploy.node import free_port
from sqsgd.deploy.processes import Process
from sqsgd.files.durable import write_atomically

_MAX_WAIT = 15.0
_START_TIMEOUT = 180.0


@dataclass
class Part:
    """One program of the federation and its state."""

    name: str
    command: list[str | Path]
    environment: dict[str, str]
    log: Path
    log_start: int = 0
    """Where the log of the running or last process begins: those before it wrote into the same file."""
    child: Popen[bytes] | None = None
    process: Process | None = None
    restarts: int = 0
    quick_exits: int = 0
    last_exit: int | None = None
    since: float = 0.0
    start_at: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The entry in live/state.json."""
        return {
            "pid": self.process.pid if self.process else None,
            "started": self.process.started if self.process else None,
            "restarts": self.restarts,
            "last_exit": self.last_exit,
            "log": str(self.log),
        }


class Supervisor:
    """Starts and watches the parts of one federation; ``live/state.json`` always has their state."""

    def __init__(
        self, folder: Path, tell: Callable[[str], None], stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.folder, self.live = folder.absolute(), folder.absolute() / "live"
        self.federation: Federation = load_federation(self.folder)
        self.mark = secrets.token_hex(16)
        self.parts: dict[str, Part] = {}
        self.address = ""
        self._tell_user, self._stop, self._lock = tell, stop, threading.RLock()
        self._stopping = threading.Event()
        self._watching: threading.Thread | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Supervisor]:
        """The running federation; on exit all of its processes have ended. Only one runs per folder."""
        if shutil.which("flower-superlink", path=submission.environment(self.folder)["PATH"]) is None:
            raise ValueError("Flower is not installed here: pip install 'sqsgd[train,flower]'")
        for place in (self.live, self.live / "logs"):
            place.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self.live / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{self.folder} is up already: see `sqsgd deploy status {self.folder}`, "
                    f"end it with `sqsgd deploy down {self.folder}`"
                ) from None
            refuse_leftovers(self.folder)
            self._tidy()
            try:
                self._start_all()
                yield self
            finally:
                self.end()
        finally:
            os.close(descriptor)

    def _tidy(self) -> None:
        """Keep the logs of the last time in ``logs/previous``: a node's log has the traceback of its app."""
        logs, previous = self.live / "logs", self.live / "logs/previous"
        shutil.rmtree(previous, ignore_errors=True)
        previous.mkdir(mode=0o700)
        for log in logs.glob("*.log"):
            if log.name != "supervisor.log":
                log.rename(previous / log.name)
        for name in ("events.jsonl", "gate.json"):
            (self.live / name).unlink(missing_ok=True)

    def end(self) -> None:
        """Stop everything; returns when no process is left."""
        self._stopping.set()
        if self._watching is not None:
            self._watching.join()
        with self._lock:
            ours = [(part.name, part.process) for part in self.parts.values() if part.process is not None]
            killed = processes.end(in_stages(ours), self.mark)
            if killed:
                self.note(f"{len(killed)} processes did not stop in time and were killed")
            for part in self.parts.values():
                if part.child is not None:
                    part.child.wait()
                part.child = part.process = None
            self._write_state()

    def note(self, text: str, **more: object) -> None:
        """Report an event to the user and to live/events.jsonl."""
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": text, **more}
        with self._lock, (self.live / "events.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._tell_user(text)

    def _start_all(self) -> None:
        server = self.folder / "server"
        shutil.copyfile(self.folder / NAME, server / NAME)
        link, door = free_port(), self.federation.port or free_port()
        self.address = f"127.0.0.1:{door}"
        base = submission.environment(server)
        serving = {**base, "SQSGD_LINK_PORT": str(link), "SQSGD_LISTEN": self.address}
        serving["SQSGD_GATE_COUNTS"] = str(self.live / "gate.json")
        self._write_state()
        for name in SERVER_PARTS:
            self._launch(self._add(name, server / f"{name}.sh", serving))
            if name == "superlink":
                self._wait_for(f"https://127.0.0.1:{link}/health", self.parts[name])
        self._register(serving)
        keys = server / "nodes"  # those of revoked nodes are elsewhere
        nodes = [path for path in node_folders(self.folder) if (keys / f"{path.name}.pub").exists()]
        if len(nodes) != self.federation.nodes:
            raise ValueError(
                f"{self.folder / NAME}: nodes = {self.federation.nodes}, but nodes/ has {len(nodes)}"
            )
        for path in nodes:
            more = {"SQSGD_SERVER": self.address, "SQSGD_NODE_PORT": str(free_port())}
            environment = {name: value for name, value in base.items() if name != "FLWR_HOME"}
            self._launch(self._add(path.name, path / "run.sh", {**environment, **more}))
        self._watching = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._watching.start()
        self._wait_for_nodes([path.name for path in nodes])
        if self._stop():
            return
        self.note(f"up: the server at {self.address}, {len(nodes)} nodes; logs in {self.live / 'logs'}")

    def _add(self, name: str, script: Path, environment: dict[str, str]) -> Part:
        self.parts[name] = Part(
            name=name, command=[script], environment=environment, log=self.live / f"logs/{name}.log"
        )
        return self.parts[name]

    def _launch(self, part: Part) -> None:
        with self._lock:
            if self._stopping.is_set() or self._stop():
                return
            part.log_start = part.log.stat().st_size if part.log.exists() else 0
            part.child = processes.start(part.command, part.log, part.environment, self.mark)
            started = processes.start_time(part.child.pid) or "over"
            part.process, part.since = Process(pid=part.child.pid, started=started), time.monotonic()
            self._write_state()

    def _register(self, environment: dict[str, str]) -> None:
        log = self.live / "logs/register.log"
        child = processes.start([self.folder / "server/register.sh"], log, environment, self.mark)
        while child.poll() is None and not self._stop():
            time.sleep(0.05)
        if child.returncode:
            raise OSError(f"the nodes' keys were not accepted: {tail(log)}")

    def _wait_for(self, address: str, part: Part) -> None:
        trust = ssl.create_default_context(cafile=str(self.folder / "server/ca.pem"))
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline and not self._stop():
            assert part.child is not None  # noqa: S101
            if (code := part.child.poll()) is not None:
                raise OSError(f"the {part.name} ended with {code}: {exit_reason(part.log)}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(address, timeout=2, context=trust)  # noqa: S310
                return
            time.sleep(0.1)
        if self._stop():
            return
        raise OSError(f"the {part.name} did not answer within {_START_TIMEOUT:g} s: {tail(part.log)}")

    def _wait_for_nodes(self, names: list[str]) -> None:
        """Wait for all nodes, so that the first round has them, but not forever."""
        deadline, missing = time.monotonic() + _START_TIMEOUT, names
        while missing and time.monotonic() < deadline and not self._stop():
            missing = [name for name in missing if "SuperNode ID" not in self.parts[name].log.read_text()]
            time.sleep(0.1)
        for name in () if self._stop() else missing:
            part = self.parts[name]
            self.note(f"{name} has not connected: {exit_reason(part.log, start=part.log_start)}", part=name)

    def _watch(self) -> None:
        """Restart what exits: at once, then after waits that double while a key is still in use."""
        while not self._stopping.wait(0.2):
            for part in self.parts.values():
                try:
                    self._check_part(part)
                except OSError as error:  # such as a full disk: it may pass
                    part.start_at = time.monotonic() + _MAX_WAIT
                    with contextlib.suppress(OSError):
                        self._tell_user(f"{part.name} cannot be restarted: {error}; trying again")

    def _check_part(self, part: Part) -> None:
        if part.child is None:
            if time.monotonic() >= part.start_at:
                part.restarts += 1
                self._launch(part)
        elif (code := part.child.poll()) is not None:
            self._after_exit(part, code)

    def _after_exit(self, part: Part, code: int) -> None:
        lived = time.monotonic() - part.since
        part.quick_exits = part.quick_exits + 1 if lived < 60 else 0
        wait = min(_MAX_WAIT, 2.0 ** (part.quick_exits - 1)) if part.quick_exits else 0.0
        if part.process is not None:  # its children end with it: two copies must not run side by side
            processes.signal_group(part.process.pid, signal.SIGKILL)
        with self._lock:
            part.child, part.process, part.last_exit = None, None, code
            part.start_at = time.monotonic() + wait
            self._write_state()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        how += f" ({exit_reason(part.log, 300, part.log_start)})" if code > 0 else ""
        self.note(f"{part.name} {how}; restarting it in {wait:g} s", part=part.name, exit=code)

    def _write_state(self) -> None:
        me = os.getpid()
        state = {
            "mark": self.mark,
            "address": self.address,
            "supervisor": {"pid": me, "started": processes.start_time(me)},
            "parts": {name: part.to_dict() for name, part in self.parts.items()},
        }
        write_atomically(self.live / "state.json", json.dumps(state, indent=2).encode())
