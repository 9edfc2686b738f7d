"""The client's side: whatever the app computes, what leaves the node is one private report.

Put it first, so that it is outermost: ``ClientApp(mods=[SqsgdMod()])``; this room's ``ClientApp`` does that.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flwr.clientapp
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.federated import client_step, noise_seed
from sqsgd.flower import wire
from sqsgd.flower.downlink import ModelMissing, model_of
from sqsgd.flower.wire import MalformedRequest, Request, Structure
from sqsgd.ledger.refusals import AlreadyAnswered, BudgetSpent, ReportRefused
from sqsgd.node.node_state import ContextState, FolderState, Kept, NodeState
from sqsgd.node.notes import shortened
from sqsgd.node.policy import Policy, Refused
from sqsgd.randomness import Rng, secure_rng, seeded_rng

_REFUSED, _FAILED = 6, 2  # Flower's MOD_FAILED_PRECONDITION and CLIENT_APP_RAISED_EXCEPTION
_LOG = logging.getLogger("flwr")


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulation on the experimenter's own machine: protects nobody. Only code on a node can ask for it.

    ``seed``: noise that can be repeated, as in ``sqsgd train``; None: from the operating system.
    ``folder``: where the state of client c is, in a subfolder of its number; None: Flower's own.
    """

    seed: int | None = None
    folder: Path | None = None


