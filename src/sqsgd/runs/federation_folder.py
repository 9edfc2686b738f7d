"""The server's run folder: a line a round, a checkpoint to resume from, the model and a summary."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from safetensors.numpy import save

from sqsgd.federated import State
from sqsgd.files.durable import write_atomically
from sqsgd.runs.checkpoint import NAME as CHECKPOINT
from sqsgd.runs.checkpoint import load_state, save_state


class RunFolder:
    """The files of one training at the server. One process at a time writes them."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_absolute():
            raise ValueError(f"out = {str(folder)!r} must be an absolute path")
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.metrics = folder / "metrics.jsonl"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Against a second server that would train in the same folder."""
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"another process is training in {self.folder}") from None
            yield

    @property
    def begun(self) -> bool:
        """There is a checkpoint. A training that was killed before its first one begins anew."""
        return (self.folder / CHECKPOINT).exists()

    def begin(self, state: State, about: Mapping[str, Any]) -> None:
        """Start a training; refuses a folder that holds one."""
        if self.begun:
            raise ValueError(
                f"out = {str(self.folder)!r} holds a training: set resume = true to go on with it, "
                "or choose another folder"
            )
        self.metrics.write_bytes(b"")
        self.save(state, about)

    def resume(self) -> tuple[State, dict[str, Any]]:
        """The last checkpoint; lines of rounds after it are dropped, for they will be made anew."""
        state, about = load_state(self.folder)
        lines = self.metrics.read_bytes().splitlines(keepends=True) if self.metrics.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        if len(whole) < state.round:
            raise ValueError(
                f"{self.metrics} has {len(whole)} of the checkpoint's {state.round} rounds: it was damaged"
            )
        write_atomically(self.metrics, b"".join(whole[: state.round]))
        (self.folder / "summary.json").unlink(missing_ok=True)
        return state, about

    def save(self, state: State, about: Mapping[str, Any]) -> None:
        """Write the checkpoint, whole or not at all."""
        save_state(self.folder, state, dict(about))

    def write(self, line: Mapping[str, Any]) -> None:
        """One round, on the disk before its checkpoint."""
        with self.metrics.open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """All rounds."""
        with self.metrics.open() as file:
            return [json.loads(line) for line in file]

    def finish(self, model: ArrayRecord, summary: Mapping[str, Any]) -> None:
        """The trained model and what was reached."""
        arrays = {name: array.numpy() for name, array in model.items()}
        write_atomically(self.folder / "model.safetensors", save(arrays))
        content = json.dumps(summary, indent=2, allow_nan=False).encode()
        write_atomically(self.folder / "summary.json", content)
