"""Who is asked: drawn by public randomness, and a silent node less and less often."""

import pytest
from federation import IDS, lines, model, nodes_of, strategy
from flwr.app import ConfigRecord, Error, Message, RecordDict

from sqsgd.federation.flower import wire
from sqsgd.federation.flower.cohort import SilentNodes, draw
from sqsgd.federation.node.policy import SPENT


def test_nodes_are_drawn_again_each_round_and_the_same_for_everyone():
    nodes = list(range(100, 130))
    rounds = [draw(nodes, 5, seed=3, round=round) for round in range(20)]
    assert rounds == [draw(nodes, 5, seed=3, round=round) for round in range(20)]
    assert all(len(set(drawn)) == 5 and set(drawn) <= set(nodes) for drawn in rounds)
    assert len({tuple(drawn) for drawn in rounds}) == 20
    assert draw(nodes, 30, seed=3, round=0) == draw(nodes, 99, seed=3, round=0) == nodes


def asked_in(silent_nodes, rounds, silent=(7,), nodes=(5, 7, 9)):
    """The rounds in which each silent node was asked."""
    found = []
    for round in rounds:
        asked = silent_nodes.removed_from(nodes, round, 1)
        found += [round for node in asked if node in silent]
        silent_nodes.update(round, asked, [node for node in asked if node in silent])
    return found


def test_a_silent_node_sits_out_longer_and_longer():
    assert asked_in(SilentNodes(), range(60)) == [0, 1, 4, 9, 18, 35]


def test_where_too_few_would_be_left_all_are_asked():
    silent_nodes = SilentNodes()
    asked_in(silent_nodes, range(2), silent=(5, 7))
    assert silent_nodes.removed_from([5, 7, 9], 2, 1) == [9]
    assert silent_nodes.removed_from([5, 7, 9], 2, 2) == [5, 7, 9]


def spoiled(kind):
    """Node 5 is silent, or answers with something else."""
    record = ConfigRecord({wire.PAYLOAD: b"garbage"})
    wrong = {
        "silent": None,
        "refusal": Error(code=1, reason=SPENT),
        "garbage": RecordDict({wire.REPORT: record}),
    }

    def spoil(node, message, reply):
        if node != IDS[0]:
            return reply
        return None if wrong[kind] is None else Message(wrong[kind], reply_to=message)

    return spoil


@pytest.mark.parametrize(
    ("kind", "resumed", "asked"),
    [
        ("silent", False, [3, 3, 2, 2, 3]),
        ("silent", True, [3, 3, 2, 2, 3]),
        ("garbage", False, [3, 3, 2, 2, 3]),
        ("refusal", False, [3, 3, 3, 3, 3]),
    ],
)
def test_who_sends_nothing_valid_sits_out_and_who_refuses_does_not(tmp_path, kind, resumed, asked, caplog):
    nodes = nodes_of(tmp_path)
    nodes.spoil = spoiled(kind)
    seconds = 0.3 if kind == "silent" else 5.0
    with caplog.at_level("WARNING", logger="flwr"):
        for rounds in (2, 5) if resumed else (5,):
            made = strategy(out=tmp_path / "run", resume=True)
            made.start(nodes, model(), num_rounds=rounds, timeout=seconds)
    written = lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["asked"] for line in written] == asked
    assert [line["clients"] for line in written] == [2] * 5
    told = f"node {IDS[0]} sent nothing valid in 2 rounds in a row: it sits out 2"
    assert (told in caplog.text) == (kind != "refusal")