class SqsgdMod:
    """Turns an app's gradient, or the change that it made to the model, into one private report.

    Guarantees
    ----------
    * What leaves is one ConfigRecord with one payload, or one of a few fixed errors; no loss, no number of
      examples: tests/flower/test_mod.py::test_nothing_else_leaves. Not covered: Flower's SuperNode tells the
      server how long the app ran, whatever a mod does.
    * The ledger is paid, on the disk, before the app sees any data:
      tests/flower/test_failing_apps.py::test_paid_before_the_app_runs,
      ::test_nothing_is_computed_on_a_spent_budget.
    * An app that fails is answered for like any other, with a paid report of zero:
      tests/flower/test_failing_apps.py::test_an_exception_tells_nothing.
    * A round is answered once. The very same request again gets the very same bytes, so that a lost answer
      can be had anew; any other one is refused: tests/flower/test_mod.py::test_a_round_is_answered_once.
    * A gradient that is not finite is answered like any other:
      tests/flower/test_failing_apps.py::test_a_gradient_that_is_not_finite_is_not_told.
    * The noise is the operating system's; no request can change that:
      tests/flower/test_mod.py::test_no_request_gets_seeded_noise.
    * What the owner's configuration does not allow is refused and logged at the node:
      tests/node/test_policy.py::test_what_the_owner_did_not_allow_is_refused,
      tests/flower/test_mod.py::test_a_training_does_not_become_weaker.
    """

    def __init__(
        self, *, simulation: Simulation | None = None, check: Callable[[Context], None] | None = None
    ) -> None:
        """``check`` is asked before anything is paid, and raises Refused; it must not look at data."""
        self._simulation, self._check = simulation, check or (lambda _: None)
        if simulation is not None and simulation.seed is not None:
            _LOG.warning("sqsgd: simulation with seeded noise: repeatable, and protects nobody")

    def __call__(self, msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        try:
            return Message(self._answer(msg, context, call_next), reply_to=msg)
        except ModelMissing as error:
            _LOG.info("sqsgd: %s", error)
            return Message(Error(_REFUSED, wire.NEEDS_MODEL), reply_to=msg)
        except (Refused, ReportRefused, MalformedRequest) as error:
            self._note_refusal(msg, context, str(error))
            return Message(Error(_REFUSED, _answer_of(error)), reply_to=msg)
        except KeyboardInterrupt:
            raise
        except BaseException:
            # The text may hold data: it stays in the node's own log.
            _LOG.exception("sqsgd: the round failed at this node; the server is told only that it did")
            return Message(Error(_FAILED, wire.FAILED), reply_to=msg)

    # ------------------------------------------------------------ one round

    def _answer(self, msg: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
        kind = msg.metadata.message_type
        if kind.partition(".")[0] != "train":
            raise Refused(f"a message of type {kind!r}: its answer would tell of the data in clear")
        request = wire.read_request(msg.content.get(wire.REQUEST))
        policy, state = self._parts(context, request)
        self._check(context)
        with state.locked():  # from the first look to the last write: another process may ask for this too
            kept = state.read(request.name)
            if kept is not None and kept.identity == request.identity:
                return self._reply(state, request, kept.payload, msg, again=True)
            self._check_terms(context, request, kept)
            allowed = Request.make_scheme if self._simulation else policy.scheme
            scheme, structure, weights = model_of(msg.content, request, kept, allowed)
            # From here on nothing but the report tells of data.
            state.pay(scheme, request, policy.max_epsilon)
            try:
                gradient = self._train(msg, context, call_next, structure, weights)
            except KeyboardInterrupt:
                raise
            except BaseException:
                if self._simulation is not None or policy.state_dir is None:
                    raise  # nobody is protected there, and whoever runs it wants to know
                _LOG.exception("sqsgd: the app failed; zero is reported, so that the server cannot tell")
                gradient = np.zeros(structure.dim, np.float32)
            residual = None if kept is None else kept.residual
            payload, residual = self._encode(scheme, request, gradient, residual)
            state.write(
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
        return self._reply(state, request, payload, msg, again=False, epsilon=scheme.privacy.epsilon)

    def _parts(self, context: Context, request: Request) -> tuple[Policy, NodeState]:
        virtual = self._simulation is not None or _in_ray()
        policy = Policy.of(context.node_config, simulation=virtual)
        if self._simulation is not None and self._simulation.folder is not None:
            folder = self._simulation.folder / str(request.task.client)
            return policy, FolderState(folder, ledger=False)
        if policy.state_dir is not None:
            return policy, FolderState(policy.state_dir)
        return policy, ContextState(context)

    def _check_terms(self, context: Context, request: Request, kept: Kept | None) -> None:
        """Raise Refused where a request does not fit this node, or what the training began with."""
        if self._simulation is None and request.task.client != context.node_id:
            raise Refused(f"client = {request.task.client} is another node: this one is {context.node_id}")
        if kept is None:
            return
        if request.task.round <= kept.round:
            raise AlreadyAnsweredHere(request.name, request.task.round, kept.round)
        for key, value in _terms(request).items():
            if kept.terms[key] != value:
                raise Refused(
                    f"{key} = {value!r} in round {request.task.round}, but the training {request.name!r} "
                    f"began with {kept.terms[key]!r}"
                )
        if request.epsilon > kept.epsilon:
            raise Refused(
                f"epsilon = {request.epsilon!r} in round {request.task.round}, but the last report of "
                f"{request.name!r} spent {kept.epsilon!r}: it may only fall"
            )

    @staticmethod
    def _train(
        msg: Message,
        context: Context,
        call_next: ClientAppCallable,
        structure: Structure,
        weights: Vector,
    ) -> Vector:
        """Let the app compute, and take its gradient, or the model before minus the model after."""
        msg.content[wire.MODEL] = structure.record(weights)  # those that were checked, whatever was sent
        reply = call_next(msg, context)
        if reply.has_error():
            raise RuntimeError(f"the app answered with an error: {reply.error}")
        if wire.GRADIENT in reply.content.array_records:
            return structure.vector(reply.content.array_records[wire.GRADIENT])
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise ValueError(f"the app's reply holds {len(records)} ArrayRecords; it must hold one")
        after: ArrayRecord = records[0]
        return weights - structure.vector(after)

    def _encode(
        self, scheme: Scheme, request: Request, gradient: Vector, residual: Vector | None
    ) -> tuple[bytes, Vector | None]:
        """The report and the new residual. A vector that is not finite is reported as zero: that a node's
        data made its training diverge is nobody's business, and no report would tell it.
        """
        rng, scales = self._rng(request), {"alpha": request.alpha, "beta": request.beta}
        try:
            return client_step(scheme, request.task, gradient, residual, rng, **scales)
        except Exception as error:  # whichever: the vector alone decides whether it is raised
            if self._simulation is not None:
                raise
            _LOG.warning("sqsgd: zero is reported, and the residual dropped: %s", error)
            return client_step(scheme, request.task, np.zeros_like(gradient), None, rng, **scales)

    def _rng(self, request: Request) -> Rng:
        if self._simulation is None or self._simulation.seed is None:
            return secure_rng()
        task = request.task
        return seeded_rng(noise_seed(self._simulation.seed, task.round, task.client))

    def _reply(
        self,
        state: NodeState,
        request: Request,
        payload: bytes,
        msg: Message,
        *,
        again: bool,
        epsilon: float = 0.0,
    ) -> RecordDict:
        content = RecordDict({wire.REPORT: wire.report_record(payload)})
        if self._simulation is None:
            entry = {
                "task": request.name,
                "round": request.task.round,
                "scheme": request.scheme,
                "epsilon": epsilon,
                "payload_bytes": len(payload),
                "serialised_bytes": wire.serialised_size(Message(content, reply_to=msg)),
            }
            try:
                state.note("answers", {**entry, "again": True} if again else entry)
            except OSError:  # it is paid for, and the ledger has it: only the line for people is missing
                _LOG.exception("sqsgd: the answer could not be noted; it leaves all the same")
        return content

    def _note_refusal(self, msg: Message, context: Context, reason: str) -> None:
        """Log a refusal, and write it down where the node has a folder."""
        _LOG.warning("sqsgd: refused: %s", shortened(reason))
        record = msg.content.get(wire.REQUEST) if msg.has_content() else None
        asked = record if isinstance(record, ConfigRecord) else ConfigRecord()
        entry = {"task": asked.get("name"), "round": asked.get("round"), "reason": reason}
        folder = context.node_config.get("state-dir")
        if isinstance(folder, str) and Path(folder).is_absolute():
            try:
                FolderState(Path(folder)).note("refusals", entry)
            except (OSError, TypeError, ValueError):
                _LOG.exception("sqsgd: the refusal could not be written to %s", folder)


class ClientApp(flwr.clientapp.ClientApp):
    """Flower's ``ClientApp`` with ``SqsgdMod`` outermost: whatever it computes, one private report leaves."""

    def __init__(self, client_fn: Any = None, mods: Sequence[Mod] | None = None) -> None:
        super().__init__(client_fn, [SqsgdMod(), *(mods or [])])


class AlreadyAnsweredHere(ReportRefused):
    """A round that was answered, or that is before one that was."""

    def __init__(self, name: str, round: int, last: int) -> None:
        super().__init__(f"round {round} of {name!r} was asked for, but round {last} was answered already")


def _answer_of(error: Exception) -> str:
    if isinstance(error, MalformedRequest):
        return wire.MALFORMED
    if isinstance(error, AlreadyAnsweredHere | AlreadyAnswered):
        return wire.ANSWERED
    if isinstance(error, BudgetSpent):
        return wire.SPENT
    return wire.LEDGER if isinstance(error, ReportRefused) else wire.NOT_ALLOWED


def _terms(request: Request) -> dict[str, object]:
    """What may not change while a training lasts."""
    task = request.task
    return {
        "scheme": request.scheme,
        "bits": request.bits,
        "options": dict(request.options),
        "dim": task.dim,
        "seed": task.seed,
        "client": task.client,
    }


def _in_ray() -> bool:
    """This process is a worker of Flower's simulation. Nothing that a server sends can make it so."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
