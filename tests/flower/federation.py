"""A federation in one process: real messages through Flower's real serialisation, without sockets or Ray."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from asking import DIM as DIM
from asking import SCHEME as SCHEME
from asking import arrays, target
from asking import lines as lines
from asking import request as request
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from sqsgd.federation.flower import SqsgdMod, SqsgdStrategy, app_folder, wire
from sqsgd.federation.flower.answers import exchange
from sqsgd.federation.node.request import Request

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
IDS = (5, 2**63 + 11, 8)  # Flower's node identities have 64 bits


def travelled(message: Message) -> Message:
    """A message as it arrives: deflated, and inflated again from its bytes."""
    return inflated(message.object_id, deflated(message), message.metadata.message_id)


def deflated(message: Message) -> dict[str, bytes]:
    return {key: part.deflate() for key, part in get_all_nested_objects(message).items()}


def inflated(name: str, contents: dict[str, bytes], message_id: str) -> Message:
    """As Flower's grid does it: raises where a node wrote what cannot be read."""
    arrived = inflate_object_from_contents(name, dict(contents))
    arrived.metadata.__dict__["_message_id"] = message_id
    return arrived


def model(value: float = 0.0) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays(value).items()})


def make_app(mod: SqsgdMod | None = None, sends: str = "gradient", calls: list | None = None) -> ClientApp:
    """Each node pulls the model towards a target of its own; it sends its loss along, as apps do."""
    app = ClientApp(mods=[mod or SqsgdMod()])

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        if calls is not None:
            calls.append(context.node_id)
        structure, weights = wire.flatten_record(msg.content["arrays"])
        gradient = weights - target(context.node_id)
        content = RecordDict({"metrics": MetricRecord({"loss": 1.5, "num-examples": 77})})
        if sends == "gradient":
            content["gradient"] = wire.model_record(structure, gradient)
        else:
            content["arrays"] = wire.model_record(structure, weights - np.float32(0.3) * gradient)
        return Message(content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.5})}), reply_to=msg)

    return app


def node_context(node: int, folder: Path | None, **config) -> Context:
    values = {} if folder is None else {"state-dir": str(folder), "max-epsilon": 1e6}
    values |= {key.replace("_", "-"): value for key, value in config.items()}
    values = {key: value for key, value in values.items() if value is not None}
    return Context(run_id=1, node_id=node, node_config=values, state=RecordDict(), run_config={})


def message(asked: Request, arrays: ArrayRecord | None = None, kind: str = "train", **extra) -> Message:
    """The message of a request; ``extra`` changes fields of its record."""
    record = ConfigRecord({**asked.to_fields(), **extra})
    content = RecordDict({wire.REQUEST: record, "config": ConfigRecord({"lr": 0.1})})
    content["arrays"] = model() if arrays is None else arrays
    sent = Message(content, dst_node_id=asked.task.client, message_type=kind)
    sent.metadata.__dict__["_message_id"] = "1"
    return travelled(sent)


class Nodes(Grid):
    """Nodes that answer at once. ``spoil`` may replace a node's answer; None: it never comes; bytes: an
    object as it lies at the SuperLink."""

    def __init__(self, app: ClientApp, contexts: Iterable[Context], run_id: int = 7) -> None:
        self.app, self.contexts = app, {context.node_id: context for context in contexts}
        self.spoil: Callable[[int, Message, Message], Message | bytes | None] = lambda _, __, reply: reply
        self.sent: list[Message] = []
        self.absent: set[int] = set()
        self._answers: dict[str, tuple[str, dict[str, bytes]]] = {}
        self._run_id, self._count = run_id, 0

    def set_run(self, run) -> None:
        raise NotImplementedError

    @property
    def run(self):
        return SimpleNamespace(run_id=self._run_id)

    def create_message(self, *_, **__):
        raise NotImplementedError

    def get_node_ids(self):
        return [node for node in self.contexts if node not in self.absent]

    def push_messages(self, messages):
        names = []
        for sent in messages:
            self._count += 1
            sent.metadata.__dict__["_message_id"] = str(self._count)
            self.sent.append(sent)
            node = sent.metadata.dst_node_id
            arrived = travelled(sent)
            reply = self.spoil(node, arrived, self.app(arrived, self.contexts[node]))
            if isinstance(reply, bytes):
                self._answers[str(self._count)] = get_object_id(reply), {get_object_id(reply): reply}
            elif reply is not None:
                self._answers[str(self._count)] = reply.object_id, deflated(reply)
            names.append(str(self._count))
        return names

    def node_of(self, message_id: str) -> int:
        return self.sent[int(message_id) - 1].metadata.dst_node_id

    def pull_messages(self, message_ids):
        found = [self._answers.pop(name) for name in list(message_ids) if name in self._answers]
        return [inflated(*answer, "") for answer in found]

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError


def nodes_of(tmp_path, app=None, ids=IDS, **config) -> Nodes:
    return Nodes(app or make_app(), [node_context(i, tmp_path / str(i), **config) for i in ids])


def strategy(**changes) -> SqsgdStrategy:
    settings = {"epsilon": 200.0, "bytes": 32, "lr": 0.4, "seed": 1, "sends": "gradient"}
    settings["min_available_nodes"] = 3
    if changes.get("scheme", "sqsgd") == "sqsgd":
        settings["options"] = {"code": "signs"}
    return SqsgdStrategy(**{**settings, **changes})


def payload_of(reply: Message) -> bytes:
    assert not reply.has_error(), reply.error
    return reply.content[wire.REPORT][wire.PAYLOAD]


def one_round(made: SqsgdStrategy, nodes: Nodes, number: int = 1) -> ArrayRecord:
    """The model after one round."""
    messages = made.configure_train(number, model(), ConfigRecord(), nodes)
    return made.aggregate_train(number, exchange(nodes, messages, 1.0))[0]


def answer(asked, context, app=None, **extra) -> Message:
    return (app or make_app())(message(asked, **extra), context)


def ready_settings() -> dict:
    """The configuration of the ready app, as it comes."""
    return tomllib.loads((app_folder() / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
