"""The ready ClientApp: the gradient of one batch, and the accuracy, on the node's partition of the data."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sqsgd.flower import wire
from sqsgd.flower.mod import SqsgdMod
from sqsgd.flower.ready_problem import (
    check_examples,
    check_keys,
    check_names,
    has_own_data,
    held_out_part,
    problem_of,
)
from sqsgd.node.policy import Policy, Refused


def check(context: Context) -> None:
    """Raise Refused if the node is not set up for this app; called before anything is paid.

    Data of the owner's own are not looked at:
    tests/flower/test_ready_client.py::test_nothing_about_own_data_is_told_unpaid.
    """
    partition, parts = (_number(context, key) for key in ("partition-id", "num-partitions"))
    if partition >= parts:
        raise Refused(f"partition-id = {partition} must be below num-partitions = {parts}")
    check_names(context.run_config, context.node_config)
    if not has_own_data(context.run_config):
        _check_examples(context, parts)


def _check_examples(context: Context, parts: int) -> None:
    policy = Policy.of(context.node_config, simulation="state-dir" not in context.node_config)
    check_examples(context.run_config, parts, policy.min_batch)


def dry_run(msg: Message, context: Context) -> Message:
    """A reply as ``train`` returns it, of zeros: of the right length, unless only own data tell it."""
    check_keys(context.run_config)
    if has_own_data(context.run_config):
        gradient = np.zeros_like(msg.content.array_records[wire.MODEL]["weights"].numpy())
    else:
        gradient = np.zeros(problem_of(context.run_config, 1).dim, np.float32)
    return Message(RecordDict({wire.GRADIENT: ArrayRecord({"weights": Array(gradient)})}), reply_to=msg)


app = ClientApp(mods=[SqsgdMod(check=check, dry_run=dry_run)])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """The gradient at the server's weights, which the mod turns into a private report."""
    partition, parts = (_number(context, key) for key in ("partition-id", "num-partitions"))
    _check_examples(context, parts)
    problem = problem_of(context.run_config, parts)
    weights = msg.content.array_records[wire.MODEL]["weights"].numpy()
    round = wire.read_request(msg.content[wire.REQUEST]).task.round
    _, gradient = next(problem.gradients(weights, round, [partition]))
    return Message(RecordDict({wire.GRADIENT: ArrayRecord({"weights": Array(gradient)})}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """The accuracy on the node's part of the held-out data, which the mod turns into one private number."""
    partition, parts = (_number(context, key) for key in ("partition-id", "num-partitions"))
    weights = msg.content.array_records[wire.MODEL]["weights"].numpy()
    accuracy, loss = held_out_part(problem_of(context.run_config, parts), partition).evaluate(weights)
    return Message(RecordDict({"metrics": MetricRecord({"accuracy": accuracy, "loss": loss})}), reply_to=msg)


def _number(context: Context, key: str) -> int:
    value = context.node_config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refused(f"{key} = {value!r} in the node's configuration must be a whole number")
    return value
