"""The folder of a run: configuration, one line of metrics per round, checkpoint, model and summary.

Every engine writes the same files: ``sqsgd train``, Flower's strategy, and a study that has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sqsgd._internal.files import write_atomically
from sqsgd.training.state import State

CONFIG, METRICS, SUMMARY = "config.toml", "metrics.jsonl", "summary.json"
MODEL, CHECKPOINT, REPORT = "model.safetensors", "checkpoint.safetensors", "report.html"
SWEEP = "sweep.toml"
"""In the folder of a sweep, which holds the folders of its runs."""
BEGUN = "begun"
"""The number of the last round that was begun, for runs whose reports cannot be made twice."""


def save_state(folder: Path, state: State, about: Mapping[str, Any]) -> None:
    """Write a checkpoint, whole or not at all, with what ``about`` says of its run."""
    from safetensors.numpy import save  # in an extra

    arrays: dict[str, Any] = {"weights": state.weights}
    arrays |= {f"optimizer.{name}": np.asarray(value) for name, value in state.optimizer.items()}
    arrays |= {f"residual.{client}": residual for client, residual in state.residuals.items()}
    numbers = {
        "round": state.round,
        "bound": state.bound.hex(),
        "about": dict(about),
        "spent": {str(client): count for client, count in state.spent.items()},
    }
    write_atomically(folder / CHECKPOINT, save(arrays, {"sqsgd": json.dumps(numbers)}))


def load_state(folder: Path) -> tuple[State, dict[str, Any]]:
    """The last checkpoint, and what was saved about its run."""
    from safetensors import SafetensorError, safe_open

    path = folder / CHECKPOINT
    if not path.exists():
        raise ValueError(f"{folder} holds no {CHECKPOINT}: there is nothing to resume")
    try:
        with safe_open(path, framework="np") as file:
            numbers = json.loads(file.metadata()["sqsgd"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = State(
            round=numbers["round"],
            weights=arrays["weights"],
            bound=float.fromhex(numbers["bound"]),
            optimizer=_named(arrays, "optimizer."),
            residuals={int(client): value for client, value in _named(arrays, "residual.").items()},
            spent={int(client): count for client, count in numbers["spent"].items()},
        )
        return state, dict(numbers["about"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): start again with another --out") from None


def _named(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


class RunFolder:
    """The files of one run. One process at a time writes them."""

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
    def finished(self) -> bool:
        """Whether all rounds were done, and no further one was begun since."""
        return (self.path / SUMMARY).exists()

    def check_free(self) -> None:
        """Raise ValueError if a new run cannot use this folder, or would replace files in it."""
        path = self.path
        taken = next((place for place in (path, *path.parents) if place.is_file()), None)
        if taken is not None:
            raise ValueError(f"out = {str(path)!r}: {taken} is a file; name a folder that can be created")
        if (path / CONFIG).exists() and (self.begun or self.metrics.exists()):
            raise ValueError(f"{path} holds a run already: --resume it, or choose another --out")
        if (path / SWEEP).exists():
            raise ValueError(f"{path} holds a sweep: choose another --out")
        for name in (METRICS, CONFIG, MODEL, SUMMARY, REPORT):
            empty = name == METRICS and self.metrics.exists() and not self.metrics.stat().st_size
            if (path / name).exists() and not empty:
                raise ValueError(f"{path} holds a {name}, which a run would replace: choose another --out")

    def begin(self, state: State, about: Mapping[str, Any], config: str) -> None:
        """The first checkpoint, and the configuration."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics.write_bytes(b"")
        self.save(state, about)
        self.write_config(config)  # last: now the run can be resumed

    def write_config(self, config: str) -> None:
        """Write the configuration, as TOML."""
        write_atomically(self.path / CONFIG, config.encode())

    def load(self) -> tuple[State, dict[str, Any]]:
        """The last checkpoint's state, and what was saved about it."""
        return load_state(self.path)

    def keep_rounds(self, rounds: int) -> None:
        """Drop the metrics of later rounds, which will be repeated, and the summary; needs ``held``."""
        file = self._held_file()
        file.seek(0)
        lines = itertools.islice(read_lines(file), rounds)
        self.lines = [line for line in lines if line is not None]
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
        save_state(self.path, state, about)

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
        from safetensors.numpy import save

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


def new_folder(name: str, place: Path = Path("runs")) -> Path:
    """Create ``place/name-DATE-TIME``, with ``-2``, ``-3``, ... appended if that name is taken.

    Guarantees
    ----------
    * No two callers get the same folder:
      tests/training/test_run_folder.py::test_many_at_once_get_one_folder_each.
    """
    wanted = f"{name.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file, but runs go into a folder of that name; choose one with --out")
    place.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = place / (wanted if number == 1 else f"{wanted}-{number}")
        try:
            folder.mkdir()  # atomic: only one process can create it
        except FileExistsError:
            continue
        return folder
    raise AssertionError  # itertools.count does not end
