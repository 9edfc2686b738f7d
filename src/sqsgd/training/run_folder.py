"""The folder of a run, of every engine: configuration, metrics, checkpoint, model and summary."""

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
CENTRAL = "central.json"  # what the central guarantee rests on, for tools/check_certificate.py
MODEL, CHECKPOINT, REPORT = "model.safetensors", "checkpoint.safetensors", "report.html"
SWEEP = "sweep.toml"  # in the folder of a sweep
BEGUN = "begun"  # the number of the last round that was begun, for reports that cannot be made twice


class RunFolder:
    """The files of one run. One process at a time writes them."""

    def __init__(self, path: Path) -> None:
        self.path, self.metrics = path, path / METRICS
        self.lines: list[dict[str, Any]] = []  # the metrics of all rounds so far, while it is held
        self._file: Any = None  # a BinaryIO while the folder is held

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
        return (self.path / SUMMARY).exists()

    def check_free(self) -> None:
        """Raise ValueError if a new run cannot use this folder, or would replace files in it."""
        path = self.path
        for place in (path, *path.parents):
            if place.is_file():
                raise ValueError(f"out = {str(path)!r}: {place} is a file; name a folder that can be created")
        if (path / CONFIG).exists() and (self.begun or self.metrics.exists()):
            raise ValueError(f"{path} holds a run already: --resume it, or choose another --out")
        if (path / SWEEP).exists():
            raise ValueError(f"{path} holds a sweep already: --resume it, or choose another --out")
        for name in (METRICS, CONFIG, MODEL, SUMMARY, CENTRAL, REPORT):
            if (path / name).exists() and (path / name).stat().st_size:
                raise ValueError(f"{path} holds a {name}, which a run would replace: choose another --out")

    def begin(self, state: State, about: Mapping[str, Any], config: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics.write_bytes(b"")
        (self.path / BEGUN).unlink(missing_ok=True)
        self.save(state, about)
        self.write_config(config)  # last: now the run can be resumed

    def write_config(self, config: str) -> None:
        write_atomically(self.path / CONFIG, config.encode())

    def load(self) -> tuple[State, dict[str, Any]]:
        """The last checkpoint's state, and what was saved about its run."""
        from safetensors import SafetensorError, safe_open  # in an extra

        path = self.path / CHECKPOINT
        if not path.exists():
            raise ValueError(f"{self.path} holds no {CHECKPOINT}: nothing to resume")
        try:
            with safe_open(path, framework="np") as file:
                numbers = json.loads(file.metadata()["sqsgd"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            kept: dict[str, dict[str, Any]] = {"optimizer": {}, "residual": {}}
            for name, array in arrays.items():
                kind, _, which = name.partition(".")
                kept.setdefault(kind, {})[which] = array
            state = State(
                round=numbers["round"],
                weights=arrays["weights"],
                bound=float.fromhex(numbers["bound"]),
                optimizer=kept["optimizer"],
                residuals={int(client): value for client, value in kept["residual"].items()},
                spent={int(client): count for client, count in numbers["spent"].items()},
            )
            return state, dict(numbers["about"])
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}): start again with another --out") from None

    def keep_rounds(self, rounds: int) -> None:
        """Drop the metrics of later rounds, which will be repeated, and the summary; needs ``held``."""
        file = self._file
        file.seek(0)
        lines = itertools.islice(read_lines(file), rounds)
        self.lines = [line for line in lines if line is not None]
        if len(self.lines) < rounds:
            found = f"only {len(self.lines)} of the checkpoint's {rounds} rounds can be read"
            raise ValueError(f"{self.metrics} is damaged: {found}")
        file.truncate()
        for name in (SUMMARY, CENTRAL):
            (self.path / name).unlink(missing_ok=True)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add the metrics of one round; ``save`` puts them on the disk. Needs ``held``."""
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.lines.append(dict(line))

    def save(self, state: State, about: Mapping[str, Any]) -> None:
        """Replace the checkpoint, whole or not at all, with the metrics on the disk before it."""
        from safetensors.numpy import save

        if self._file is not None:
            os.fsync(self._file.fileno())
        arrays: dict[str, Any] = {"weights": state.weights}
        arrays |= {f"optimizer.{name}": np.asarray(value) for name, value in state.optimizer.items()}
        arrays |= {f"residual.{client}": residual for client, residual in state.residuals.items()}
        numbers = {"round": state.round, "bound": state.bound.hex(), "about": about, "spent": state.spent}
        write_atomically(self.path / CHECKPOINT, save(arrays, {"sqsgd": json.dumps(numbers)}))

    def begin_round(self, round: int) -> None:
        """Note that reports of this round may leave their clients."""
        write_atomically(self.path / BEGUN, str(round).encode())

    @property
    def last_begun(self) -> int:
        """The last round that ``begin_round`` noted; -1: none."""
        path = self.path / BEGUN
        return int(path.read_text()) if path.exists() else -1

    def finish(
        self,
        model: Mapping[str, Any],
        summary: Mapping[str, Any],
        certificate: Mapping[str, Any] | None = None,
    ) -> None:
        from safetensors.numpy import save

        if certificate is not None:
            write_atomically(self.path / CENTRAL, json.dumps(certificate, indent=1).encode())
        write_atomically(self.path / MODEL, save(dict(model)))
        write_atomically(self.path / SUMMARY, json.dumps(summary, indent=2, allow_nan=False).encode())


def read_lines(file: BinaryIO) -> Iterator[dict[str, Any] | None]:
    """The metrics of each round, None for an invalid line. Stops at one that is still being written."""
    while (line := file.readline()).endswith(b"\n"):
        yield read_object(line)


def read_object(content: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def new_folder(name: str, place: Path = Path("runs")) -> Path:
    """Create ``place/name-DATE-TIME``, with ``-2``, ``-3``, ... appended if that name is taken.

    No two callers get one folder: tests/training/test_run_folder.py::test_many_at_once_get_one_folder_each.
    """
    folder = wanted = place / f"{Path(name).name.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file, but runs go into a folder of that name; choose one with --out")
    for number in itertools.count(2):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)  # atomic: only one process can create it
            break
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder
