"""Child processes that can be found and ended even after their parent crashed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "SQSGD_DEPLOYMENT"
"""Environment variable that identifies every process of a deployment, grandchildren included."""
_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process, identified by its number and start time: the number alone may be reused."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether this process still runs."""
        return start_time(self.pid) == self.started


def start_time(pid: int) -> str | None:
    """When a process was started, as the system reports it; None if there is none, or only a zombie.

    >>> start_time(os.getpid()) == start_time(os.getpid()) != None
    True
    """
    if (_PROC / "self/stat").exists():
        try:
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    found = subprocess.run(  # noqa: S603
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = found.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def start(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str], mark: str
) -> subprocess.Popen[bytes]:
    """Start a child in its own session, so that it and its children can be ended together."""
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**environment, MARK: mark},
            start_new_session=True,
        )


def marked(mark: str) -> list[int]:
    """Every process with a deployment's mark; empty on a system without /proc."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and start_time(int(entry.name)):
                found.append(int(entry.name))
    return found


def end(stages: Sequence[Iterable[Process]], mark: str, patience: float = 10.0) -> list[int]:
    """End processes, one stage after another, then all with the mark. Returns the numbers of those killed.

    A stage is over when its processes have ended: SIGTERM first, then, after ``patience`` seconds, SIGKILL.
    """
    killed = list[int]()
    for stage in stages:
        killed += _end_all([process for process in stage if process.alive], set, patience)
    return killed + _end_all([], lambda: set(marked(mark)), patience)


def _end_all(ours: list[Process], others: Callable[[], set[int]], patience: float) -> list[int]:
    deadline, asked, killed = time.monotonic() + patience, False, list[int]()
    while left := {*others(), *(process.pid for process in ours if process.alive)}:
        late = time.monotonic() >= deadline
        if late or not asked:
            number, asked = signal.SIGKILL if late else signal.SIGTERM, True
            for process in ours:
                if process.alive:
                    signal_group(process.pid, number)
            for pid in left:
                _signal(pid, number)
            killed += [pid for pid in left if late and pid not in killed]
        _reap(ours)
        time.sleep(0.1)
    return killed


def _reap(processes: Iterable[Process]) -> None:
    for process in processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def signal_group(pid: int, number: int) -> None:
    """Signal a process and its children; nothing if there is none."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
