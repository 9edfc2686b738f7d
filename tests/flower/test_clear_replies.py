"""Apps of which only the server's line was changed: their models would leave in the clear."""

import pytest
from federation import IDS, Nodes, lines, model, node_context, nodes_of, strategy
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from sqsgd.flower import SqsgdStrategy
from sqsgd.flower.answers import ClearReplies


def unprotected() -> ClientApp:
    """Flower's own ClientApp, which returns the trained model and metrics."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        content = RecordDict({"arrays": model(1.0), "metrics": MetricRecord({"loss": 1.5})})
        return Message(content, reply_to=msg)

    return app


@pytest.mark.parametrize("start", [SqsgdStrategy.start, Strategy.start], ids=["ours", "Flower's"])
def test_the_training_stops_after_the_first_round(tmp_path, start):
    nodes = nodes_of(tmp_path, unprotected())
    made = strategy(sends="delta", out=tmp_path / "run")
    with pytest.raises(ClearReplies, match=r"3 of 3 nodes .* in the clear.* import ClientApp"):
        start(made, nodes, model(), num_rounds=20)
    assert len(nodes.sent) == 3
    assert not made.state.weights.any()  # nothing was trained
    assert not (tmp_path / "run/model.safetensors").exists()


def test_one_node_without_the_mod_stops_nobody(tmp_path):
    """Else any node could end a training, by sending arrays."""
    nodes = nodes_of(tmp_path)
    clear = Nodes(unprotected(), [node_context(IDS[0], tmp_path / "clear")])

    def spoil(node: int, asked: Message, reply: Message) -> Message:
        return clear.app(asked, clear.contexts[node]) if node == IDS[0] else reply

    nodes.spoil = spoil
    strategy(out=tmp_path / "run").start(nodes, model(), num_rounds=2)
    rejected = [entry["node"] for line in lines(tmp_path / "run/metrics.jsonl") for entry in line["rejected"]]
    assert rejected == [str(IDS[0])] * 2


def test_one_node_stops_nobody_while_the_others_are_late(tmp_path):
    nodes = nodes_of(tmp_path, unprotected())
    nodes.spoil = lambda node, asked, reply: reply if node == IDS[0] else None
    made = strategy(sends="delta")
    made.aggregate_train(1, nodes.send_and_receive(made.configure_train(1, model(), ConfigRecord(), nodes)))
    assert made.current.clear == [IDS[0]]


def test_errors_and_silence_are_no_models(tmp_path):
    """One node of three in the clear, the others fail: it is not known what they would send."""
    nodes = nodes_of(tmp_path, unprotected())
    nodes.spoil = lambda node, asked, reply: (
        reply if node == IDS[0] else Message(Error(8, ""), reply_to=asked)
    )
    made = strategy(sends="delta")
    messages = made.configure_train(1, model(), ConfigRecord(), nodes)
    made.aggregate_train(1, nodes.send_and_receive(messages))
    assert made.current.clear == [IDS[0]]
