"""The client's side: whatever the app computes, what leaves the node is one private report.

Put it first, so that it is outermost: ``ClientApp(mods=[SqsgdMod()])``; this package's ``ClientApp`` does so.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

import flwr.clientapp
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from sqsgd.checks import Vector
from sqsgd.flower import evaluating, wire
from sqsgd.flower.context_state import ContextState
from sqsgd.node import reasons
from sqsgd.node.answer import Node, Simulation
from sqsgd.node.node_state import FolderState, NodeState
from sqsgd.node.policy import Misfit, Policy, Refused
from sqsgd.node.request import Request
from sqsgd.node.structure import Structure

_REFUSED, _FAILED = 6, 2  # Flower's MOD_FAILED_PRECONDITION and CLIENT_APP_RAISED_EXCEPTION
_LOG = logging.getLogger("flwr")
_ANSWERING = ContextVar("answering", default=False)
"""Whether a mod further out makes the report: mods inside it only pass the message on."""
_BATCH = ("batch", "batchsize")
"""How names end under which apps read their batch from what the server sends, without - and _."""
DryRun: TypeAlias = Callable[[Message, Context], Message]
"""As an app's ``train``, but without data."""


class SqsgdMod:
    """Turns an app's gradient, or the change that it made to the model, into one private report.

    Guarantees
    ----------
    * What leaves is one ConfigRecord with one payload, or one of a few fixed errors; no loss, no number of
      examples: tests/flower/test_mod.py::test_nothing_else_leaves. Not covered: Flower's SuperNode reports to
      the server how long the app ran, and no mod can prevent it.
    * The ledger is paid, on disk, before the app sees any data:
      tests/flower/test_failing_apps.py::test_paid_before_the_app_runs,
      ::test_nothing_is_computed_on_a_spent_budget.
    * An app whose ``dry_run`` does not fit the model is refused with that reason, and nothing is paid:
      tests/flower/test_dry_runs.py::test_a_misfit_app_is_refused_and_pays_nothing.
    * An ``evaluate`` message is answered with one private number, if the owner allows it:
      tests/flower/test_evaluating.py::test_one_number_leaves_and_nothing_else.
    * If the app fails, the node still sends a paid report, of zero:
      tests/flower/test_failing_apps.py::test_an_exception_tells_nothing.
    * A round is answered once. An identical request gets identical bytes, so that a lost answer can be
      fetched again; any other request is refused: tests/flower/test_mod.py::test_a_round_is_answered_once.
    * A gradient that is not finite is answered like any other:
      tests/flower/test_failing_apps.py::test_a_gradient_that_is_not_finite_is_not_told.
    * The app can write neither into the reply's metadata nor into the owner's settings:
      tests/flower/test_wrapping.py::test_an_app_writes_into_nothing_that_leaves_or_stays.
    * The noise comes from the operating system; no request can change that:
      tests/flower/test_mod.py::test_no_request_gets_seeded_noise.
    * What the owner's configuration does not allow is refused and logged at the node:
      tests/node/test_policy.py::test_what_the_owner_did_not_allow_is_refused,
      tests/flower/test_mod.py::test_a_training_does_not_become_weaker.
    """

    def __init__(
        self,
        *,
        simulation: Simulation | None = None,
        check: Callable[[Context], None] | None = None,
        dry_run: DryRun | None = None,
    ) -> None:
        """``check`` is called before anything is paid, and raises Refused. ``dry_run`` returns a reply of the
        form that the app's ``train`` returns; it is called once in a training, before anything is paid.
        Neither may look at data: their outcome is told to the server. A dry run gets neither the node's
        configuration nor its state, where an app would find them.
        """
        self._simulation, self._check, self._dry_run = simulation, check or (lambda _: None), dry_run
        self._real = False  # whether a node's owner put it around an app, which may use Ray for itself
        if simulation is not None and simulation.seed is not None:
            _LOG.warning("sqsgd: simulation with seeded noise: repeatable, and protects nobody")

    def __call__(self, msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message."""
        if _ANSWERING.get():
            return call_next(msg, context)
        outermost = _ANSWERING.set(True)
        # Replies copy metadata, into which the app can write: these are made before it gets the message.
        report, refusal = Message(RecordDict(), reply_to=msg), Message(Error(_REFUSED, ""), reply_to=msg)
        try:
            report.content = self._answer(msg, context, call_next)
            return report
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            record = msg.content.get(wire.REQUEST) if msg.has_content() else None
            asked = record if isinstance(record, ConfigRecord) else ConfigRecord()
            reason = reasons.explain(error, asked, context.node_config, _LOG)
            refusal.error = Error(_FAILED if reason == reasons.FAILED else _REFUSED, reason)
            return refusal
        finally:
            _ANSWERING.reset(outermost)

    def without_simulation(self) -> SqsgdMod:
        """The same checks, for a real node."""
        mod = SqsgdMod(check=self._check, dry_run=self._dry_run)
        mod._real = True
        return mod

    def _answer(self, msg: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
        kind, _, _ = msg.metadata.message_type.partition(".")
        if kind not in ("train", "evaluate"):
            raise Refused(f"a message of type {kind!r}: its answer would reveal data in the clear")
        request = wire.read_request(msg.content.get(wire.REQUEST))
        policy, state = self._policy_and_state(context, request)
        context = _own(context)
        self._check(context)
        node = Node(
            policy=policy,
            state=state,
            client=None if self._simulation else context.node_id,
            log=_LOG,
            simulation=self._simulation,
            batch=asked_batch(context.run_config, *_configs(msg.content)),
            sent_size=lambda payload: wire.serialised_size(
                Message(wire.report_content(payload), reply_to=msg)
            ),
        )
        if kind == "evaluate":
            return wire.report_content(evaluating.evaluate(node, request, msg, context, call_next))
        compute = partial(self._train, msg, context, call_next)
        bare = Context(context.run_id, context.node_id, {}, RecordDict(), context.run_config)
        dry_run = None if self._dry_run is None else partial(self._train, msg, bare, self._dry_run)
        download = wire.download_of(msg.content)
        return wire.report_content(node.answer(request, download, compute, dry_run))

    def _policy_and_state(self, context: Context, request: Request) -> tuple[Policy, NodeState]:
        simulated = self._simulation is not None or (not self._real and _in_ray())
        policy = Policy.of(context.node_config, simulation=simulated)
        if self._simulation is not None and self._simulation.folder is not None:
            return policy, FolderState(self._simulation.folder / str(request.task.client))
        if policy.state_dir is not None:
            return policy, FolderState(policy.state_dir, policy)
        return policy, ContextState(context, policy)

    @staticmethod
    def _train(
        msg: Message, context: Context, call_next: ClientAppCallable, structure: Structure, weights: Vector
    ) -> Vector:
        """Let the app compute, and take its gradient, or the model before minus the model after."""
        msg.content[wire.MODEL] = wire.model_record(structure, weights)  # as checked, whatever was sent
        reply = call_next(msg, context)
        if reply.has_error():
            raise RuntimeError(f"the app answered with an error: {reply.error}")
        records = reply.content.array_records
        try:
            if wire.GRADIENT in records:
                return structure.flatten(wire.arrays_of(records[wire.GRADIENT]))
            if len(records) != 1:
                raise ValueError(f"the app's reply holds {len(records)} ArrayRecords; it must hold one")
            (after,) = records.values()
            return structure.change(weights, wire.arrays_of(after))
        except ValueError as error:
            raise Misfit(str(error)) from error


class ClientApp(flwr.clientapp.ClientApp):
    """Flower's ``ClientApp`` with ``SqsgdMod`` outermost: whatever it computes, one private report leaves."""

    def __init__(
        self, client_fn: Any = None, mods: Sequence[Mod] | None = None, *, dry_run: DryRun | None = None
    ) -> None:
        super().__init__(client_fn, [SqsgdMod(dry_run=dry_run), *(mods or [])])


def asked_batch(*configs: Mapping[str, Any]) -> int | None:
    """The smallest batch in what the server configures, as an app would read it; None if there is none.

    A batch that is not a number counts as zero: an app may read it in a way of its own.
    """

    def found() -> Iterator[int]:
        for name, value in (item for config in configs for item in config.items()):
            if name.lower().replace("-", "").replace("_", "").endswith(_BATCH):
                try:
                    yield int(value)
                except (TypeError, ValueError, OverflowError):
                    yield 0

    return min(found(), default=None)


def _configs(content: RecordDict) -> Iterator[Mapping[str, Any]]:
    """What the server configures the app with: an app reads a MetricRecord like a ConfigRecord."""
    records: dict[str, Mapping[str, Any]] = {**content.config_records, **content.metric_records}
    return (record for name, record in records.items() if name not in (wire.REQUEST, wire.UPDATE))


def _own(context: Context) -> Context:
    """The context as an app gets it: Flower keeps what comes back, and the settings are the owner's."""
    return Context(
        context.run_id, context.node_id, dict(context.node_config), context.state, dict(context.run_config)
    )


def _in_ray() -> bool:
    """This process is a worker of Flower's simulation. Nothing that a server sends can make it one."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
