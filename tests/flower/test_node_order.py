"""Which node fills which slot: all orders equally likely, and the same after a crash."""

import itertools

import pytest
from reference import g_test

from sqsgd.files.secret_files import replace_secret
from sqsgd.flower.node_order import NodeOrder

NODES = [7, 5, 2**63 + 1, 12]


def drawn(scope):
    """The nodes by slot, of two rounds of two slots: planned together, or round by round."""
    order, found = NodeOrder(2), []
    for round in range(2):
        free = [node for node in NODES if node not in order.asked]
        slots = order.slots(round, free, 2 if scope == "run" else 3)
        assert list(slots.values()) == [0, 1]
        found += slots
        order.done()
    assert order.scope == scope
    return tuple(found)


@pytest.mark.parametrize("scope", ["run", "round"])
def test_all_orders_are_equally_likely(scope, monkeypatch):
    def p_value():
        counts = dict.fromkeys(itertools.permutations(NODES), 0)
        for _ in range(3000):
            counts[drawn(scope)] += 1
        return g_test(list(counts.values()), [3000 / 24] * 24)

    assert p_value() > 1e-6
    slots = NodeOrder.slots

    def in_order(order, *arguments):  # broken: who is asked is random, but not the slot
        return {node: slot for slot, node in enumerate(sorted(slots(order, *arguments)))}

    monkeypatch.setattr(NodeOrder, "slots", in_order)
    assert p_value() < 1e-6


def test_it_does_not_depend_on_pythons_generator():
    import random

    found = set()
    for _ in range(20):
        random.seed(1)
        found.add(drawn("run"))
    assert len(found) > 1


def resumed(order, round):
    again = NodeOrder(order.per_round)
    again.resume(order.name, round)
    return again


def test_after_a_crash_the_same_nodes_have_the_same_slots(tmp_path):
    order = NodeOrder(2)
    order.keep(tmp_path)
    first = order.slots(0, NODES, 2)
    assert resumed(order, 0).candidates(0) == set(first)
    assert resumed(order, 0).slots(0, NODES, 2) == first
    assert resumed(order, 0).slots(0, sorted(first)[:1], 2) == {min(first): first[min(first)]}
    later = resumed(order, 1)  # killed after the round was saved, before the next one
    assert later.asked == set(first)
    rest = set(NODES) - set(first)
    assert later.candidates(1) == rest
    assert set(later.slots(1, sorted(rest), 2)) == rest
    assert later.scope == "run"


def test_more_rounds_than_planned_are_drawn_from_who_is_left(tmp_path):
    order = NodeOrder(2)
    order.keep(tmp_path)
    first = set(order.slots(0, NODES, 1))
    order.done()
    order.finish()
    again = resumed(order, 1)
    assert again.candidates(1) is None
    assert set(again.slots(1, [node for node in NODES if node not in first], 2)) == set(NODES) - first
    assert again.scope == "round"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"scope": "run", "plan": 3, "asked": [], "asking": 1}']
)
def test_a_damaged_file_is_named(tmp_path, content):
    order = NodeOrder(2)
    order.keep(tmp_path)
    replace_secret(order.name, content)
    with pytest.raises(ValueError, match=f"{order.name} is damaged"):
        resumed(order, 0)
