"""One round at a node: check the request, pay, compute, encode, remember, answer; and what it remembers."""

import contextlib
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, final

import numpy as np

from sqsgd._internal import files
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import total
from sqsgd.core import Scheme
from sqsgd.core.random import Rng, secure_rng, seeded_rng
from sqsgd.core.task import Task
from sqsgd.federation.node.policy import Policy, Refused, RoundAnswered, note, shortened
from sqsgd.federation.node.records import Asked, asking
from sqsgd.federation.node.request import EVALUATION, Request
from sqsgd.federation.node.structure import Arrays, Structure
from sqsgd.mechanisms.gaussian_account import Uses, epsilon_of, spent
from sqsgd.privacy.ledger import BudgetSpent, Ledger, ReportRefused
from sqsgd.training import client_step, noise_seed
from sqsgd.training.settings import RECORD

Compute: TypeAlias = Callable[[Structure, Vector], Vector]
"""Computes the gradient at the given weights, or these weights minus the trained ones; where a sum of records
is asked for, its result is not used: see ``records.py``."""
ZERO_FAILED = "the app failed"
ZERO_UNENCODED = "the vector cannot be encoded; it may hold infinity or NaN"
"""Why zero was reported, in ``answers.jsonl`` and the owner's status; never told to the server."""
MOST_TRAININGS = 8  # are remembered: a server names them, and each takes as much as a model


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a node remembers of one training: the last request and its report, which is sent again."""

    request: Request
    payload: bytes
    residual: Vector | None = None
    answered: int = 1
    """Requests of this training so far."""
    turns: Mapping[str, str] = field(default_factory=dict)
    """Where records take turns: ``key``, by which they do, and ``data``, a digest of the records."""

    def to_bytes(self) -> bytes:
        """Return a checksum, one line of JSON, and the residual."""
        shape = None if self.residual is None else self.residual.shape
        about: dict[str, Any] = {"request": self.request.to_fields(), "payload": self.payload.hex()}
        about |= {"residual": shape, "answered": self.answered, "turns": dict(self.turns)}
        residual = b"" if self.residual is None else self.residual.tobytes()
        content = json.dumps(about).encode() + b"\n" + residual
        return hashlib.blake2b(content, digest_size=32).digest() + content

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        if hashlib.blake2b(content[32:], digest_size=32).digest() != content[:32]:
            raise ValueError("its checksum is wrong")
        line, _, rest = content[32:].partition(b"\n")
        about, residual = json.loads(line), None
        if about["residual"] is not None:
            residual = np.frombuffer(rest, np.float32).reshape(about["residual"]).copy()
        payload = bytes.fromhex(about["payload"])
        request, answered = Request.from_fields(about["request"]), int(about["answered"])
        same = {"residual": residual, "answered": answered, "turns": about["turns"]}
        return cls(request=request, payload=payload, **same)


class NodeState(Protocol):
    """Where a node keeps what it remembers; ``FolderState`` on disk, or a simulation's own place."""

    def locked(self) -> contextlib.AbstractContextManager[Any]: ...
    def read(self, name: str) -> Kept | None: ...
    def write(self, kept: Kept) -> None: ...
    def pay(self, scheme: Scheme, request: Request) -> None: ...


