"""The server: what it asks, and that it reaches its goal."""

from datetime import UTC, datetime

import numpy as np
import pytest
from federation import IDS, make_app, model, nodes_of, strategy, target
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from sqsgd.flower import wire

GOAL = np.mean([target(node) for node in IDS], axis=0)


def distance(arrays: ArrayRecord) -> float:
    return float(np.linalg.norm(wire.flatten_record(arrays)[1] - GOAL) / np.linalg.norm(GOAL))


@pytest.mark.parametrize("sends", ["gradient", "delta"])
def test_training_reaches_the_goal(tmp_path, sends):
    made = strategy(sends=sends, lr=None)
    measured = []

    def evaluate(round, arrays):
        measured.append(distance(arrays))
        return MetricRecord({"accuracy": 1 - measured[-1]})

    result = made.start(
        nodes_of(tmp_path, make_app(sends=sends)), model(), num_rounds=40, evaluate_fn=evaluate
    )
    assert measured[-1] < 0.25 < measured[0]
    assert distance(result.arrays) == measured[-1]
    assert list(result.arrays) == ["first", "second"]


def test_a_messages_name_cannot_be_told_by_another_node(tmp_path, monkeypatch):
    """Flower takes a reply in anybody's name from whoever knows the message that it replies to."""
    monkeypatch.setattr("flwr.app.message.message.now", lambda: datetime.fromtimestamp(1e9, UTC))

    def messages():
        return strategy().configure_train(1, model(), ConfigRecord(), nodes_of(tmp_path))

    first, second = messages(), messages()
    assert not {message.object_id for message in first} & {message.object_id for message in second}
    for message in first + second:  # but for this, a name is a hash of what every node knows or can guess
        assert len(bytes.fromhex(message.metadata.group_id)) == 16
        message.metadata.__dict__["_group_id"] = ""
    assert [message.object_id for message in first] == [message.object_id for message in second]


def test_flowers_own_loop_works_too(tmp_path):
    from flwr.serverapp.strategy import Strategy

    made = strategy()
    Strategy.start(made, nodes_of(tmp_path), model(), num_rounds=3)
    assert made.state.round == 3


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"scheme": "sqsdg"}, "did you mean"), ({"epsilon": -1}, "epsilon"), ({"sends": "x"}, "sends"),
        ({"downlink": "x"}, "downlink"), ({"downlink": "delta", "optimizer": "adam"}, "optimizer's state"),
        ({"resume": True}, "needs out"), ({"out": "relative"}, "absolute"),
        ({"min_answers": -1}, "min-answers"),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(changes, word):
    with pytest.raises(ValueError, match=word):
        strategy(**changes)
