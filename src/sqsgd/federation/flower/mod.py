"""The client's side: one private report leaves the node, for any result of the app.

Put it first, so that it is outermost: ``ClientApp(mods=[SqsgdMod()])``. This package's ``ClientApp`` does so.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, cast, final

import flwr.clientapp
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from sqsgd._internal.checks import Vector
from sqsgd.core import Scheme
from sqsgd.federation.flower import wire
from sqsgd.federation.node import policy as policies
from sqsgd.federation.node.answer import FolderState, Kept, Node, NodeState, Simulation
from sqsgd.federation.node.policy import Policy, Refused
from sqsgd.federation.node.records import asked_for_records, count_correct, sum_records
from sqsgd.federation.node.request import EVALUATION, Request
from sqsgd.federation.node.structure import Structure

_REFUSED, _FAILED = 6, 2  # Flower's MOD_FAILED_PRECONDITION and CLIENT_APP_RAISED_EXCEPTION
_LOG = logging.getLogger("flwr")
_ANSWERING = ContextVar("answering", default=False)  # whether a mod further out makes the report
_BATCH = ("batch", "batchsize")  # how names end under which apps read their batch, without - and _


class SqsgdMod:
    """A mod for converting the gradient or the model update of an app to a private report.

    Args:
      simulation: a simulation, which protects nobody.
      check: called for each message; raises Refused. It must not look at data: its outcome is sent unpaid.
      guarded: a node's owner put it around an app, which may use Ray for itself.

    Guarantees
    ----------
    * What leaves is one payload, or one of a few fixed errors; not covered is how long the app ran:
      tests/flower/test_mod.py::test_nothing_else_leaves.
    * The ledger is paid, on disk, before the app sees any data, and if it fails, zero is reported:
      tests/flower/test_failing_apps.py::test_paid_before_the_app_runs,
      ::test_nothing_is_computed_on_a_spent_budget, ::test_an_exception_tells_nothing.
    * A round is answered once: an identical request gets identical bytes, all others a refusal:
      tests/flower/test_mod.py::test_a_round_is_answered_once.
    * A gradient that is not finite is answered like any other:
      tests/node/test_answer.py::test_a_computation_that_fails_is_reported_as_zero.
    * The app can write neither into the reply's metadata nor into the owner's settings:
      tests/flower/test_mod.py::test_an_app_writes_into_nothing_that_leaves_or_stays.
    * The noise comes from the operating system; no request can change that:
      tests/flower/test_mod.py::test_no_request_gets_seeded_noise.
    * The node refuses everything that its owner does not allow:
      tests/flower/test_mod.py::test_a_training_does_not_become_weaker,
      tests/node/test_policy.py::test_what_the_owner_did_not_allow_is_refused.
    """

    def __init__(
        self,
        *,
        simulation: Simulation | None = None,
        check: Callable[[Context], None] = lambda _: None,
        guarded: bool = False,
    ) -> None:
        self._simulation, self.check, self._guarded = simulation, check, guarded
        if simulation is not None and simulation.seed is not None:
            _LOG.warning("sqsgd: simulation with seeded noise: repeatable, and protects nobody")

    def __call__(self, msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
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

    def _answer(self, msg: Message, context: Context, call_next: ClientAppCallable) -> RecordDict:
        request = wire.read_request(msg.content.get(wire.REQUEST))
        kind, _, _ = msg.metadata.message_type.partition(".")
        if kind != ("evaluate" if request.purpose == EVALUATION else "train"):
            raise Refused(f"a message of type {kind!r}: its answer would reveal data in the clear")
        policy, state = self._policy_and_state(context, request)
        run, number = context.run_id, context.node_id
        # Flower keeps what comes back, and the settings are the owner's: the app gets copies.
        own = Context(run, number, dict(context.node_config), context.state, dict(context.run_config))
        self.check(own)
        client, batch = None if self._simulation else number, asked_batch(own.run_config, msg.content)
        simulation = self._simulation
        node = Node(policy=policy, state=state, log=_LOG, client=client, simulation=simulation, batch=batch)
        compute, model = partial(self._train, msg, own, call_next), partial(wire.read_model, msg.content)
        return wire.report_content(node.answer(request, model, compute))

    def _policy_and_state(self, context: Context, request: Request) -> tuple[Policy, NodeState]:
        simulated = self._simulation is not None or (not self._guarded and _in_ray())
        policy = Policy.of(context.node_config, simulation=simulated)
        if self._simulation is not None and self._simulation.folder is not None:
            return policy, FolderState(self._simulation.folder / str(request.task.client))
        if policy.state_dir is not None:
            return policy, FolderState(policy.state_dir, policy)
        return policy, ContextState(context)

    @staticmethod
    def _train(
        msg: Message, context: Context, call_next: ClientAppCallable, structure: Structure, weights: Vector
    ) -> Vector:
        """Return the app's gradient, or the model before minus the model after."""
        msg.content[wire.MODEL] = wire.model_record(structure, weights)  # as checked, for any message
        reply = call_next(msg, context)
        if reply.has_error():
            raise RuntimeError(f"the app answered with an error: {reply.error}")
        if asked_for_records():
            return weights
        records = reply.content.array_records
        if wire.GRADIENT in records:
            return structure.flatten(wire.arrays_of(records[wire.GRADIENT]))
        if len(records) != 1:
            raise ValueError(f"the app's reply holds {len(records)} ArrayRecords; it must hold one")
        (after,) = records.values()
        return weights - structure.flatten(wire.arrays_of(after))


