"""``reports``: passes through all nodes, each in another secret order; a node pays for all or for none."""

import itertools
import json

import pytest
from federation import model, nodes_of, strategy
from flwr.app import ConfigRecord
from reference import g_test

from sqsgd import Ledger, central_guarantee
from sqsgd.federation.flower import wire
from sqsgd.federation.flower.answers import exchange
from sqsgd.federation.flower.cohort import NodeOrder
from sqsgd.federation.node.policy import ANSWERED
from sqsgd.federation.node.server import NoAnswers

IDS = range(10, 22)
TWICE = {
    "reports": 2, "clients_per_round": 4, "min_available_nodes": 12, "scheme": "privunit-index",
    "epsilon": 8.0, "decay": "none",
}  # fmt: skip


def asked_in_passes(nodes, rounds=3) -> list[list[int]]:
    """The nodes of each pass in the order of their slots."""
    found: dict[int, list[int]] = {}
    for sent in nodes.sent:
        round = wire.read_request(sent.content[wire.REQUEST]).task.round
        found.setdefault(round // rounds, []).append(sent.metadata.dst_node_id)
    return list(found.values())


def test_each_node_reports_once_in_each_pass(tmp_path):
    nodes = nodes_of(tmp_path, ids=IDS, max_epsilon=16.0)
    made = strategy(**TWICE, out=tmp_path / "run")
    made.start(nodes, model(), num_rounds=6)
    first, second = asked_in_passes(nodes)
    assert sorted(first) == sorted(second) == list(IDS)
    assert first != second
    assert {Ledger(tmp_path / str(node) / "ledger").spent for node in IDS} == {16}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["reports"], summary["epsilon_all_rounds"], summary["users"]) == (2, 16.0, 12)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epsilon_total"] for line in lines] == [8.0] * 3 + [16.0] * 3


def test_the_summary_composes_the_passes(tmp_path):
    nodes = nodes_of(tmp_path, ids=range(10, 50))
    changes = {"clients_per_round": 20, "min_available_nodes": 40, "epsilon": 0.25}
    made = strategy(**{**TWICE, **changes}, out=tmp_path / "run")
    made.start(nodes, model(), num_rounds=4)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    known = central_guarantee(made.scheme, 40, 1e-6, reports=2)
    assert (summary["order"], summary["central_order"]) == ("run", "run")
    assert summary["central_epsilon"] == known.epsilon < 0.5
    assert json.loads((tmp_path / "run" / "central.json").read_text())["reports"] == 2


def test_a_node_without_the_budget_for_all_reports_pays_for_none(tmp_path):
    nodes = nodes_of(tmp_path, ids=IDS, max_epsilon=12.0)
    with pytest.raises(NoAnswers, match="its privacy budget is spent"):
        strategy(**TWICE, out=tmp_path / "run").start(nodes, model(), num_rounds=6)
    assert len(nodes.sent) == 24
    assert {Ledger(tmp_path / str(node) / "ledger").spent for node in IDS} == {0}
    refusal = json.loads((tmp_path / "10" / "refusals.jsonl").read_text().splitlines()[0])
    assert "it would cost epsilon 16.0" in refusal["reason"]


def test_a_node_answers_as_often_as_it_was_told_at_first(tmp_path):
    """Whatever the server asks for later."""
    nodes = nodes_of(tmp_path, ids=IDS)
    made = strategy(**TWICE)
    made.start(nodes, model(), num_rounds=6)
    made.order.length, made.order._plan, made.rounds = 3, made.order._plan * 2, 12
    messages = made.configure_train(7, model(), ConfigRecord(), nodes)
    assert len(messages) == 4
    made.aggregate_train(7, exchange(nodes, messages, 1.0))
    assert {entry["reason"] for entry in made.current.rejected} == {ANSWERED}
    assert {Ledger(tmp_path / str(node) / "ledger").spent for node in IDS} == {16}


def test_a_server_that_died_asks_nobody_twice_in_a_pass(tmp_path):
    order, nodes = NodeOrder(2, 2), [3, 4, 5, 6]
    order.length = 2
    order.keep(tmp_path)
    found = []
    for round in range(4):
        order.candidates(round)
        found += order.slots(round, nodes, 4)
        again = NodeOrder(2, 2)
        again.length = 2
        again.resume(order.name, round)  # killed before the round was over: the same nodes again
        again.candidates(round)
        assert [*again.slots(round, nodes, 4)] == found[-2:]
        again.done()
        order = again
    assert sorted(found[:4]) == sorted(found[4:]) == nodes
    again = NodeOrder(2, 2)
    again.length = 3
    with pytest.raises(ValueError, match="begun with num_rounds / reports = 2, not 3"):
        again.resume(order.name, 4)


@pytest.mark.parametrize(
    ("changes", "rounds", "message"),
    [
        ({"reports": 0}, 6, "reports = 0"),
        ({}, 7, "num_rounds = 7 is no multiple of reports = 2"),
        ({"clients_per_round": 0}, 6, "needs clients-per-round"),
    ],
)
def test_what_cannot_be_is_refused_before_a_node_is_asked(tmp_path, changes, rounds, message):
    nodes = nodes_of(tmp_path, ids=IDS)
    with pytest.raises(ValueError, match=message):
        strategy(**{**TWICE, **changes}).start(nodes, model(), num_rounds=rounds)
    assert nodes.sent == []


def test_each_pass_has_an_order_of_its_own(monkeypatch):
    """All pairs of orders of three nodes are equally likely."""

    def p_value():
        counts = dict.fromkeys(itertools.product(itertools.permutations((5, 7, 9)), repeat=2), 0)
        for _ in range(3600):
            order = NodeOrder(3, 2)
            order.length = 1
            found = []
            for round in range(2):
                order.candidates(round)
                found.append(tuple(order.slots(round, [5, 7, 9], 2)))
                order.done()
            counts[tuple(found)] += 1
        return g_test(list(counts.values()), [100.0] * 36)

    assert p_value() > 1e-6
    planned = NodeOrder._planned
    monkeypatch.setattr(NodeOrder, "_planned", lambda order, _: planned(order, 0))  # the first order again
    assert p_value() < 1e-6
