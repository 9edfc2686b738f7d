"""Requests and models of the tests, as plain Python objects."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np

from sqsgd import make_scheme
from sqsgd.core.task import Task
from sqsgd.federation.node.answer import Compute, FolderState, Node
from sqsgd.federation.node.policy import Policy, explain
from sqsgd.federation.node.request import Request
from sqsgd.federation.node.structure import Structure, digest

LOG = logging.getLogger("a node of the tests")
DIM = 300
SCHEME = {"scheme": "sqsgd", "epsilon": 200.0, "bytes": 32}


def arrays(value: float = 0.0) -> dict[str, np.ndarray]:
    return {"first": np.full((10, 20), value, np.float32), "second": np.full(100, value, np.float32)}


def target(node: int) -> np.ndarray:
    return np.random.default_rng(node).normal(1.0, 0.1, DIM).astype(np.float32)


def request(weights: np.ndarray | None = None, **changes) -> Request:
    """A request that a node of the tests answers, with some of it changed."""
    weights = np.zeros(DIM, np.float32) if weights is None else weights
    fields = {"round": 0, "client": 5, "seed": 9, "dim": DIM, "bound": 20.0, "clip": None}
    task = Task(**{key: changes.pop(key, value) for key, value in fields.items()})
    signs = {"code": "signs"} if changes.get("scheme", "sqsgd") == "sqsgd" else {}
    values = {"name": "test", **SCHEME, "options": signs, "task": task, "model": digest(weights), **changes}
    if "fingerprint" not in values:
        budget = {"dim": task.dim, "epsilon": values["epsilon"], "bytes": values["bytes"]}
        values["fingerprint"] = make_scheme(values["scheme"], **budget, **values["options"]).fingerprint
    return Request(**values)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def gradient(structure: Structure, weights: np.ndarray) -> np.ndarray:
    """The pull of node 5 towards its target."""
    return weights - target(5)


def ask(
    folder: Path | None,
    asked: Request | dict[str, object],
    model: dict[str, np.ndarray] | None = None,
    *,
    compute: Compute = gradient,
    **config,
) -> bytes | str:
    """A transport in a few lines: node 5's report for a request, or the reason why there is none."""
    fields = asked.to_fields() if isinstance(asked, Request) else asked
    owner = {} if folder is None else {"state-dir": str(folder), "max-epsilon": 1e6}
    owner |= {key.replace("_", "-"): value for key, value in config.items()}
    try:
        policy = Policy.of(owner, simulation=False)
        node = Node(policy=policy, state=FolderState(policy.state_dir, policy), client=5, log=LOG)
        sent = arrays() if model is None else model
        return node.answer(Request.from_fields(fields), lambda: sent, compute)
    except Exception as error:
        return explain(error, fields, owner, LOG)
