"""A server that is killed between any two steps resumes, with the same reports."""

import json

import numpy as np
import pytest
from federation import IDS, Nodes, lines, make_app, model, node_context, strategy

from sqsgd import Ledger
from sqsgd.federation.flower import Simulation, SqsgdMod, wire
from sqsgd.training.run_folder import RunFolder


class Killed(BaseException):
    """Nothing catches it: as good as a SIGKILL between two statements."""


def weights_of(result) -> np.ndarray:
    return wire.flatten_record(result.arrays)[1]


@pytest.mark.parametrize("moment", ["write", "save"])
@pytest.mark.parametrize("number", [0, 2])
def test_a_killed_server_goes_on_to_the_same_model(tmp_path, monkeypatch, moment, number):
    """Nodes had answered the round that was lost. They answer it with the same bytes, paid for once."""
    folder = tmp_path / "run"

    def nodes(run_id, where):
        app = make_app(SqsgdMod(simulation=Simulation(seed=4, folder=tmp_path / where)))
        return Nodes(app, [node_context(i, None) for i in IDS], run_id=run_id)

    whole = strategy().start(nodes(1, "a"), model(), num_rounds=5)
    kept = getattr(RunFolder, moment)

    def dying(self, *arguments):
        made = arguments[0]["round"] if moment == "write" else arguments[0].round - 1
        if made == number:
            raise Killed
        kept(self, *arguments)

    monkeypatch.setattr(RunFolder, moment, dying)
    with pytest.raises(Killed):
        strategy(out=folder).start(nodes(1, "b"), model(), num_rounds=5)
    monkeypatch.undo()
    assert not (folder / "summary.json").exists()
    resumed = strategy(out=folder, resume=True, seed=99).start(nodes(2, "b"), model(0.7), num_rounds=5)
    np.testing.assert_array_equal(weights_of(resumed), weights_of(whole))
    assert [line["round"] for line in lines(folder / "metrics.jsonl")] == [0, 1, 2, 3, 4]
    assert json.loads((folder / "summary.json").read_text())["finished"]


def test_with_secure_noise_an_answer_is_repeated_not_paid_again(tmp_path, monkeypatch):
    folder, kept = tmp_path / "run", RunFolder.save
    contexts = [node_context(i, tmp_path / str(i)) for i in IDS]
    seen = []

    def dying(self, state, about):
        if state.round == 2:
            seen.append(state.weights)
            raise Killed
        kept(self, state, about)

    monkeypatch.setattr(RunFolder, "save", dying)
    with pytest.raises(Killed):
        strategy(out=folder).start(Nodes(make_app(), contexts, run_id=1), model(), num_rounds=4)
    monkeypatch.undo()
    made = strategy(out=folder, resume=True)
    made.start(Nodes(make_app(), contexts, run_id=2), model(), num_rounds=2)
    np.testing.assert_array_equal(made.state.weights, seen[0])  # the lost step, to the bit
    for node in IDS:
        assert Ledger(tmp_path / str(node) / "ledger").spent == 2 * 200
        noted = lines(tmp_path / str(node) / "answers.jsonl")
        assert [entry.get("again", False) for entry in noted] == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "rounds", "word"),
    [
        ({"optimizer": "adam"}, 2, "begun with optimizer = 'sgd', not 'adam'"),
        ({"epsilon": 100.0}, 2, "begun with fingerprint"),
        ({"decay": "linear"}, 3, "begun with num_rounds = 2, not 3"),
    ],
)
def test_other_options_than_it_was_begun_with_are_named(tmp_path, changes, rounds, word):
    contexts = [node_context(i, tmp_path / str(i)) for i in IDS]
    nodes = Nodes(make_app(), contexts)
    strategy(out=tmp_path / "run", decay="linear").start(nodes, model(), num_rounds=2)
    with pytest.raises(ValueError, match=word):
        strategy(out=tmp_path / "run", resume=True, **changes).start(nodes, model(), num_rounds=rounds)
    with pytest.raises(ValueError, match="holds a training: set resume = true"):
        strategy(out=tmp_path / "run").start(nodes, model(), num_rounds=2)


def test_a_resumed_training_keeps_its_rate_unless_another_is_given(tmp_path):
    contexts = [node_context(i, tmp_path / str(i)) for i in IDS]
    for out, lr, expected in (("a", 0.0, 0.7), ("b", 0.2, 0.2)):
        strategy(out=tmp_path / out, lr=0.7).start(Nodes(make_app(), contexts), model(), num_rounds=0)
        made = strategy(out=tmp_path / out, lr=lr, resume=True, seed=99)
        made.prepare(Nodes(make_app(), contexts), model(), 3)
        assert (made.settings.lr, made.settings.seed) == (expected, 1)
