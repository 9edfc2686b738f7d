"""The client's side: whatever the app computes, what leaves the node is one private report.

Put it first, so that it is outermost: ``ClientApp(mods=[SqsgdMod()])``; this package's ``ClientApp`` does so.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias, final

import flwr.clientapp
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from sqsgd._internal.checks import Vector
from sqsgd.core import Scheme
from sqsgd.federation.flower import wire
from sqsgd.federation.node import policy as policies
from sqsgd.federation.node.answer import FolderState, Kept, Node, NodeState, Simulation
from sqsgd.federation.node.policy import Misfit, Policy, Refused
from sqsgd.federation.node.request import Request
from sqsgd.federation.node.structure import Structure

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
    * What leaves is one ConfigRecord with one payload, or one of a few fixed errors:
      tests/flower/test_mod.py::test_nothing_else_leaves. Not covered: how long the app ran.
    * The ledger is paid, on disk, before the app sees any data:
      tests/flower/test_failing_apps.py::test_paid_before_the_app_runs,
      ::test_nothing_is_computed_on_a_spent_budget.
    * An app whose ``dry_run`` does not fit the model is refused with that reason, and nothing is paid:
      tests/flower/test_failing_apps.py::test_a_misfit_app_is_refused_and_pays_nothing.
    * If the app fails, the node still sends a paid report, of zero:
      tests/flower/test_failing_apps.py::test_an_exception_tells_nothing.
    * A round is answered once: an identical request gets identical bytes, any other is refused:
      tests/flower/test_mod.py::test_a_round_is_answered_once.
    * A gradient that is not finite is answered like any other:
      tests/node/test_answer.py::test_a_computation_that_fails_is_reported_as_zero.
    * The app can write neither into the reply's metadata nor into the owner's settings:
      tests/flower/test_mod.py::test_an_app_writes_into_nothing_that_leaves_or_stays.
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
        """Neither ``check`` nor ``dry_run`` may look at data: their outcome is told to the server, unpaid.

        Args:
          simulation: a simulation, which protects nobody.
          check: called for each message; raises Refused.
          dry_run: returns a reply of the form that the app's ``train`` returns; called once in a training,
            without the node's configuration and state.
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
            reason = policies.explain(error, asked, context.node_config, _LOG)
            refusal.error = Error(_FAILED if reason == policies.FAILED else _REFUSED, reason)
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
        if kind != "train":
            raise Refused(f"a message of type {kind!r}: its answer would reveal data in the clear")
        request = wire.read_request(msg.content.get(wire.REQUEST))
        policy, state = self._policy_and_state(context, request)
        run, number = context.run_id, context.node_id
        # Flower keeps what comes back, and the settings are the owner's: the app gets copies.
        own = Context(run, number, dict(context.node_config), context.state, dict(context.run_config))
        bare = Context(run, number, {}, RecordDict(), own.run_config)
        self._check(own)
        node = Node(
            policy=policy,
            state=state,
            client=None if self._simulation else number,
            log=_LOG,
            simulation=self._simulation,
            batch=asked_batch(own.run_config, *_configs(msg.content)),
            sent_size=lambda payload: wire.serialised_size(
                Message(wire.report_content(payload), reply_to=msg)
            ),
        )
        compute = partial(self._train, msg, own, call_next)
        dry_run = None if self._dry_run is None else partial(self._train, msg, bare, self._dry_run)
        return wire.report_content(node.answer(request, wire.download_of(msg.content), compute, dry_run))

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


@final
class ContextState:
    """A simulated node's state in Flower's ``context.state``: it is lost when the run ends."""

    def __init__(self, context: Context, policy: Policy) -> None:
        record = context.state.setdefault("sqsgd.state", ConfigRecord())
        assert isinstance(record, ConfigRecord)  # noqa: S101
        self._record, self._policy = record, policy

    def locked(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def read(self, name: str) -> Kept | None:
        content = self._record.get(f"kept {name}")
        return Kept.from_bytes(content) if isinstance(content, bytes) else None

    def write(self, kept: Kept) -> None:
        self._record[f"kept {kept.name}"] = kept.to_bytes()

    def pay(self, scheme: Scheme, request: Request) -> None:
        cap = self._policy.max_epsilon
        spent = Fraction(str(self._record.get("spent", "0"))) + Fraction(scheme.privacy.epsilon)
        if spent > cap:
            raise Refused(f"epsilon {float(spent):g} would be spent, above max-epsilon = {cap:g}")
        self._record["spent"] = str(spent)


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


def _in_ray() -> bool:
    """This process is a worker of Flower's simulation. Nothing that a server sends can make it one."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
