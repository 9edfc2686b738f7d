"""One round at a node: check the request, pay, train, encode, remember, answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, final

import numpy as np

from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.ledger.refusals import ReportRefused
from sqsgd.node.downlink import Download, receive_model
from sqsgd.node.evaluation import Measure, allowed_scheme, within, worst
from sqsgd.node.node_state import Kept, NodeState
from sqsgd.node.notes import note, shortened
from sqsgd.node.policy import Misfit, Policy, Refused
from sqsgd.node.request import Request
from sqsgd.node.structure import Structure
from sqsgd.randomness import Rng, secure_rng, seeded_rng
from sqsgd.training import client_step, noise_seed

Compute: TypeAlias = Callable[[Structure, Vector], Vector]
"""Computes the gradient at the given weights, or these weights minus the trained ones."""

FAILED = "the app failed"
MISFIT = "the app's reply does not fit the model"
NOT_ENCODED = "the vector cannot be encoded; it may hold infinity or NaN"
NOT_MEASURED = "the app's reply does not have the metric"
"""Why zero was reported, in ``answers.jsonl`` and the owner's status; never told to the server."""


class RoundAnswered(ReportRefused):
    """The round, or a later one of the same training, was answered before."""

    def __init__(self, name: str, round: int, last: int) -> None:
        super().__init__(f"round {round} of {name!r} was asked for, but round {last} was answered already")


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
    ``SqsgdMod`` states the guarantees that follow, with their tests;
    tests/node/test_answer.py checks them without a transport.
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
        """The report for one request. Raises what ``reasons.explain`` translates for the server.

        ``dry_run`` returns a vector as ``compute`` does, but sees no data: whether it fails may be told.
        It is called once in a training, before the first report is paid.
        """
        self.log.info(
            "sqsgd: asked for round %d of %r: scheme %s, epsilon %g, %g bytes%s",
            request.task.round + 1, request.name, shortened(request.scheme), request.epsilon,
            request.bits / 8,
            "" if self.batch is None else f", a batch of {self.batch}",
        )  # fmt: skip
        with self.state.locked():  # from the first read to the last write: another process may run too
            kept = self.state.read(request.name)
            if kept is not None and kept.identity == request.identity:
                self._note(request, kept.payload, epsilon=0.0, again=True)
                return kept.payload
            self._check_terms(request, kept)
            make_scheme = Request.make_scheme if self.simulation else self.policy.scheme
            scheme, structure, weights = receive_model(download, request, kept, make_scheme)
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

    def evaluate(self, request: Request, download: Download, measure: Measure) -> bytes:
        """One private number: what ``measure`` finds on this node's data, in the order of ``answer``.

        The ledger has it as a round of the training's name with the word "evaluate". Raises as ``answer``.
        """
        request = replace(request, name=f"{request.name} evaluate")
        self.log.info(
            "sqsgd: asked for round %d of %r: one number, epsilon %g",
            request.task.round + 1, request.name, request.epsilon,
        )  # fmt: skip
        with self.state.locked():
            kept = self.state.read(request.name)
            if kept is not None and kept.identity == request.identity:
                self._note(request, kept.payload, epsilon=0.0, again=True)
                return kept.payload
            self._check_terms(request, kept)
            metric, scheme = allowed_scheme(self.policy, request)
            _, structure, weights = receive_model(download, request, None, lambda _: scheme)
            # From here on, only the report may depend on data.
            self.state.pay(scheme, request)
            value, failed = self._measure(measure, structure, weights, metric, request.task.bound)
            task = replace(request.task, dim=1)
            payload = scheme.encode(np.array([value], np.float32), task, self._rng(request))
            self.state.write(
                Kept(
                    name=request.name,
                    terms=_terms(request),
                    epsilon=request.epsilon,
                    round=request.task.round,
                    identity=request.identity,
                    payload=payload,
                )
            )
            self._note(request, payload, epsilon=scheme.privacy.epsilon, zero=failed)
        return payload

    def _check_terms(self, request: Request, kept: Kept | None) -> None:
        """Raise Refused if a request does not fit this node, or the terms that the training began with."""
        if self.client is not None and not request.by_slot and request.task.client != self.client:
            raise Refused(f"client = {request.task.client} is another node: this one is {self.client}")
        self.policy.check_batch(self.batch)
        if kept is None:
            return
        once = request.by_slot and self.simulation is None  # slots are for nodes that are asked once
        if once or request.task.round <= kept.round:
            raise RoundAnswered(request.name, request.task.round, kept.round)
        for key, value in _terms(request).items():
            if kept.terms[key] != value:
                raise Refused(
                    f"{key} = {value!r} in round {request.task.round}, but the training {request.name!r} "
                    f"began with {kept.terms[key]!r}"
                )
        if request.epsilon > kept.epsilon:
            raise Refused(
                f"epsilon = {request.epsilon!r} in round {request.task.round} is above the {kept.epsilon!r} "
                f"of the last report of {request.name!r}: epsilon cannot rise during a training"
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
            return np.zeros(structure.dim, np.float32), MISFIT if isinstance(error, Misfit) else FAILED

    def _measure(
        self, measure: Measure, structure: Structure, weights: Vector, metric: str, maximum: float
    ) -> tuple[float, str]:
        """The value, or the worst one and why, for the owner alone: whether it fails may depend on data."""
        try:
            return within(measure(structure, weights), maximum), ""
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self.simulation is not None or self.policy.state_dir is None:
                raise
            self.log.exception(
                "sqsgd: the app failed; the worst value is reported, so the server cannot tell"
            )
            return worst(metric, maximum), NOT_MEASURED if isinstance(error, Misfit) else FAILED

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
            return *client_step(scheme, request.task, zero, None, rng, **scales), NOT_ENCODED

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
            "asked_bytes": request.bits / 8,
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
    """What must not change during a training.

    The code may: earlier versions did not name it, and epsilon is checked for each report.
    """
    task = request.task
    return {
        "scheme": request.scheme,
        "bits": request.bits,
        "options": {name: value for name, value in request.options.items() if name != "code"},
        "dim": task.dim,
        "seed": task.seed,
        "client": task.client,
    }
