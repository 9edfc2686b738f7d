"""The folder of a run, from the database of a study that has ended, for ``sqsgd report``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd.checks import Vector
from sqsgd.collect.database import Database
from sqsgd.collect.exposition import admission, guarantee, refusals, rounds_done
from sqsgd.collect.slots import ENDED, stage
from sqsgd.collect.stepping import read_state
from sqsgd.collect.study import Study
from sqsgd.training import RunConfig, initial_state
from sqsgd.training.run_folder import RunFolder
from sqsgd.training.summary import summarise

Arrays = dict[str, npt.NDArray[np.generic]]


def write_outcome(path: Path, database: Database, study: Study) -> dict[str, Any]:
    """Write the run of a study that has ended, if no other process has; returns its summary."""
    at, lines, folder = stage(database), rounds_done(database), RunFolder(path)
    if at.state != ENDED:
        raise ValueError(f"study {study.name} has not ended: it is in round {at.round} of {study.rounds}")
    summary = _summary(database, study, lines)
    if folder.finished:
        return summary
    about = {"fingerprint": study.made_scheme.fingerprint, "rate": study.lr}
    config = RunConfig(
        **{**asdict(study.settings), "rounds": max(1, len(lines))},
        dataset="data of the devices",
        model=study.name,
        clients=study.users,
        participation="once",
        engine="devices",
    )
    last = read_state(database, at.round)
    with folder.held():
        if not folder.begun:
            folder.save(initial_state(read_state(database, 0).weights, study.settings), about)
        folder.write_config(config.to_toml())
        folder.keep_rounds(0)
        for line in lines:
            folder.write(line)
        folder.save(last, about)
        (names,) = database.read("SELECT names FROM study")[0]
        folder.finish(named(last.weights, names), summary)
    return summary


def _summary(database: Database, study: Study, lines: list[dict[str, Any]]) -> dict[str, Any]:
    return summarise(
        lines,
        study.made_scheme,
        study.settings,
        once=True,
        dataset="data of the devices",
        held_out="nothing: the service has no data",
        model=study.name,
        participation="once",
        clients=study.users,
        noise="secure",
        study=study.id,
        admission=admission(study),
        refusals=refusals(database),
        **guarantee(study, lines),
    )


def flat(arrays: Arrays) -> tuple[Vector, str]:
    """The arrays of a model as one vector, and JSON about their names and shapes."""
    for name, array in arrays.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite float32 numbers; it is {array.dtype}")
    names = [(name, list(array.shape)) for name, array in sorted(arrays.items())]
    parts = [np.asarray(arrays[name], np.float32).reshape(-1) for name, _ in names]
    return np.concatenate(parts), json.dumps(names)


def named(weights: Vector, names: str) -> Arrays:
    """The arrays that ``flat`` made one vector of."""
    arrays, at = {}, 0
    for name, shape in json.loads(names):
        size = int(np.prod(shape, dtype=np.int64))
        arrays[name] = weights[at : at + size].reshape(shape)
        at += size
    return arrays
