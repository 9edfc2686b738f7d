"""``SqsgdStrategy`` in place of ``FedAvg``: it takes the same options unchanged."""

import inspect

import numpy as np
import pytest
from federation import IDS, model, nodes_of, strategy
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from sqsgd.flower import SqsgdMod, SqsgdStrategy, wire
from sqsgd.flower.gathering import TooFewNodes
from sqsgd.flower.round_tally import NoAnswers


def test_every_option_of_flowers_is_taken_as_it_stands(caplog):
    defaults = {name: each.default for name, each in inspect.signature(FedAvg).parameters.items()}
    assert len(defaults) >= 10
    with caplog.at_level("WARNING", logger="flwr"):
        made = SqsgdStrategy(**defaults | {"min_available_nodes": 5, "min_train_nodes": 3})
    assert (made.min_nodes, made.min_train_nodes) == (5, 3)
    assert "weighted_by_key is ignored: all reports weigh the same" in caplog.text


def test_as_many_are_waited_for_and_asked_as_is_said(tmp_path):
    with pytest.raises(TooFewNodes, match="3 nodes are connected, 4 are needed"):
        strategy(min_available_nodes=4, wait_timeout=0.2).start(nodes_of(tmp_path), model())
    for least, asked in ((0, 1), (2, 2)):
        made = strategy(fraction_train=0.4, min_train_nodes=least)
        messages = made.configure_train(1, model(), ConfigRecord(), nodes_of(tmp_path))
        assert len(messages) == asked


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"arrayrecord_key": "weights"}, ValueError, "arrayrecord_key = 'weights' must be 'arrays'"),
        ({"min_node": 3}, TypeError, "has no option 'min_node'; did you mean 'min_nodes'?"),
        ({"min_train_nodes": "2"}, ValueError, "min_train_nodes = '2' must be a whole number"),
        ({"bytes": 1.5}, ValueError, "bytes = 1.5 must be a whole number"),
        ({"lr": 0.0}, ValueError, "lr = 0.0 must be a finite number above 0"),
        ({"clients_per_round": 2, "min_answers": 3}, ValueError, "no round could have enough answers"),
    ],
)
def test_invalid_options_are_named(options, error, words):
    with pytest.raises(error, match=words.replace("?", r"\?")):
        strategy(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": None}, "timeout = None must be a number"),
        ({"num_rounds": "3"}, "num_rounds = '3' must be"),
    ],
)
def test_what_cannot_be_of_start_is_named_before_anyone_is_asked(tmp_path, options, words):
    nodes = nodes_of(tmp_path)
    with pytest.raises(ValueError, match=words):
        strategy().start(nodes, model(), **options)
    assert not nodes.sent


@pytest.mark.parametrize(("rounds", "timeout"), [(0, 5.0), (1, 0)])
def test_no_rounds_and_no_time_are_no_mistakes(tmp_path, rounds, timeout):
    made = strategy(out=tmp_path / "run")
    made.start(nodes_of(tmp_path), model(), num_rounds=rounds, timeout=timeout)
    assert made.state.round == rounds
    assert (tmp_path / "run/summary.json").exists()


def test_too_few_answers_say_how_many_there_were(tmp_path):
    nodes = nodes_of(tmp_path)
    nodes.spoil = lambda node, _, reply: b"Message  0\0" if node == IDS[0] else reply
    with pytest.raises(NoAnswers, match=r"the last one 2 of 3 that were asked \(1: unreadable"):
        strategy(min_answers=3).start(nodes, model(), num_rounds=20, timeout=5)


def arrays(more) -> ArrayRecord:
    return ArrayRecord({"first": Array(np.zeros(200, np.float32)), "more": Array(more)})


@pytest.mark.parametrize(
    "more",
    [
        np.array(1, np.float32),
        np.array(1.0),
        np.ones((2, 3), np.float16),
        np.zeros((0, 3), np.float32),
        np.array(3),
        np.zeros(0, np.int64),
        np.array(True),
    ],
    ids=["a number", "a double", "halves", "empty", "a count", "no counts", "a flag"],
)
@pytest.mark.parametrize("downlink", ["full", "delta"])
def test_arrays_reach_the_app_in_their_own_shape(tmp_path, more, downlink):
    """A single number stays one: as an array of one number no model would take it back. Its type stays."""
    seen, app = [], ClientApp(mods=[SqsgdMod()])

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        seen.append(msg.content["arrays"]["more"].numpy())
        structure, weights = wire.flatten_record(msg.content["arrays"])
        return Message(
            RecordDict({"gradient": wire.model_record(structure, np.ones_like(weights))}), reply_to=msg
        )

    made = strategy(downlink=downlink)
    result = made.start(nodes_of(tmp_path, app), arrays(more), num_rounds=2)
    for array in [*seen, result.arrays["more"].numpy()]:
        assert (array.shape, array.dtype) == (more.shape, more.dtype)
    assert np.mean(result.arrays["first"].numpy()) < 0  # what the app computed was reported


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (np.zeros(2, np.longdouble), "array 'more' is .*: weights must be float32, float64 or float16"),
        (np.zeros(2, complex), "array 'more' is complex128"),
        (np.full(2, np.nan, np.float32), r"the model's weights\[200\] = nan must be finite"),
    ],
)
def test_what_cannot_be_trained_is_named_before_anyone_is_asked(tmp_path, more, words):
    nodes = nodes_of(tmp_path)
    with pytest.raises(ValueError, match=words):
        strategy().start(nodes, arrays(more), num_rounds=1)
    assert not nodes.sent
