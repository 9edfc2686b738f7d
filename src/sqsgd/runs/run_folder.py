"""The folder of a run: one metrics line per round, the checkpoint, and at the end the model and a summary."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from safetensors.numpy import save

from sqsgd.files.durable import write_atomically
from sqsgd.training import State
from sqsgd.training.run_folder import CHECKPOINT as CHECKPOINT
from sqsgd.training.run_folder import load_state, save_state

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
MODEL = "model.safetensors"
SWEEP = "sweep.toml"
"""In the folder of a sweep, which holds the folders of its runs."""
BEGUN = "begun"
"""The number of the last round that was begun, for runs whose reports cannot be made twice."""


class RunFolder:
    """The files of one run, of any engine. One process at a time writes them."""

    def __init__(self, path: Path) -> None:
        self.path, self.metrics = path, path / METRICS
        self.lines: list[dict[str, Any]] = []
        """The metrics of all rounds so far, while the folder is held."""
        self._file: BinaryIO | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Prevent other processes from training in this folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.metrics.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another process is training in {self.path}") from None
            self._file = file
            try:
                yield
            finally:
                self._file = None

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint. A run that was killed before its first one starts again."""
        return (self.path / CHECKPOINT).exists()

    @property
    def federation(self) -> bool:
        """Whether the checkpoint is of Flower's strategy, which writes no config.toml."""
        return self.begun and "fingerprint" in self.load()[1]

    @property
    def finished(self) -> bool:
        """Whether all rounds were done, and no further one was begun since."""
        return (self.path / SUMMARY).exists()

    def begin(self, state: State, about: Mapping[str, Any], config: str = "") -> None:
        """The first checkpoint, and the configuration if there is one."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics.write_bytes(b"")
        self.save(state, about)
        if config:
            write_atomically(self.path / CONFIG, config.encode())  # last: now the run can be resumed

    def load(self) -> tuple[State, dict[str, Any]]:
        """The last checkpoint's state, and what was saved about it."""
        return load_state(self.path)

    def keep_rounds(self, rounds: int) -> None:
        """Drop the metrics of later rounds, which will be repeated, and the summary; needs ``held``."""
        file = self._held_file()
        file.seek(0)
        self.lines = [line for line in islice(read_lines(file), rounds) if line is not None]
        if len(self.lines) < rounds:
            raise ValueError(
                f"{self.metrics} is damaged: only {len(self.lines)} of the checkpoint's {rounds} rounds can "
                "be read"
            )
        file.truncate()
        (self.path / SUMMARY).unlink(missing_ok=True)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add the metrics of one round; ``save`` puts them on the disk. Needs ``held``."""
        file = self._held_file()
        file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        file.flush()
        self.lines.append(dict(line))

    def save(self, state: State, about: Mapping[str, Any]) -> None:
        """Replace the checkpoint, whole or not at all, with the metrics on the disk before it."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        save_state(self.path, state, dict(about))

    def begin_round(self, round: int) -> None:
        """Note that reports of this round may leave their clients."""
        write_atomically(self.path / BEGUN, str(round).encode())

    @property
    def last_begun(self) -> int:
        """The last round that ``begin_round`` noted; -1: none."""
        path = self.path / BEGUN
        return int(path.read_text()) if path.exists() else -1

    def finish(self, model: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
        """Write the trained model's arrays and the summary."""
        write_atomically(self.path / MODEL, save(dict(model)))
        content = json.dumps(summary, indent=2, allow_nan=False).encode()
        write_atomically(self.path / SUMMARY, content)

    def _held_file(self) -> BinaryIO:
        if self._file is None:
            raise RuntimeError(f"internal error: {self.path} is written without being held")
        return self._file


def read_lines(file: BinaryIO) -> Iterator[dict[str, Any] | None]:
    """The metrics of each round, None for an invalid line. Stops at the end, or at an incomplete line."""
    while (line := file.readline()).endswith(b"\n"):
        yield read_object(line)


def read_object(content: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
