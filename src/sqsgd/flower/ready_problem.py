"""The problem of the ready app: a named model on a named dataset, with one partition per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from sqsgd.learning.datasets import Dataset, load_dataset
from sqsgd.learning.factories import is_factory_name
from sqsgd.learning.models import make_model
from sqsgd.learning.problem import LearningProblem, make_problem
from sqsgd.node.policy import Refused

_KEYS = ("dataset", "model", "batch", "seed")


def check_names(run_config: Mapping[str, Any], node_config: Mapping[str, Any]) -> None:
    """Raise Refused if the server names code that the node's owner did not allow.

    The server writes the run's configuration, and a ``package.module:factory`` in it is imported and called.
    """
    for key in ("dataset", "model"):
        name = str(run_config.get(key, ""))
        simulated = "state-dir" not in node_config  # a real node without one was refused before
        if is_factory_name(name) and node_config.get(key) != name and not simulated:
            raise Refused(
                f"{key} = {name[:200]!r} is code, and this node's configuration does not name it: "
                f'to allow it, add {key}="..." with the same name to --node-config'
            )


def has_own_data(run_config: Mapping[str, Any]) -> bool:
    """Whether the dataset is the owner's: nothing that is told without being paid may depend on it."""
    return is_factory_name(str(run_config.get("dataset", "")))


def check_examples(run_config: Mapping[str, Any], parts: int, least: int) -> None:
    """Raise Refused if the dataset is missing, or has fewer examples in a partition than ``least``."""
    try:
        examples = len(_data(str(run_config.get("dataset", ""))).train_inputs) // parts
    except (ValueError, OSError) as error:
        raise Refused(f"the dataset cannot be loaded: {error}") from None
    if examples < least:
        raise Refused(f"a partition has {examples} examples, fewer than this node's min-batch = {least}")


def check_keys(run_config: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting that describes the problem is missing."""
    if missing := [key for key in _KEYS if key not in run_config]:
        raise ValueError(f"the run's configuration lacks {', '.join(missing)}")


def problem_of(run_config: Mapping[str, Any], parts: int) -> LearningProblem:
    """The problem in a run's configuration, with the training data in ``parts`` partitions."""
    check_keys(run_config)
    dataset, model, batch, seed = (run_config[key] for key in _KEYS)
    return _problem(str(dataset), str(model), int(batch), int(seed), parts)


def held_out_part(problem: LearningProblem, part: int) -> LearningProblem:
    """The same problem, with one of as many parts of the held-out data as there are of the training data."""
    data, parts = problem.dataset, problem.clients
    inputs, labels = data.test_inputs[part::parts], data.test_labels[part::parts]
    return replace(problem, dataset=replace(data, test_inputs=inputs, test_labels=labels))


@lru_cache(maxsize=2)
def _data(dataset: str) -> Dataset:
    return load_dataset(dataset)


@lru_cache(maxsize=2)
def _problem(dataset: str, model: str, batch: int, seed: int, parts: int) -> LearningProblem:
    data = _data(dataset)
    return make_problem(
        data,
        make_model(model, data.classes, data.in_shape, seed),
        clients=parts,
        partition_scheme="iid",
        batch=batch,
        participants=None,
        seed=seed,
        workers=1,
    )
