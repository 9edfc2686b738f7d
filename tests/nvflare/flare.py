"""A client's context and executors of the tests, made of NVFlare's own parts."""

from __future__ import annotations

import numpy as np
from asking import arrays, request, target
from nvflare.apis.client_engine_spec import ClientEngineSpec
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, SystemConfigs
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.widgets.fed_event import ClientFedEventRunner

from sqsgd.federation.node.structure import flatten
from sqsgd.federation.nvflare import client, sum_records

# As a client's process reads it from the site's local/resources.json when it starts.
ConfigService.add_section(SystemConfigs.RESOURCES_CONF, {"allow_log_streaming": False})


@ClientEngineSpec.register
class Engine:
    """What a context's engine is asked for; ``handlers`` come before NVFlare's sender of federated events."""

    def __init__(self, handlers=(), clients=()):
        self.handlers, self.clients = [*handlers, ClientFedEventRunner()], list(clients)
        self.events, self.sent = [], []
        self.fire_event(EventType.START_RUN, self.new_context())

    def new_context(self):
        return FLContextManager(engine=self, identity_name="site-1", job_id="job").new_context()

    def get_clients(self):
        return self.clients

    def fire_event(self, event_type, fl_ctx):
        self.events.append(event_type)
        for handler in self.handlers:
            handler.handle_event(event_type, fl_ctx)

    def register_aux_message_handler(self, topic, message_handle_func):
        pass

    def fire_and_forget_aux_request(self, topic, request, fl_ctx, optional=False, secure=False):
        self.sent.append(request)


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
        return DXO(self.kind, data=structure.sent(vector), meta={"loss": 0.25}).to_shareable()


class Silo(Executor):
    """Names its records, to a server that asks per record."""

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        import torch

        rows = np.random.default_rng(7).standard_normal((200, 20)).astype(np.float32)
        loss = lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()  # noqa: E731
        return sum_records(torch.nn.Linear(20, 1, bias=False), loss, rows, rows[:, :1] + rows[:, 5:6])


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
    client.write_request(made, request(flatten(model)[1], **changes))
    return made


def norm(vector) -> float:
    return float(np.linalg.norm(vector))
