"""What changed instead of the model: the same weights at every node, bit for bit, in fewer bytes."""

import numpy as np
import pytest
from federation import IDS, Nodes, lines, make_app, message, model, node_context, one_round, request, strategy
from flwr.app import ConfigRecord

from sqsgd.federation.flower import Simulation, SqsgdMod, wire
from sqsgd.federation.node import policy
from sqsgd.federation.node.request import make_update


def trained(tmp_path, downlink, missing=None):
    """A training's model, what each node was given to train with, the messages down and the metrics."""
    seen = {}

    def watch(msg, context, call_next):
        found = wire.flatten_record(msg.content[wire.MODEL])[1]  # the mod has put the model in
        seen[msg.content[wire.REQUEST]["round"], context.node_id] = found
        return call_next(msg, context)

    app = make_app(SqsgdMod(simulation=Simulation(seed=2)))
    app._mods.append(watch)
    nodes = Nodes(app, [node_context(i, None) for i in IDS])
    made = strategy(downlink=downlink, out=tmp_path / downlink, min_available_nodes=2)
    if missing:
        away, rounds = missing
        made.numbering = lambda round, ids: {i: i for i in ids if not (i == away and round in rounds)}
    result = made.start(nodes, model(), num_rounds=6)
    metrics = lines(tmp_path / downlink / "metrics.jsonl")
    return wire.flatten_record(result.arrays)[1], seen, nodes.sent, metrics


@pytest.mark.parametrize("missing", [None, (IDS[1], {2, 3})])
def test_both_ways_down_end_at_the_same_bits(tmp_path, missing):
    full, given, _, _ = trained(tmp_path, "full", missing=missing)
    delta, rebuilt, sent, written = trained(tmp_path, "delta", missing=missing)
    np.testing.assert_array_equal(delta, full)
    assert rebuilt.keys() == given.keys()
    for key in given:
        np.testing.assert_array_equal(rebuilt[key], given[key])
    with_model = [
        (m.content[wire.REQUEST]["round"], m.metadata.dst_node_id) for m in sent if wire.MODEL in m.content
    ]
    first = [(0, node) for node in sorted(IDS)]
    assert with_model == (first if missing is None else [*first, (4, IDS[1])])
    assert [line["models_sent"] for line in written][:2] == [3, 0]
    assert written[1]["bytes_down"] < written[0]["bytes_down"] / 2


def test_a_rejected_node_gets_the_whole_model(tmp_path):
    app = make_app(SqsgdMod(simulation=Simulation(seed=2)))
    nodes = Nodes(app, [node_context(i, None) for i in IDS])
    nodes.spoil = lambda node, asked, reply: (
        None if node == 5 and asked.content[wire.REQUEST]["round"] == 1 else reply
    )
    strategy(downlink="delta").start(nodes, model(), num_rounds=4, timeout=0.3)
    got = [wire.MODEL in m.content for m in nodes.sent if m.metadata.dst_node_id == 5]
    assert got == [True, False, True, False]


def test_a_node_that_lost_its_state_says_so_and_gets_the_model(tmp_path):
    """No report is paid for; the next round brings the whole model."""
    contexts = [node_context(i, tmp_path / str(i)) for i in IDS]
    nodes = Nodes(make_app(), contexts)
    made = strategy(downlink="delta", out=tmp_path / "run")
    made.start(nodes, model(), num_rounds=2)
    for path in (tmp_path / "5" / "tasks").iterdir():
        path.unlink()
    again = strategy(downlink="delta", out=tmp_path / "run", resume=True)
    again.prepare(nodes, model(), 3)
    last = made.current
    again.holders = dict.fromkeys(IDS, 1)
    again._update = make_update(made.settings.rate_at(last.state.round), last.reports)
    for number in (3, 4):
        one_round(again, nodes, number)
        if number == 3:
            assert again.current.rejected == [{"node": "5", "reason": policy.NEEDS_MODEL}]
            assert len(again.current.reports) == 2
    assert len(again.current.reports) == 3


def test_a_changed_update_is_not_trained_on(tmp_path):
    """One wrong number in what changed, and the digest tells."""
    contexts = [node_context(i, tmp_path / str(i)) for i in IDS]
    nodes, calls = Nodes(make_app(), contexts), []
    made = strategy(downlink="delta")
    one_round(made, nodes)
    nodes.app = make_app(calls=calls)
    made._update["rate"] *= 1.0001
    one_round(made, nodes, 2)
    assert {entry["reason"] for entry in made.current.rejected} == {policy.NEEDS_MODEL}
    assert calls == []


def test_a_model_beside_an_update_is_refused(tmp_path):
    """The app would train on weights that no digest was checked of."""
    context, calls = node_context(5, tmp_path), []
    app = make_app(calls=calls)
    assert not app(message(request(keep=True)), context).has_error()
    both = message(request(round=1, base=0, keep=True), model(42.0))
    both.content[wire.UPDATE] = ConfigRecord(make_update(0.1, []))
    assert app(both, context).error.reason == policy.MALFORMED
    assert calls == [5]
    del both.content[wire.MODEL]
    assert not app(both, context).has_error()  # the update alone is welcome
