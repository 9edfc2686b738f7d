"""``once``: no node is asked in two rounds, answered or not, nor after a resume."""

import numpy as np
import pytest
from federation import model, nodes_of, strategy

from sqsgd import Ledger
from sqsgd.flower import SqsgdStrategy
from sqsgd.flower.gathering import TooFewNodes

IDS = range(10, 22)
ONCE = {"once": True, "clients_per_round": 4, "min_nodes": 1, "scheme": "privunit-index", "epsilon": 8.0}


def asked(nodes) -> list[int]:
    return [sent.metadata.dst_node_id for sent in nodes.sent]


def test_each_node_is_asked_once_and_then_nobody_is_left(tmp_path):
    nodes = nodes_of(tmp_path, ids=IDS)
    made = strategy(**ONCE, wait_timeout=0.3)
    with pytest.raises(TooFewNodes, match="0 nodes that were not asked yet are connected, 4 are needed"):
        made.start(nodes, model(), num_rounds=4)
    assert sorted(asked(nodes)) == list(IDS)
    assert made.state.round == 3
    for node in IDS:
        assert Ledger(tmp_path / str(node) / "ledger").spent == 8


def test_without_it_nodes_are_drawn_again(tmp_path):
    """The same settings but for ``once``: the test above would fail."""
    nodes = nodes_of(tmp_path, ids=IDS)
    strategy(**{**ONCE, "once": False}).start(nodes, model(), num_rounds=3)
    assert len(set(asked(nodes))) < 12


def test_who_did_not_answer_may_have_paid_and_is_not_asked_again(tmp_path):
    nodes = nodes_of(tmp_path, ids=IDS)
    nodes.spoil = lambda node, _, reply: None if node % 2 else reply
    made = strategy(**ONCE)
    made.start(nodes, model(), num_rounds=3, timeout=0.2)
    assert sorted(asked(nodes)) == list(IDS)
    assert set(made.state.spent.values()) == {1}


def test_a_resumed_training_remembers_who_was_asked(tmp_path):
    nodes = nodes_of(tmp_path, ids=IDS)
    strategy(**ONCE, out=tmp_path / "run").start(nodes, model(), num_rounds=2)
    made = strategy(**ONCE, out=tmp_path / "run", resume=True)
    made.start(nodes, model(), num_rounds=3)
    assert sorted(asked(nodes)) == list(IDS)
    assert np.any(made.state.weights)


class Killed(BaseException):
    """Nothing catches it: as good as a SIGKILL."""


def killed_in_the_second_round(tmp_path):
    """Nodes that were asked, and have paid, when the server died; the checkpoint is the first round's."""
    nodes = nodes_of(tmp_path, ids=IDS)
    kept = nodes.pull_messages

    def dying(message_ids):
        if len(nodes.sent) > 4:
            raise Killed
        return kept(message_ids)

    nodes.pull_messages = dying
    with pytest.raises(Killed):
        strategy(**ONCE, out=tmp_path / "run").start(nodes, model(), num_rounds=3)
    assert len(nodes.sent) == 8
    nodes.pull_messages = kept
    return nodes


def test_a_server_that_died_in_a_round_asks_the_same_nodes_again(tmp_path):
    """Other nodes are connected after the restart: a new draw would choose a different cohort."""
    nodes = killed_in_the_second_round(tmp_path)
    first, second = asked(nodes)[:4], asked(nodes)[4:]
    nodes.absent = {second[0]}
    made = strategy(**ONCE, out=tmp_path / "run", resume=True)
    made.start(nodes, model(), num_rounds=2)
    assert sorted(asked(nodes)[8:]) == sorted(second[1:])
    assert [task.client for task, _, _ in made.current.reports] == sorted(second[1:])
    nodes.absent = set()
    strategy(**ONCE, out=tmp_path / "run", resume=True).start(nodes, model(), num_rounds=3)
    assert sorted(asked(nodes)[11:]) == sorted(set(IDS) - {*first, *second})
    for node in IDS:
        assert Ledger(tmp_path / str(node) / "ledger").spent == 8


def test_without_writing_down_who_is_asked_some_would_pay_twice(tmp_path, monkeypatch):
    """The test above would fail."""
    resume = SqsgdStrategy._resume
    monkeypatch.setattr(SqsgdStrategy, "_resume", lambda made, known: resume(made, {**known, "asking": []}))
    nodes = killed_in_the_second_round(tmp_path)
    nodes.absent = {asked(nodes)[4]}
    strategy(**ONCE, out=tmp_path / "run", resume=True).start(nodes, model(), num_rounds=2)
    nodes.absent = set()
    strategy(**ONCE, out=tmp_path / "run", resume=True).start(nodes, model(), num_rounds=3)
    assert max(Ledger(tmp_path / str(node) / "ledger").spent for node in IDS) == 16


def test_it_cannot_be_switched_on_or_off_in_a_training(tmp_path):
    nodes = nodes_of(tmp_path, ids=IDS)
    strategy(**ONCE, out=tmp_path / "run").start(nodes, model(), num_rounds=1)
    with pytest.raises(ValueError, match="begun with once = True, not False"):
        strategy(**{**ONCE, "once": False}, out=tmp_path / "run", resume=True).start(nodes, model())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"clients_per_round": 0}, "needs clients-per-round"),
        ({"downlink": "delta"}, "no node takes part again"),
        ({"scheme": "sqsgd", "epsilon": 200.0}, "keeps a residual"),
    ],
)
def test_what_cannot_be_together_with_it_is_named(tmp_path, changes, word):
    with pytest.raises(ValueError, match=word):
        strategy(**{**ONCE, **changes}).start(nodes_of(tmp_path, ids=IDS), model(), num_rounds=1)
