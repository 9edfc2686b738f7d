"""Evaluation on the nodes' data: each sends one private number, and the server shows their mean.

The numbers reach the server under the nodes' names, so nodes that report once, in a secret order, are not
asked: their guarantee is about all that the server sees of them.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.flower import wire
from sqsgd.flower.answers import Answer, Round, sort_answers
from sqsgd.flower.cohort import SilentNodes, draw
from sqsgd.flower.gathering import exchange, wait_for_nodes
from sqsgd.mechanisms.one_number import OneNumber, mean_of
from sqsgd.node.answer import Node
from sqsgd.node.evaluation import MOST, NAME, evaluation_scheme, worst
from sqsgd.node.policy import Misfit
from sqsgd.node.reasons import NOT_ALLOWED, SPENT
from sqsgd.node.request import Request
from sqsgd.node.structure import Structure, digest
from sqsgd.numerics.epsilon_sums import add_up
from sqsgd.task import Task

if TYPE_CHECKING:
    from sqsgd.flower.strategy import SqsgdStrategy

_LOG = logging.getLogger("flwr")


# ---------------------------------------------------------------- at a node


def evaluate(
    node: Node, request: Request, msg: Message, context: Context, call_next: ClientAppCallable
) -> bytes:
    """A node's report of the metric that the app's ``evaluate`` returns."""
    measure = partial(_measured, str(request.options.get("metric")), msg, context, call_next)
    return node.evaluate(request, wire.download_of(msg.content), measure)


def _measured(
    metric: str,
    msg: Message,
    context: Context,
    call_next: ClientAppCallable,
    structure: Structure,
    weights: Vector,
) -> object:
    msg.content[wire.MODEL] = wire.model_record(structure, weights)  # as checked, whatever was sent
    reply = call_next(msg, context)
    if reply.has_error():
        raise RuntimeError(f"the app answered with an error: {reply.error}")
    found = [record[metric] for record in reply.content.metric_records.values() if metric in record]
    if len(found) != 1:
        raise Misfit(f"the app's reply has {len(found)} metrics named {metric!r}; it must have one")
    return found[0]


# ---------------------------------------------------------------- at the server


class NodeEvaluations:
    """The evaluations of one training: whom to ask, what they answered, what it cost them.

    Guarantees
    ----------
    * Invalid replies are left out, and no reply counts twice:
      tests/flower/test_evaluating.py::test_a_reply_that_is_not_valid_does_not_count.
    * What evaluations cost is part of the training's ``epsilon_total``:
      tests/flower/test_evaluating.py::test_the_total_includes_evaluations.
    """

    def __init__(
        self, epsilon: float, metric: str, maximum: float, *, fraction: float, every: int, once: bool
    ) -> None:
        """``epsilon`` 0: nobody is ever asked. ``fraction`` 0: all nodes are."""
        self.epsilon = checks.real("evaluate-epsilon", epsilon, 0.0, 1e5)
        self.metric, self.maximum = metric, checks.real("evaluate-maximum", maximum, 1e-9, MOST)
        self.fraction = checks.real("fraction_evaluate", fraction, 0.0, 1.0) or 1.0
        self.every, self.spent = every, 0.0
        """Rounds between evaluations; what all of them so far cost a node that answered each."""
        self.config = ConfigRecord()
        self.last: dict[str, Any] = {}
        self._round: Round | None = None
        self._model = ""  # the digest of the model that was evaluated last
        self._unwilling: set[int] = set()
        self._silent, self._asked = SilentNodes(), 0  # by evaluations: a node may train and not evaluate
        if fraction and not epsilon:
            _LOG.warning("sqsgd: fraction_evaluate is ignored: nodes are asked with evaluate_epsilon only")
        if epsilon and once:
            raise ValueError(
                "evaluate-epsilon with once = true: what nodes tell of their data under their own names is "
                "not part of the guarantee of reports in a secret order; evaluate with evaluate_fn"
            )
        if epsilon:
            self.mechanism = OneNumber(epsilon=self.epsilon)
            self.scheme = evaluation_scheme(metric, self.mechanism)

    def resume(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Continue from the recorded rounds."""
        done = [line["evaluation"] for line in lines if line.get("evaluation")]
        self.spent, self.last = add_up(*(each["epsilon"] for each in done)), done[-1] if done else {}

    def planned(self, rounds: int) -> tuple[int, float]:
        """How many evaluations so many rounds have at most, and what each costs a node."""
        return (-(-rounds // self.every), self.epsilon) if self.epsilon else (0, 0.0)

    @property
    def summary(self) -> dict[str, Any]:
        """The last evaluation, for a summary."""
        return {"evaluation": self.last} if self.last else {}

    def ask(
        self,
        strategy: SqsgdStrategy,
        grid: Grid,
        number: int,
        timeout: float,
        result: Result,
        line: dict[str, Any],
    ) -> None:
        """Evaluate after a round, if it is time, and add to the round's line what came of it.

        The line's ``epsilon_total`` includes what all evaluations so far cost a node.
        """
        messages = strategy.configure_evaluate(number, result.arrays, self.config, grid)
        found = strategy.aggregate_evaluate(number, exchange(grid, messages, timeout))
        if found is not None:
            result.evaluate_metrics_clientapp[number] = found
        if messages:
            line |= {name: line[name] + self.last[name] for name in ("bytes_up_total", "bytes_down_total")}
            line["evaluation"] = self.last
        if self.spent:
            line["epsilon_evaluations"] = self.spent
            line["epsilon_total"] = add_up(line["epsilon_total"], self.spent)

    def messages(
        self, strategy: SqsgdStrategy, number: int, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message per node, the request and the whole model, if this round's model is evaluated.

        A model that no round has moved is not evaluated, nor one that was evaluated before.
        """
        self._round = None
        if not self.epsilon or (number != strategy.rounds and number % self.every):
            return []
        state, seed, before = strategy.state, strategy.settings.seed, self._model
        self._model = digest(state.weights)
        if not strategy.tally.stepped or self._model == before:
            return []
        nodes = strategy.silent.removed_from(wait_for_nodes(grid, 0, strategy.wait_timeout), state.round, 1)
        nodes = self._silent.removed_from(nodes, self._asked, 1)
        willing = [node for node in nodes if node not in self._unwilling]
        size = max(1, int(self.fraction * len(willing)))
        self._round = last = Round(state=state, started=time.perf_counter())
        model, config["server-round"] = wire.sent_record(strategy.structure, state.weights), number
        for node in draw(willing, size, seed, number, "evaluation"):
            task = Task(round=number - 1, client=node, seed=seed, dim=1, bound=self.maximum)
            request = Request(
                name=strategy.name,
                scheme=NAME,
                epsilon=self.epsilon,
                bits=self.scheme.bits,
                options={"metric": self.metric},
                fingerprint=self.scheme.fingerprint,
                task=replace(task, dim=strategy.structure.dim),
                model=self._model,
                types=strategy.structure.types,
            )
            content = RecordDict({wire.REQUEST: ConfigRecord(dict(request.to_fields())), wire.CONFIG: config})
            content[wire.MODEL] = model
            secret = secrets.token_hex(16)  # as in ``configure_train``
            kind = MessageType.EVALUATE
            last.asked(node, task, Message(content, dst_node_id=node, message_type=kind, group_id=secret))
        return last.messages

    def mean(self, replies: Iterable[Message | Answer]) -> MetricRecord | None:
        """The mean of the valid replies with its interval; None if nobody was asked, or nobody answered."""
        last, self._round = self._round, None
        if last is None or not last.tasks:
            return None
        sort_answers(last, self.scheme, replies)
        self._silent.update(self._asked, last.tasks, [*last.silent, *last.invalid])
        self._asked += 1
        paid = self.epsilon if last.may_have_paid else 0.0
        self.spent = add_up(self.spent, paid)
        refused = (NOT_ALLOWED, SPENT)  # for this training they will refuse again
        self._unwilling |= {int(each["node"]) for each in last.rejected if each["reason"] in refused}
        reasons = dict(Counter(str(each["reason"]) for each in last.rejected))
        answers = len(last.opened)
        about = {"metric": self.metric, "epsilon": paid, "asked": len(last.tasks)}
        sizes = {**last.totals, **last.serialised_totals}
        self.last = {**about, "answers": answers, "rejected": reasons, **sizes}
        if not answers:
            _LOG.warning("sqsgd: no node evaluated the model: %s", reasons)
            return None
        found = mean_of(self.mechanism, [columns for _, columns, _ in last.opened], self.maximum)
        self.last |= {"mean": found.value, "low": found.low, "high": found.high}
        _LOG.info(
            "sqsgd: %s on the data of %d nodes: %.3f ± %.3f (95 %%), epsilon %g from each",
            self.metric, answers, found.value, found.half_width, self.epsilon,
        )  # fmt: skip
        bottom = worst(self.metric, self.maximum)
        if found.low <= bottom <= found.high and 4 * found.half_width < self.maximum:
            _LOG.warning("sqsgd: that is the worst value: do the apps return a metric %r?", self.metric)
        return MetricRecord({self.metric: found.value, "low": found.low, "high": found.high})
