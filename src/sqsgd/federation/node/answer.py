"""One round at a node: check the request, pay, compute, encode, remember, answer.

Also what a node remembers from one round to the next: the residual, its last report, the model, the ledger.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sqsgd._internal import files
from sqsgd._internal.checks import Vector
from sqsgd.core import Scheme
from sqsgd.core.random import Rng, secure_rng, seeded_rng
from sqsgd.federation.node.policy import Misfit, Policy, Refused, RoundAnswered, note, shortened
from sqsgd.federation.node.request import Download, Request, receive_model
from sqsgd.federation.node.structure import Structure, flatten
from sqsgd.privacy.ledger import Ledger, ReportRefused
from sqsgd.training import client_step, noise_seed

Compute: TypeAlias = Callable[[Structure, Vector], Vector]
"""Computes the gradient at the given weights, or these weights minus the trained ones."""
ZERO_FAILED = "the app failed"
ZERO_MISFIT = "the app's reply does not fit the model"
ZERO_UNENCODED = "the vector cannot be encoded; it may hold infinity or NaN"
"""Why zero was reported, in ``answers.jsonl`` and the owner's status; never told to the server."""
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
        about = {**{key: getattr(self, key) for key in _PLAIN}, "epsilon": self.epsilon.hex()}
        arrays: dict[str, Any] = {"payload": np.frombuffer(self.payload, np.uint8)}
        if self.residual is not None:
            arrays["residual"] = self.residual
        if self.model is not None:
            structure, weights = self.model
            about["order"] = list(structure.order)
            arrays |= {f"model.{name}": array for name, array in structure.sent(weights).items()}
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
            order = about.get("order")
            model = None if order is None else flatten({name: arrays[f"model.{name}"] for name in order})
            plain = {key: about[key] for key in _PLAIN} | {"epsilon": float.fromhex(about["epsilon"])}
            payload, residual = arrays["payload"].tobytes(), arrays.get("residual")
            return cls(**plain, payload=payload, residual=residual, model=model)
        except (SafetensorError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from None


class NodeState(Protocol):
    """Where a node keeps what it remembers."""

    def locked(self) -> contextlib.AbstractContextManager[Any]:
        """Keep other processes of this node from reading or writing it."""

    def read(self, name: str) -> Kept | None:
        """What is kept of a training; None if it is new."""

    def write(self, kept: Kept) -> None:
        """Keep it; a durable state survives a crash from the moment this returns."""

    def pay(self, scheme: Scheme, request: Request) -> None:
        """Pay for a report; raises ReportRefused or Refused if it must not leave."""


@final
class FolderState:
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

    def locked(self) -> contextlib.AbstractContextManager[Any]:
        return files.locked(self.folder / "tasks", os.O_RDONLY)

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
        files.put(files.prepared(path, kept.to_bytes()), path)
        others = [other for other in path.parent.iterdir() if other.name != path.name]
        others.sort(key=lambda other: other.stat().st_mtime_ns, reverse=True)
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


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulation on the experimenter's own machine: protects nobody. Only code on a node can ask for it.

    ``seed``: repeatable noise, as in ``sqsgd train``; None: noise from the operating system.
    ``folder``: holds the state of client c in the subfolder named c; None: the state is Flower's own.
    """

    seed: int | None = None
    folder: Path | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Node:
    """A client of a federation, independent of the transport.

    The order of a round is fixed: lock the state, look for a kept answer, check the request against the
    training's terms and the owner's policy, pay, and only then compute on data, encode, remember and answer.
    ``SqsgdMod`` states the guarantees that follow; tests/node/test_answer.py checks them without a transport.
    """

    policy: Policy
    state: NodeState
    client: int | None
    """The number by which the server addresses this node; None: any, in a simulation."""
    log: logging.Logger
    """The owner's log."""
    simulation: Simulation | None = None
    batch: int | None = None
    """The batch that the server asks the app for, if it names one."""
    sent_size: Callable[[bytes], int] = len
    """Bytes of a payload as the transport sends it, for ``answers.jsonl``."""

    def answer(
        self, request: Request, download: Download, compute: Compute, dry_run: Compute | None = None
    ) -> bytes:
        """The report for one request.

        Args:
          compute: computes on the node's data; called after the report is paid.
          dry_run: returns a vector as ``compute`` does, but sees no data: whether it fails may be told. It is
            called once in a training, before the first report is paid.

        Raises:
          Exception: any; ``policy.explain`` turns it into what the server is told.
        """
        self.log.info(
            "sqsgd: asked for round %d of %r: scheme %s, epsilon %g, %d bytes%s",
            request.task.round + 1, request.name, shortened(request.scheme), request.epsilon,
            request.bytes, "" if self.batch is None else f", a batch of {self.batch}",
        )  # fmt: skip
        with self.state.locked():  # from the first read to the last write: another process may run too
            kept = self.state.read(request.name)
            if kept is not None and kept.identity == request.identity:
                self._note(request, kept.payload, epsilon=0.0, again=True)
                return kept.payload
            self._check_terms(request, kept)
            held = None if kept is None or kept.model is None else (kept.round, *kept.model)
            make_scheme = Request.make_scheme if self.simulation else self.policy.scheme
            scheme, structure, weights = receive_model(download, request, held, make_scheme)
            if kept is None and dry_run is not None:
                _check_form(dry_run, structure, weights)
            # From here on, only the report may depend on data.
            self.state.pay(scheme, request)
            gradient, failed = self._compute(compute, structure, weights)
            residual = None if kept is None else kept.residual
            payload, residual, unfit = self._encode(scheme, request, gradient, residual)
            self.state.write(
                Kept(
                    name=request.name,
                    terms=_terms(request),
                    epsilon=request.epsilon,
                    round=request.task.round,
                    identity=request.identity,
                    payload=payload,
                    residual=residual,
                    model=(structure, weights) if request.keep else None,
                )
            )
            self._note(request, payload, epsilon=scheme.privacy.epsilon, zero=failed or unfit)
        return payload

    def _check_terms(self, request: Request, kept: Kept | None) -> None:
        """Raise Refused if a request does not fit this node, or the terms that the training began with."""
        if self.client is not None and not request.by_slot and request.task.client != self.client:
            raise Refused(f"client = {request.task.client} is another node: this one is {self.client}")
        self.policy.check_batch(self.batch)
        if kept is None:
            return
        name, round = request.name, request.task.round
        once = request.by_slot and self.simulation is None  # slots are for nodes that are asked once
        if once or round <= kept.round:
            raise RoundAnswered(f"round {round} of {name!r}, but round {kept.round} was answered already")
        for key, value in _terms(request).items():
            if kept.terms[key] != value:
                raise Refused(
                    f"{key} = {value!r} in round {round}, but the training {name!r} began with "
                    f"{kept.terms[key]!r}"
                )
        if request.epsilon > kept.epsilon:
            raise Refused(
                f"epsilon = {request.epsilon!r} in round {round} is above the {kept.epsilon!r} of the last "
                f"report of {name!r}: epsilon cannot rise during a training"
            )

    def _compute(self, compute: Compute, structure: Structure, weights: Vector) -> tuple[Vector, str]:
        """The gradient, or zero and why, for the owner alone: whether it fails may depend on data."""
        try:
            return compute(structure, weights), ""
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self.simulation is not None or self.policy.state_dir is None:
                raise  # a simulation protects nobody, and the experimenter must see the error
            self.log.exception("sqsgd: the app failed; zero is reported, so that the server cannot tell")
            why = ZERO_MISFIT if isinstance(error, Misfit) else ZERO_FAILED
            return np.zeros(structure.dim, np.float32), why

    def _encode(
        self, scheme: Scheme, request: Request, gradient: Vector, residual: Vector | None
    ) -> tuple[bytes, Vector | None, str]:
        """The report, the new residual, and why zero was reported, if it was.

        A vector that cannot be encoded, such as one that is not finite, is reported as zero: the server must
        not learn from an error that a node's training diverged.
        """
        rng, scales = self._rng(request), {"alpha": request.alpha, "beta": request.beta}
        try:
            return *client_step(scheme, request.task, gradient, residual, rng, **scales), ""
        except Exception as error:  # any: whether it is raised depends on the vector alone
            if self.simulation is not None:
                raise
            self.log.warning("sqsgd: zero is reported and the residual dropped: %s", error)
            zero = np.zeros_like(gradient)
            return *client_step(scheme, request.task, zero, None, rng, **scales), ZERO_UNENCODED

    def _rng(self, request: Request) -> Rng:
        if self.simulation is None or self.simulation.seed is None:
            return secure_rng()
        task = request.task
        return seeded_rng(noise_seed(self.simulation.seed, task.round, task.client))

    def _note(
        self, request: Request, payload: bytes, *, epsilon: float, again: bool = False, zero: str = ""
    ) -> None:
        if self.simulation is not None or self.policy.state_dir is None:
            return
        entry: dict[str, object] = {
            "task": request.name,
            "round": request.task.round,
            "scheme": request.scheme,
            "epsilon": epsilon,
            "asked_epsilon": request.epsilon,
            "asked_bytes": request.bytes,
            "asked_batch": self.batch,
            "payload_bytes": len(payload),
            "serialised_bytes": self.sent_size(payload),
        }
        entry |= ({"again": True} if again else {}) | ({"zero": zero} if zero else {})
        self.log.info(
            "sqsgd: round %d of %r: %s of %d bytes for epsilon %g",
            request.task.round + 1, request.name, "the same report" if again else "a report",
            len(payload), epsilon,
        )  # fmt: skip
        try:
            note(self.policy.state_dir, "answers", entry)
        except OSError:  # the report is paid for, and the ledger has it
            self.log.exception("sqsgd: the answer could not be recorded; it is sent anyway")


def _check_form(dry_run: Compute, structure: Structure, weights: Vector) -> None:
    """Raise Misfit unless what the app returns without data is a vector of the model's size."""
    try:
        found = dry_run(structure, weights.copy())
    except Exception as error:
        raise Misfit(f"the app's dry run: {error}") from error
    if found.shape != weights.shape:
        raise Misfit(f"the app's dry run: {found.shape} numbers for a model of {weights.shape}")


def _terms(request: Request) -> dict[str, object]:
    """What must not change during a training; epsilon may fall."""
    task = request.task
    return {
        "scheme": request.scheme,
        "bytes": request.bytes,
        "options": dict(request.options),
        "dim": task.dim,
        "seed": task.seed,
        "client": task.client,
    }