def record_report(msg: Message, model: Any, loss: Any, inputs: Any, labels: Any) -> Message:
    """Create the answer of an app to a training message when using privacy per record.

    The node samples from the given records, sets the weights of the current round in the model, and computes
    the sum of the gradients (see docs/flower.md for an example). If an error occurs, the node sends noise,
    and the reason is only written to the owner's log.

    Args:
        msg: The message received by the app.
        model: A module without layers that mix records.
        loss: A loss function, as in ``sqsgd.record_sum``.
        inputs: The inputs of all records of the node, as rows.
        labels: The labels of these records.

    Returns:
        An empty reply, to which the mod adds the report.
    """
    sum_records(model, loss, inputs, labels)
    return Message(RecordDict(), reply_to=msg)


def correct_report(msg: Message, model: Any, inputs: Any, labels: Any) -> Message:
    """Create the answer of an app to a private evaluation: the number of correct predictions with noise.

    Args:
        msg: The message received by the app.
        model: A classifier. Its weights are set by the node.
        inputs: The inputs of all test records of the node, as rows.
        labels: The labels of these records.

    Returns:
        An empty reply, to which the mod adds the noisy number.
    """
    count_correct(model, inputs, labels)
    return Message(RecordDict(), reply_to=msg)


class ClientApp(flwr.clientapp.ClientApp):
    """A Flower ``ClientApp`` in which ``SqsgdMod`` is the outermost mod.

    Args:
        client_fn: As in Flower.
        mods: Additional mods, which are applied inside of ``SqsgdMod``.
    """

    def __init__(self, client_fn: Any = None, mods: Sequence[Mod] | None = None) -> None:
        super().__init__(client_fn, [SqsgdMod(), *(mods or [])])


@final
class ContextState:
    """A simulated node's state in Flower's ``context.state``: it is lost when the run ends."""

    def __init__(self, context: Context) -> None:
        self._record = cast(ConfigRecord, context.state.setdefault("sqsgd.state", ConfigRecord()))

    def locked(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def read(self, name: str) -> Kept | None:
        content = self._record.get(f"kept {name}")
        return Kept.from_bytes(content) if isinstance(content, bytes) else None

    def write(self, kept: Kept) -> None:
        self._record[f"kept {kept.request.name}"] = kept.to_bytes()

    def pay(self, scheme: Scheme, request: Request) -> None:
        """Pay nothing: a simulation protects nobody."""


def asked_batch(run_config: Mapping[str, Any], content: RecordDict) -> int | None:
    """Return the smallest batch in what the server configures, as an app would read it, or None if there is
    none.

    A batch that is not a number counts as zero: an app may read it differently.
    """
    records: dict[str, Any] = {**content.config_records, **content.metric_records, wire.REQUEST: run_config}
    found = []
    for name, value in (item for record in records.values() for item in record.items()):
        if name.lower().replace("-", "").replace("_", "").endswith(_BATCH):
            try:
                found.append(int(value))
            except (TypeError, ValueError, OverflowError):
                found.append(0)
    return min(found, default=None)


def _in_ray() -> bool:
    """Return whether this process is a worker of Flower's simulation.

    A request cannot make it one. An app's code could: only a guarded node is safe from the code it runs.
    """
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
