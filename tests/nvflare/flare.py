"""A client's context and executors of the tests, made of NVFlare's own parts."""

from __future__ import annotations

import numpy as np
from asking import arrays, request, target
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable

from sqsgd.node.structure import flatten
from sqsgd.nvflare import shareables


class Engine:
    """What a context's engine is asked for."""

    def __init__(self, components=(), clients=()):
        self.components, self.clients, self.events = dict(components), list(clients), []

    def get_all_components(self):
        return self.components

    def get_clients(self):
        return self.clients

    def fire_event(self, event_type, fl_ctx):
        self.events.append(event_type)


class Runner:
    """A client's runner with one executor."""

    def __init__(self, executor):
        self.executor = executor

    def find_executor(self, task_name):
        return self.executor if task_name == "train" else None


class Trainer(Executor):
    """Pulls the model towards a target; ``kind`` says what it returns, ``error`` what it raises."""

    def __init__(self, kind=DataKind.WEIGHTS, error=None, before=lambda: None):
        super().__init__()
        self.kind, self.error, self.before, self.calls = kind, error, before, 0

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        self.before()
        self.calls += 1
        if self.error is not None:
            raise self.error
        structure, weights = flatten(from_shareable(shareable).data)
        change = target(5) - weights
        vector = change if self.kind == DataKind.WEIGHT_DIFF else weights + change
        return DXO(self.kind, data=structure.unflatten(vector), meta={"loss": 0.25}).to_shareable()


def context(executor=None, *, name="site-1", peer=None, engine=None, direction=FilterKey.IN) -> FLContext:
    """The context of a task at a client, or at the server when ``peer`` answered."""
    made = FLContextManager(engine=engine or Engine(), identity_name=name, job_id="job").new_context()
    for key, value in {
        FLContextKey.RUNNER: Runner(executor),
        FLContextKey.TASK_NAME: "train",
        FLContextKey.FILTER_DIRECTION: direction,
    }.items():
        made.set_prop(key, value, private=True, sticky=False)
    if peer is not None:
        other = FLContext()
        other.put(ReservedKey.IDENTITY_NAME, peer, private=False, sticky=False)
        made.set_peer_context(other)
    return made


def task_data(model=None, **changes) -> Shareable:
    """The data of a training task, with a request."""
    model = arrays() if model is None else model
    made = DXO(DataKind.WEIGHTS, data=model).to_shareable()
    shareables.write_request(made, request(flatten(model)[1], **changes))
    return made


def norm(vector) -> float:
    return float(np.linalg.norm(vector))