@final
class FolderState:
    """A folder on disk: ``ledger``, ``tasks/``, ``answers.jsonl`` and ``refusals.jsonl``.

    Guarantees
    ----------
    * With ``require_ledger``, no report leaves a node whose ledger is missing, and none is created:
      tests/node/test_node_state.py::test_a_folder_that_vanished_is_not_a_new_ledger.
    * It remembers the last 8 trainings, however many a server names; of others the residual is lost:
      tests/node/test_node_state.py::test_a_server_does_not_fill_the_disk.
    * With a ``witness``, no report leaves a node whose whole folder was replaced by an older copy:
      tests/node/test_node_state.py::test_with_a_witness_an_older_copy_of_the_folder_is_refused.
    """

    def __init__(self, folder: Path, policy: Policy | None = None) -> None:
        """Without a policy no ledger is kept: for simulations only."""
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
            lost = f"Delete it to continue: this loses the residual of {name!r}"
            raise Refused(f"{path} is damaged: {error}. {lost}") from None

    def write(self, kept: Kept) -> None:
        """Keep it; it survives a crash on return."""
        path = self._path(kept.request.name)
        files.put(files.prepared(path, kept.to_bytes()), path)
        others = [other for other in path.parent.iterdir() if other.name != path.name]
        others.sort(key=lambda other: other.stat().st_mtime_ns, reverse=True)
        for oldest in others[MOST_TRAININGS - 1 :]:
            oldest.unlink()

    def open_ledger(self, policy: Policy) -> Ledger:
        """Return the node's ledger, created at first use unless required."""
        path = self.folder / "ledger"
        if not path.exists():
            if policy.require_ledger:
                raise ReportRefused(
                    f"{path} is missing, and require-ledger = true: it was lost or moved, its disk is not "
                    "mounted, or it was never created. A new ledger would forget what was spent: see "
                    "docs/deploy.md on lost ledgers"
                )
            with contextlib.suppress(FileExistsError):  # another process created it first
                own: dict[str, Any] = {"max_epsilon": policy.max_epsilon, "delta": policy.delta}
                return Ledger.create(path, **own, witness=policy.witness)
        ledger = Ledger(path, witness=policy.witness)
        if ledger.delta != policy.delta:
            raise ReportRefused(
                f"the cap of {path} is of {ledger.unit}, and the owner's settings have delta = "
                f"{policy.delta!r}: a ledger keeps its unit; name another state-dir for another"
            )
        return ledger

    def pay(self, scheme: Scheme, request: Request) -> None:
        if self._policy is None:
            return
        ledger, most = self.open_ledger(self._policy), self._policy.max_epsilon
        kept = self.read(request.name)
        self._check_turn(ledger, scheme, request, kept)
        if request.reports > 1 and kept is None:
            whole, before = Fraction(total(scheme.privacy.epsilon, request.reports)), ledger.spent
            cap = min(Fraction(most), before + ledger.left)
            if whole > cap - before:
                raise BudgetSpent(ledger.path, whole, before, cap)
        if request.purpose == EVALUATION:
            self._check_evaluations(self._policy, ledger, scheme)
        ledger.spend_for(scheme, request.task, name=request.name, purpose=request.purpose, at_most=most)

    @staticmethod
    def _check_turn(ledger: Ledger, scheme: Scheme, request: Request, kept: Kept | None) -> None:
        """Raise Refused if the ledger would not charge for records that may have been used in this turn.

        A node that has forgotten a turn draws it by another key, and a server may change the length of turns.
        """
        turns, name = scheme.privacy.turns, request.name
        turn = request.task.round // turns
        if turns == 1 or (kept is not None and kept.request.task.round // turns == turn):
            return
        if any(each.task == name and each.turn == turn for each in ledger.entries):
            raise Refused(
                f"turn {turn} of {name!r} was paid for before, and this node does not know which records "
                "were used in it: it begins with another turn"
            )

    @staticmethod
    def _check_evaluations(policy: Policy, ledger: Ledger, scheme: Scheme) -> None:
        """Raise BudgetSpent if all evaluations together would cost more than the owner gives them."""
        assert policy.delta is not None  # noqa: S101 - Policy.check refuses it otherwise
        uses = [Uses(rho=Fraction(each.rho)) for each in ledger.entries if each.purpose == EVALUATION]
        before = Fraction(epsilon_of(uses, policy.delta))
        after = Fraction(epsilon_of([*uses, Uses(rho=scheme.privacy.rho)], policy.delta))
        if after > (cap := Fraction(policy.evaluation_epsilon)):
            raise BudgetSpent(ledger.path, after - before, before, cap, "epsilon of evaluations")


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

    A round locks the state, looks for a kept answer, checks the request against the training's terms and the
    owner's policy, pays, and only then computes on data. ``SqsgdMod`` states the guarantees that follow.
    """

    policy: Policy
    state: NodeState
    client: int | None
    """The number by which the server addresses this node; None: any, in a simulation."""
    log: logging.Logger
    simulation: Simulation | None = None
    batch: int | None = None
    """The batch that the server asks the app for, if it names one."""

    def answer(self, request: Request, read_model: Callable[[], Arrays], compute: Compute) -> bytes:
        """Return the report for one request; ``policy.explain`` tells the server of any exception.

        Args:
          request: what the server asks for.
          read_model: reads the model that came with it; called only after the checks before it.
          compute: computes on the node's data; called after the report is paid.
        """
        self.log.info(
            "sqsgd: asked for round %d of %r: scheme %s, epsilon %g, %d bytes%s",
            request.task.round + 1, request.name, shortened(request.scheme), request.epsilon,
            request.bytes, "" if self.batch is None else f", a batch of {self.batch}",
        )  # fmt: skip
        with self.state.locked():  # from the first read to the last write: another process may run too
            kept = self.state.read(request.name)
            if kept is not None and kept.request.identity == request.identity:
                self._note(request, kept.payload, 0.0, again=True)
                return kept.payload
            self._check_terms(request, kept)
            structure, weights = request.received(read_model())
            scheme = request.make_scheme() if self.simulation else self.policy.scheme(request)
            rng = self._rng(request.task)
            asked = Asked(
                request=request, scheme=scheme, structure=structure, weights=weights, rng=rng,
                warn=self.log.warning, turns=self._turns(scheme, request, kept),
            )  # fmt: skip
            # From here on, only the report may depend on data.
            self.state.pay(scheme, request)
            gradient, failed = self._compute(compute, asked)
            payload, residual, unfit = self._encode(asked, gradient, None if kept is None else kept.residual)
            answered = 1 if kept is None else kept.answered + 1
            same: dict[str, Any] = {"residual": residual, "answered": answered, "turns": asked.turns}
            self.state.write(Kept(request=request, payload=payload, **same))
            zero, left_out = failed or unfit, asked.total.dropped if asked.total else 0
            about = {"zero": zero, "left_out": left_out}
            about = {name: value for name, value in about.items() if value}
            self._note(request, payload, spent(scheme.privacy, 1), **about)
        return payload

    def _rng(self, task: Task) -> Rng:
        seed = None if self.simulation is None else self.simulation.seed
        return secure_rng() if seed is None else seeded_rng(noise_seed(seed, task.round, task.client))

    def _turns(self, scheme: Scheme, request: Request, kept: Kept | None) -> dict[str, str]:
        """The key by which records take turns, and a digest of the records that this turn began with."""
        turns, round = scheme.privacy.turns, request.task.round
        if turns == 1:
            return {}
        if self.simulation is not None and self.simulation.seed is not None:
            from sqsgd.learning.records import seeded_turns

            return {"key": seeded_turns(self.simulation.seed, request.task.client).hex()}
        if kept is None:
            if round % turns:
                raise Refused(
                    f"round {round} is not the first of its turn of {turns} rounds, and this node does not "
                    "know which records were used in the others: it begins with the next turn"
                )
            return {"key": secrets.token_hex(32)}
        same = kept.request.task.round // turns == round // turns
        return dict(kept.turns) if same else {"key": kept.turns["key"]}

    def _check_terms(self, request: Request, kept: Kept | None) -> None:
        """Raise Refused if a request does not fit this node, or the terms that the training began with."""
        if self.client is not None and not request.by_slot and request.task.client != self.client:
            raise Refused(f"client = {request.task.client} is another node: this one is {self.client}")
        self.policy.check_batch(self.batch)
        if kept is None:
            return
        name, round, last = request.name, request.task.round, kept.request
        real_slot = request.by_slot and self.simulation is None
        if (real_slot and kept.answered >= last.reports) or round <= last.task.round:
            raise RoundAnswered(f"round {round} of {name!r}, but {last.task.round} was answered already")
        before, now = ({**vars(each), **vars(each.task)} for each in (last, request))
        own = "reports" if real_slot else "client"  # the number of a slot changes with each pass
        # Sampled reports are accounted for together, as fixed before the first: docs/proofs/ledger.md.
        fixed = ("epsilon",) if request.scheme == RECORD else ()
        for key in ("scheme", "bytes", "options", "dim", "seed", "by_slot", own, *fixed):
            if before[key] != now[key]:
                raise Refused(
                    f"{key} = {now[key]!r} in round {round}, but the training {name!r} began with "
                    f"{before[key]!r}"
                )
        if request.epsilon > last.epsilon:
            raise Refused(
                f"epsilon = {request.epsilon!r} in round {round} is above the {last.epsilon!r} of the last "
                f"report of {name!r}: epsilon cannot rise during a training"
            )

    def _compute(self, compute: Compute, asked: Asked) -> tuple[Any, str]:
        """The gradient or sum, or zero and why, for the owner alone: whether it fails may depend on data."""
        try:
            if not asked.scheme.sums_records:
                return compute(asked.structure, asked.weights), ""
            with asking(asked):
                compute(asked.structure, asked.weights)  # its result is not used
            if asked.total is None:
                raise ValueError("the app named no records: see record_report in docs/flower.md")
        except KeyboardInterrupt:
            raise
        except BaseException:
            if self.simulation is not None or self.policy.state_dir is None:
                raise  # a simulation protects nobody, and the experimenter must see the error
            self.log.exception("sqsgd: the app failed; zero is reported, so that the server cannot tell")
        return (_zero(asked), ZERO_FAILED) if asked.total is None else (asked.total, "")

    def _encode(
        self, asked: Asked, gradient: Any, residual: Vector | None
    ) -> tuple[bytes, Vector | None, str]:
        """The report, the new residual, and the reason for a zero report: no error may reveal divergence."""
        request, scheme, task = asked.request, asked.scheme, asked.request.task
        scales = {"alpha": request.alpha, "beta": request.beta}
        try:
            return *client_step(scheme, task, gradient, residual, asked.rng, **scales), ""
        except Exception as error:  # any: whether it is raised depends on the vector alone
            if self.simulation is not None:
                raise
            self.log.warning("sqsgd: zero is reported and the residual dropped: %s", error)
            return *client_step(scheme, task, _zero(asked), None, asked.rng, **scales), ZERO_UNENCODED

    def _note(self, request: Request, payload: bytes, epsilon: float, **more: object) -> None:
        if self.simulation is not None or self.policy.state_dir is None:
            return
        entry: dict[str, object] = {
            "task": request.name,
            "round": request.task.round,
            "purpose": request.purpose,
            "scheme": request.scheme,
            "epsilon": epsilon,
            "asked_epsilon": request.epsilon,
            "asked_bytes": request.bytes,
            "asked_batch": self.batch,
            "payload_bytes": len(payload),
            **more,
        }
        self.log.info(
            "sqsgd: round %d of %r: %s of %d bytes for epsilon %g",
            request.task.round + 1, request.name, "the same report" if "again" in more else "a report",
            len(payload), epsilon,
        )  # fmt: skip
        try:
            note(self.policy.state_dir, "answers", entry)
        except OSError:  # the report is paid for, and the ledger has it
            self.log.exception("sqsgd: the answer could not be recorded; it is sent anyway")


def _zero(asked: Asked) -> Any:
    """What is reported where nothing can be: an empty sum, or a vector of zeros."""
    if asked.scheme.sums_records:
        return asked.scheme.record_sum(asked.request.task)
    return np.zeros(asked.structure.dim, np.float32)
