"""What a node remembers from one round to the next: the residual, its last report, the model, the ledger.

In a folder of the node's own (``state-dir``), on the disk before a report leaves. In a simulation without
one, in Flower's ``context.state``, which a restarted node has lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.app import ConfigRecord, Context
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.files import durable
from sqsgd.flower.wire import Request, Structure
from sqsgd.ledger.account import Ledger
from sqsgd.node import notes
from sqsgd.node.policy import Refused

_RECORD = "sqsgd.state"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What is remembered of one training."""

    name: str
    terms: Mapping[str, Any]
    """What may not change while the training lasts."""
    epsilon: float
    """Of its last report; no later one may spend more."""
    round: int
    """The last one that was answered."""
    identity: str
    """Of the request that was answered."""
    payload: bytes
    """The report itself: the same request gets the same bytes, which tell nobody anything new."""
    residual: Vector | None = None
    model: tuple[Structure, Vector] | None = None
    """The model of that round, where the server may send differences."""

    def to_bytes(self) -> bytes:
        """For a file."""
        arrays: dict[str, Any] = {"payload": np.frombuffer(self.payload, np.uint8)}
        about = {
            "name": self.name,
            "terms": dict(self.terms),
            "epsilon": self.epsilon.hex(),
            "round": self.round,
            "identity": self.identity,
        }
        if self.residual is not None:
            arrays["residual"] = self.residual
        if self.model is not None:
            structure, arrays["weights"] = self.model
            about["shapes"] = {name: list(shape) for name, shape in structure.shapes.items()}
            about["order"] = list(structure.order)
            arrays |= {f"constant.{name}": np.asarray(v) for name, v in structure.constants.items()}
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        content = save(arrays)
        return hashlib.blake2b(content, digest_size=32).digest() + content

    @classmethod
    def from_bytes(cls, content: bytes) -> Kept:
        """The inverse; raises ValueError where the bytes are damaged."""
        check, content = content[:32], content[32:]
        if hashlib.blake2b(content, digest_size=32).digest() != check:
            raise ValueError("its checksum is wrong")
        try:
            arrays = load(content)
            about = json.loads(arrays["about"].tobytes())
            model = None
            if "weights" in arrays:
                structure = Structure(
                    shapes={name: tuple(shape) for name, shape in about["shapes"].items()},
                    constants={
                        name.removeprefix("constant."): value
                        for name, value in arrays.items()
                        if name.startswith("constant.")
                    },
                    order=tuple(about["order"]),
                )
                model = structure, arrays["weights"]
            return cls(
                name=about["name"],
                terms=about["terms"],
                epsilon=float.fromhex(about["epsilon"]),
                round=about["round"],
                identity=about["identity"],
                payload=arrays["payload"].tobytes(),
                residual=arrays.get("residual"),
                model=model,
            )
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from None


class NodeState(ABC):
    """Where a node keeps what it remembers."""

    @abstractmethod
    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else of this node reads or writes it meanwhile."""

    @abstractmethod
    def read(self, name: str) -> Kept | None:
        """What is remembered of a training; None where it is new."""

    @abstractmethod
    def write(self, kept: Kept) -> None:
        """Remember it; on return it outlives a crash, where the state does at all."""

    @abstractmethod
    def pay(self, scheme: Scheme, request: Request, max_epsilon: float) -> None:
        """Write the report's cost down; raises ReportRefused or Refused where it must not leave."""

    @abstractmethod
    def note(self, kind: str, entry: Mapping[str, object]) -> None:
        """A line for people: ``answers`` or ``refusals``."""


@final
class FolderState(NodeState):
    """A node's own folder: ``ledger``, ``tasks/``, ``answers.jsonl`` and ``refusals.jsonl``."""

    def __init__(self, folder: Path, *, ledger: bool = True) -> None:
        """``ledger=False``: only for a simulation, where nothing is protected."""
        self.folder, self._ledger = folder, ledger
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "tasks").mkdir(exist_ok=True, mode=0o700)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with durable.locked(self.folder / "tasks", os.O_RDONLY):
            yield

    def _path(self, name: str) -> Path:
        return self.folder / "tasks" / hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    def read(self, name: str) -> Kept | None:
        path = self._path(name)
        try:
            return Kept.from_bytes(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise Refused(
                f"{path} is damaged: {error}. Delete it to go on: the residual of {name!r} is lost with it, "
                "and rounds that the ledger has are not answered again"
            ) from None

    def write(self, kept: Kept) -> None:
        path = self._path(kept.name)
        durable.put(durable.prepared(path, kept.to_bytes()), path)

    def open_ledger(self, max_epsilon: float) -> Ledger:
        """The node's ledger, made at first use; a lower cap than before is kept, a higher one ignored."""
        path = self.folder / "ledger"
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # another process was quicker
                return Ledger.create(path, max_epsilon=max_epsilon)  # refuses where there was one
        ledger = Ledger(path)
        if max_epsilon < ledger.max_epsilon:
            ledger.lower_cap(max_epsilon)
        return ledger

    def pay(self, scheme: Scheme, request: Request, max_epsilon: float) -> None:
        if self._ledger:
            self.open_ledger(max_epsilon).spend_for(scheme, request.task, name=request.name)

    def note(self, kind: str, entry: Mapping[str, object]) -> None:
        notes.note(self.folder, kind, entry)


@final
class ContextState(NodeState):
    """Flower's own memory of a node, for simulations: lost with the run."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def _record(self) -> ConfigRecord:
        if _RECORD not in self._context.state:
            self._context.state[_RECORD] = ConfigRecord()
        record = self._context.state[_RECORD]
        assert isinstance(record, ConfigRecord)  # noqa: S101
        return record

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        yield

    def read(self, name: str) -> Kept | None:
        content = self._record().get(f"kept {name}")
        return Kept.from_bytes(content) if isinstance(content, bytes) else None

    def write(self, kept: Kept) -> None:
        self._record()[f"kept {kept.name}"] = kept.to_bytes()

    def pay(self, scheme: Scheme, request: Request, max_epsilon: float) -> None:
        record = self._record()
        spent = Fraction(str(record.get("spent", "0"))) + Fraction(scheme.privacy.epsilon)
        if spent > max_epsilon:
            raise Refused(f"epsilon {float(spent):g} would be spent, above max-epsilon = {max_epsilon:g}")
        record["spent"] = str(spent)

    def note(self, kind: str, entry: Mapping[str, object]) -> None:
        pass  # the log has it
