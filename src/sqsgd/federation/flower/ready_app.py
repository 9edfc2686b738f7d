"""The ready app: a named model on a named dataset, with one partition per node.

The folder that ``flwr run`` takes is ``sqsgd.federation.flower.app_folder()``.
"""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from sqsgd.federation.flower import wire
from sqsgd.federation.flower.mod import SqsgdMod, correct_report, record_report
from sqsgd.federation.node.policy import Policy, Refused
from sqsgd.federation.node.server import FederationSettings
from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.factories import is_factory_name
from sqsgd.learning.features import extracted, extractor_and_model
from sqsgd.learning.models import make_model
from sqsgd.learning.problem import LearningProblem, make_problem
from sqsgd.training.settings import RECORD

_KEYS = ("dataset", "model", "batch", "seed")


def problem_of(run_config: Mapping[str, Any], parts: int) -> LearningProblem:
    dataset, model, batch, seed = (run_config[key] for key in _KEYS)
    return _problem(str(dataset), str(model), int(batch), int(seed), parts)


_data = lru_cache(maxsize=2)(load_dataset)


@lru_cache(maxsize=2)
def _problem(dataset: str, model: str, batch: int, seed: int, parts: int) -> LearningProblem:
    data, division = _data(dataset), {"clients": parts, "partition_scheme": "iid", "participants": None}
    features, model = extractor_and_model("", model)
    data = extracted(data, features) if features else data
    made = make_model(model, data.classes, data.in_shape, seed, intercept=not features)
    return make_problem(data, made, batch=batch, seed=seed, workers=1, **division)  # type: ignore[arg-type]


def check(context: Context) -> None:
    """Raise Refused if the node is not set up for this app; called before anything is paid.

    A ``package.module:factory`` in the server's configuration is called only if the owner names it too. Data
    of the owner's own are not looked at:
    tests/flower/test_ready_app.py::test_nothing_about_own_data_is_told_unpaid.
    """
    partition, parts = _part(context)
    if partition >= parts:
        raise Refused(f"partition-id = {partition} must be below num-partitions = {parts}")
    if missing := [key for key in _KEYS if key not in context.run_config]:
        raise Refused(f"the run's configuration lacks {', '.join(missing)}")
    simulated = "state-dir" not in context.node_config  # a real node without one was refused before
    for key in ("dataset", "model"):
        name = str(context.run_config.get(key, ""))
        if is_factory_name(name) and context.node_config.get(key) != name and not simulated:
            code = f"{key} = {name[:200]!r} is code, and this node's configuration does not name it"
            raise Refused(f'{code}: to allow it, add {key}="..." to --node-config')
    if not is_factory_name(str(context.run_config["dataset"])):
        _check_examples(context, parts)


def _check_examples(context: Context, parts: int) -> None:
    """Raise Refused if the dataset is missing, or a partition has fewer examples than the owner's least."""
    least = Policy.of(context.node_config, simulation="state-dir" not in context.node_config).min_batch
    try:
        examples = len(_data(str(context.run_config.get("dataset", ""))).train_inputs) // parts
    except (ValueError, OSError) as error:
        raise Refused(f"the dataset cannot be loaded: {error}") from None
    if examples < least:
        raise Refused(f"a partition has {examples} examples, fewer than this node's min-batch = {least}")


def _part(context: Context) -> list[int]:
    found = list[int]()
    for key in ("partition-id", "num-partitions"):
        value = context.node_config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise Refused(f"{key} = {value!r} in the node's configuration must be a whole number")
        found.append(value)
    return found


client_app = ClientApp(mods=[SqsgdMod(check=check)])


@client_app.train()
def train(msg: Message, context: Context) -> Message:
    partition, parts = _part(context)
    _check_examples(context, parts)
    asked, problem = wire.read_request(msg.content[wire.REQUEST]), problem_of(context.run_config, parts)
    if asked.scheme == RECORD:
        mine = problem.taker(partition)(np.arange(len(problem.parts[partition])))
        return record_report(msg, problem.model, problem.objective, *mine)
    weights = msg.content.array_records[wire.MODEL]["weights"].numpy()
    _, gradient = next(problem.gradients(weights, asked.task.round, [partition]))
    return Message(RecordDict({wire.GRADIENT: ArrayRecord({"weights": Array(gradient)})}), reply_to=msg)


@client_app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Return the number of correct predictions for the node's part of the test examples."""
    partition, parts = _part(context)
    problem = problem_of(context.run_config, parts)
    data = problem.dataset
    inputs, labels = (array[partition::parts] for array in (data.test_inputs, data.test_labels))
    return correct_report(msg, problem.model, inputs, labels)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    from sqsgd.federation.flower.strategy import SqsgdStrategy  # nodes do not load it

    config: dict[str, Any] = dict(context.run_config)
    problem, nodes = problem_of(config, 1), config["min-nodes"]
    if config["unit"] == "record":
        problem.check_records()

    def measure(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy, loss = problem.evaluate(arrays["weights"].numpy())
        return MetricRecord({"accuracy": accuracy, "test_loss": loss})

    own = {*inspect.signature(SqsgdStrategy).parameters, *FederationSettings.__dataclass_fields__}
    given = {key.replace("-", "_"): value for key, value in config.items()}
    options = {key: value for key, value in given.items() if key in own}
    options |= {"min_available_nodes": nodes, "sends": "gradient", "out": config["out"] or None}
    if config["unit"] == "record" and extractor_and_model("", config["model"])[0]:
        options["rule"] = "softmax"
    SqsgdStrategy(**options).start(
        grid=grid,
        initial_arrays=ArrayRecord({"weights": Array(problem.initial())}),
        num_rounds=config["num-server-rounds"],
        timeout=config["round-timeout"],
        evaluate_fn=measure,
    )
