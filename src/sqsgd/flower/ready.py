"""The problem of the ready app: a named model on a named data set, in as many parts as there are nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqsgd.learning.datasets import load_dataset
from sqsgd.learning.models import make_model
from sqsgd.learning.problem import LearningProblem, make_problem


def problem_of(run_config: Mapping[str, Any], parts: int) -> LearningProblem:
    """The problem of a run's configuration, with the training data in ``parts`` parts."""
    keys = ("dataset", "model", "batch", "seed")
    missing = [key for key in keys if key not in run_config]
    if missing:
        raise ValueError(f"the run's configuration has no {', '.join(missing)}")
    dataset, model, batch, seed = (run_config[key] for key in keys)
    return _problem(str(dataset), str(model), int(batch), int(seed), parts)


@lru_cache(maxsize=2)
def _problem(dataset: str, model: str, batch: int, seed: int, parts: int) -> LearningProblem:
    data = load_dataset(dataset)
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
