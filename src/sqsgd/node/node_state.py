"""What a node remembers from one round to the next: the residual, its last report, the model, the ledger."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.files import durable
from sqsgd.node.policy import Policy, Refused
from sqsgd.node.request import Request
from sqsgd.node.structure import Structure
from sqsgd.privacy.ledger import Ledger, ReportRefused

MOST_TRAININGS = 8
"""Trainings that a folder remembers. A server names them, and each takes as much as two models."""
_PLAIN = ("name", "terms", "epsilon", "round", "identity")


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a node remembers of one training: its last report and what the next one depends on."""

    name: str
    terms: Mapping[str, Any]
    """What must not change during the training."""
    epsilon: float
    """Epsilon of the last report; no later one may spend more."""
    round: int
    """The last round that was answered."""
    identity: str
    """Identity of the request that was answered."""
    payload: bytes
    """The report itself: the same request gets the same bytes, which reveal nothing new."""
    residual: Vector | None = None
    model: tuple[Structure, Vector] | None = None
    """The model of that round, if the server may send an update of it."""

    def to_bytes(self) -> bytes:
        """The content of a file, behind its checksum."""
        arrays: dict[str, Any] = {"payload": np.frombuffer(self.payload, np.uint8)}
        about = {key: getattr(self, key) for key in _PLAIN}
        about |= {"terms": dict(self.terms), "epsilon": self.epsilon.hex()}
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
        """The inverse; raises ValueError if the bytes are damaged."""
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
            plain = {key: about[key] for key in _PLAIN} | {"epsilon": float.fromhex(about["epsilon"])}
            payload, residual = arrays["payload"].tobytes(), arrays.get("residual")
            return cls(**plain, payload=payload, residual=residual, model=model)
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from None


class NodeState(ABC):
    """Where a node keeps what it remembers."""

    @abstractmethod
    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Keep other processes of this node from reading or writing it."""

    @abstractmethod
    def read(self, name: str) -> Kept | None:
        """What is kept of a training; None if it is new."""

    @abstractmethod
    def write(self, kept: Kept) -> None:
        """Keep it; a durable state survives a crash from the moment this returns."""

    @abstractmethod
    def pay(self, scheme: Scheme, request: Request) -> None:
        """Pay for a report; raises ReportRefused or Refused if it must not leave."""


@final
class FolderState(NodeState):
    """A folder on disk: ``ledger``, ``tasks/``, ``answers.jsonl`` and ``refusals.jsonl``.

    Guarantees
    ----------
    * With ``require_ledger``, no report leaves a node whose ledger is missing, and none is created:
      tests/node/test_node_state.py::test_a_folder_that_vanished_is_not_a_new_ledger.
    * It remembers the last 8 trainings, however many a server names:
      tests/node/test_node_state.py::test_a_server_does_not_fill_the_disk. Of others the residual is lost;
      rounds that are in the ledger are not answered again.
    * With a ``witness``, no report leaves a node whose whole folder was replaced by an older copy:
      tests/node/test_node_state.py::test_with_a_witness_an_older_copy_of_the_folder_is_refused.
    """

    def __init__(self, folder: Path, policy: Policy | None = None) -> None:
        """Without a policy no ledger is kept: for simulations only, where nothing is protected."""
        self.folder, self._policy = folder, policy
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
                f"{path} is damaged: {error}. Delete it to continue: this loses the residual of {name!r}; "
                "rounds that are in the ledger are not answered again"
            ) from None

    def write(self, kept: Kept) -> None:
        path = self._path(kept.name)
        durable.put(durable.prepared(path, kept.to_bytes()), path)
        others = [each for each in path.parent.iterdir() if each.name != path.name]
        others.sort(key=lambda each: each.stat().st_mtime_ns, reverse=True)
        for oldest in others[MOST_TRAININGS - 1 :]:
            oldest.unlink()

    def open_ledger(self, policy: Policy) -> Ledger:
        """The node's ledger, created at first use unless required. Its cap can be lowered, not raised."""
        path = self.folder / "ledger"
        if not path.exists():
            if policy.require_ledger:
                raise ReportRefused(
                    f"{path} is missing, and require-ledger = true: it was lost or moved, its disk is not "
                    "mounted, or it was never created. A new ledger would forget what was spent: see "
                    "docs/deploy.md on lost ledgers"
                )
            with contextlib.suppress(FileExistsError):  # another process created it first
                return Ledger.create(path, max_epsilon=policy.max_epsilon, witness=policy.witness)
        ledger = Ledger(path, witness=policy.witness)
        if policy.max_epsilon < ledger.max_epsilon:
            ledger.lower_cap(policy.max_epsilon)
        return ledger

    def pay(self, scheme: Scheme, request: Request) -> None:
        if self._policy is not None:
            self.open_ledger(self._policy).spend_for(scheme, request.task, name=request.name)
