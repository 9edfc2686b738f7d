"""A training that moved no model fails, with the reason, and one report of many moves none."""

import json

import numpy as np
import pytest
from federation import IDS, lines, model, nodes_of, strategy
from flwr.app import ConfigRecord

from sqsgd.flower import wire
from sqsgd.flower.round_tally import NoAnswers, Tally
from sqsgd.node import reasons
from sqsgd.training.algorithm import enough_answers


@pytest.mark.parametrize(("cap", "reason"), [(150.0, reasons.NOT_ALLOWED), (250.0, reasons.SPENT)])
def test_a_training_that_nobody_answered_fails(tmp_path, cap, reason):
    """Three rounds, fewer than end a training early, with owners who refuse or have nothing left."""
    nodes = nodes_of(tmp_path, max_epsilon=cap)
    if reason == reasons.SPENT:
        strategy().start(nodes, model(), num_rounds=1)
        nodes._run_id = 8
    with pytest.raises(NoAnswers, match=f"none of 3 rounds had enough answers.*: {reason}"):
        strategy(out=tmp_path / "run").start(nodes, model(), num_rounds=3)
    assert not (tmp_path / "run/model.safetensors").exists()
    assert not (tmp_path / "run/summary.json").exists()
    assert [line["stepped"] for line in lines(tmp_path / "run/metrics.jsonl")] == [False] * 3


def test_it_fails_again_when_it_is_resumed_and_ends_well_with_more_rounds(tmp_path):
    with pytest.raises(NoAnswers):
        strategy(out=tmp_path / "run").start(nodes_of(tmp_path, max_epsilon=150.0), model(), num_rounds=2)
    with pytest.raises(NoAnswers, match="none of 2 rounds"):
        strategy(out=tmp_path / "run", resume=True).start(nodes_of(tmp_path / "b"), model(), num_rounds=2)
    strategy(out=tmp_path / "run", resume=True).start(nodes_of(tmp_path / "b"), model(), num_rounds=3)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["rounds"], summary["rounds_stepped"], summary["answers"]) == (3, 1, 3)


@pytest.mark.parametrize(("answering", "moves"), [(1, False), (4, False), (5, True)])
def test_one_report_of_many_does_not_move_the_model(tmp_path, answering, moves):
    nodes = nodes_of(tmp_path, ids=range(10, 20))
    nodes.spoil = lambda node, _, reply: reply if node < 10 + answering else None
    made = strategy()
    messages = made.configure_train(1, model(), ConfigRecord(), nodes)
    after, _ = made.aggregate_train(1, nodes.send_and_receive(messages))
    assert (np.any(wire.flatten_record(after)[1]), made.tally.stepped) == (moves, moves)


def test_bytes_down_are_counted_where_nobody_answers(tmp_path):
    """The model went down all the same; to a node that could not be asked, it did not."""
    nodes = nodes_of(tmp_path, max_epsilon=250.0)
    kept = nodes.push_messages

    def push(messages):
        names = kept(messages)
        return ["" if message.metadata.dst_node_id == IDS[0] else name
                for message, name in zip(messages, names, strict=True)]  # fmt: skip

    made = strategy(out=tmp_path / "run")
    nodes.push_messages = push
    made.start(nodes, model(), num_rounds=2, timeout=20)
    first, second = lines(tmp_path / "run/metrics.jsonl")
    assert (first["clients"], second["clients"]) == (2, 0)
    for line in (first, second):
        assert line["bytes_down_total"] == 2 * line["bytes_down"] > 2 * 1200
    assert (first["bytes_up_total"], second["bytes_up_total"]) == (2 * first["bytes_up"], 0)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["bytes_down_total"] == first["bytes_down_total"] + second["bytes_down_total"]
    assert summary["bytes_down"] == first["bytes_down"]


def test_lines_of_earlier_versions_are_counted_by_their_answers():
    old = [{"clients": 1, "rejected": []}, {"clients": 0, "rejected": [{"reason": "a"}, {"reason": "a"}]}]
    assert (Tally.of(old).stepped, Tally.of(old).rounds, Tally.of(old).problem) == (1, 2, "")
    assert Tally.of(old[1:]).problem.endswith("so nothing was trained; the most frequent reason: a")
    assert Tally.of([]).problem == ""


@pytest.mark.parametrize(
    ("given", "asked", "needed"), [(0, 1, 1), (0, 2, 1), (0, 7, 4), (3, 100, 3), (0, 0, 1)]
)
def test_half_of_those_asked_unless_it_is_said(given, asked, needed):
    assert enough_answers(given, asked) == needed
