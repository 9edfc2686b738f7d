"""What is said before a training begins."""

import logging

import numpy as np
import pytest
from federation import model, nodes_of, strategy
from flwr.app import Array, ArrayRecord

from sqsgd import make_scheme
from sqsgd.flower.outlook import outlook, untrained
from sqsgd.node.structure import flatten

QUICKSTART = 62006  # weights of Flower's quickstart-pytorch


def said(rounds, clients=10, scheme="sqsgd", dim=QUICKSTART, epsilon=400.0, bytes=256, **options):
    found = list(
        outlook(make_scheme(scheme, dim=dim, epsilon=epsilon, bytes=bytes, **options), clients, rounds)
    )
    return [[text for level, text in found if level == wanted] for wanted in (logging.INFO, logging.WARNING)]


def test_blocks_are_counted_until_each_weight_was_heard():
    lines, warnings = said(3)
    assert lines == [
        "scheme sqsgd: a report of 102 bytes holds 100 signed coordinates of 4,096 of 62,006 weights, "
        "rotated",
        "with 10 reports per round a weight is heard every 1.5 rounds on average, and each of 62,006 once "
        "after about 17 rounds",
        "epsilon 400 per report: a node that answers all 3 rounds spends 1200 in total",
    ]
    assert warnings == [
        "3 rounds cannot suffice: 13 % of the weights will never be heard; use 4 rounds or more, more nodes, "
        "or scheme = 'sqsgd-stateless'"
    ]
    assert said(4)[1] == []


def test_evaluations_are_part_of_what_a_node_spends():
    scheme = make_scheme("sqsgd", dim=QUICKSTART, epsilon=400.0, bytes=256)
    texts = [text for _, text in outlook(scheme, 10, 4, (2, 8.0))]
    assert (
        "epsilon 400 per report and 8 per evaluation: a node that answers all 4 rounds and 2 evaluations "
        "spends 1616 in total"
    ) in texts


def test_the_count_is_that_of_the_blocks_themselves():
    """Weights in the blocks of real tasks."""
    from sqsgd.task import Task

    dim, clients = 8192, 5
    scheme = make_scheme("sqsgd", dim=dim, epsilon=40.0, bytes=64, coordinates=512)
    needed = int(said(9, clients, dim=dim, epsilon=40.0, bytes=64, coordinates=512)[0][1].split()[-2])
    heard = np.zeros(dim, bool)
    unheard = []
    for round in range(2 * needed):
        for client in range(clients):
            task = Task(round=round, client=client, seed=3, dim=dim, bound=1.0)
            heard[scheme.transforms[0].coordinates(task, dim)] = True
        unheard.append(int((~heard).sum()))
    assert unheard[needed // 2] > 10
    assert unheard[needed] < 10


def test_whole_updates_are_heard_in_every_round():
    lines, warnings = said(3, scheme="sqsgd-stateless")
    assert "holds 59 signed coordinates of the whole update" in lines[0]
    assert lines[1] == "each of the 62,006 weights is heard in every round"
    assert warnings == []


def test_noise_that_drowns_everything_is_told():
    _, (warning,) = said(3, scheme="sqsgd-stateless", epsilon=8.0, bytes=32)
    assert "30 reports of epsilon 8 are mostly noise; use 9 rounds or more" in warning
    assert said(9, scheme="sqsgd-stateless", epsilon=8.0, bytes=32)[1] == []


def test_it_is_in_the_log_before_anyone_is_asked(tmp_path, caplog):
    big = ArrayRecord({"weights": Array(np.zeros(QUICKSTART, np.float32))})
    made = strategy(scheme="sqsgd", epsilon=400.0, bytes=256, options={}, wait_timeout=0.1)
    nodes = nodes_of(tmp_path)
    nodes.push_messages = lambda messages: pytest.fail("somebody was asked")
    with caplog.at_level("INFO", logger="flwr"), pytest.raises(pytest.fail.Exception):
        made.start(nodes, big, num_rounds=3)
    assert "holds 100 signed coordinates" in caplog.text
    assert "spends 1200 in total" in caplog.text
    assert "3 rounds cannot suffice: 54 %" in caplog.text


def test_running_statistics_and_other_constants_are_named(tmp_path, caplog):
    arrays = {
        "bn.weight": np.ones(40, np.float32), "bn.running_mean": np.zeros(40, np.float32),
        "bn.running_var": np.ones(40, np.float32), "bn.num_batches_tracked": np.array(0),
        "mask": np.array([True, False]),
    }  # fmt: skip
    first, second = untrained(flatten(arrays)[0])
    assert "stay as they are: mask" in first
    assert "bn.running_mean, bn.running_var, bn.num_batches_tracked." in second
    record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    with caplog.at_level("WARNING", logger="flwr"):
        strategy().prepare(nodes_of(tmp_path), record, 3)
    assert "bn.running_var" in caplog.text
    assert list(untrained(flatten({"w": np.ones(3, np.float32)})[0])) == []


def test_no_rounds_and_models_in_the_clear_need_no_warning():
    assert said(0, scheme="sqsgd-stateless")[1] == []
    lines, warnings = said(1, scheme="fedsgd", dim=100)
    assert not any("epsilon" in line for line in lines)
    assert warnings == []


def test_a_model_of_few_weights_is_heard_whole():
    assert model()["first"].numpy().size + model()["second"].numpy().size == 300
    assert said(3, dim=300)[1] == []
