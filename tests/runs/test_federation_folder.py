"""The server's run folder: one process writes it, and what a crash left is gone on with or refused."""

import json

import numpy as np
import pytest
from federation import IDS, Nodes, make_app, model, node_context, strategy
from safetensors.numpy import load_file

from sqsgd.federated import State
from sqsgd.runs.federation_folder import RunFolder


def test_a_folder_that_holds_a_training_is_not_written_over(tmp_path):
    contexts = [node_context(i, tmp_path / str(i)) for i in IDS]
    strategy(out=tmp_path / "run").start(Nodes(make_app(), contexts), model(), num_rounds=1)
    with pytest.raises(ValueError, match="resume = true"):
        strategy(out=tmp_path / "run").start(Nodes(make_app(), contexts), model(), num_rounds=1)
    with pytest.raises(ValueError, match="was begun with fingerprint"):
        strategy(out=tmp_path / "run", resume=True, epsilon=100.0).start(
            Nodes(make_app(), contexts), model(), num_rounds=2
        )


def test_two_servers_do_not_train_in_one_folder(tmp_path):
    contexts = [node_context(i, tmp_path / str(i)) for i in IDS]
    made = strategy(out=tmp_path / "run")
    with RunFolder(tmp_path / "run").held(), pytest.raises(ValueError, match="another process"):
        made.start(Nodes(make_app(), contexts), model(), num_rounds=1)


def state(round):
    weights = np.full(3, round, np.float32)
    return State(round=round, weights=weights, bound=1.0, optimizer={}, residuals={}, spent={5: round})


@pytest.fixture
def folder(tmp_path):
    """One that holds three rounds and the checkpoint of the second."""
    made = RunFolder(tmp_path / "new" / "run")
    made.begin(state(0), {"name": "test"})
    for round in range(3):
        made.write({"round": round})
    made.save(state(2), {"name": "test"})
    return made


def test_rounds_after_the_checkpoint_are_dropped(folder):
    """And so is a line that a crash cut off, and the summary, which is no longer true."""
    with folder.metrics.open("a") as file:
        file.write('{"round": 3')
    (folder.folder / "summary.json").write_text("{}")
    kept, about = folder.resume()
    assert (kept.round, kept.weights.tolist(), kept.spent) == (2, [2.0] * 3, {5: 2})
    assert about == {"name": "test"}
    assert [line["round"] for line in folder.lines()] == [0, 1]
    assert not (folder.folder / "summary.json").exists()


def test_metrics_that_lost_rounds_are_not_gone_on_with_by_a_server(folder):
    for lost in ('{"round": 0}\n', '{"round": 0}\n{"round": 1}', ""):
        folder.metrics.write_text(lost)
        with pytest.raises(ValueError, match="of the checkpoint's 2 rounds: it was damaged"):
            folder.resume()
        assert folder.metrics.read_text() == lost


def test_what_json_does_not_know_is_not_written(folder):
    before = folder.metrics.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        folder.write({"loss": float("nan")})
    assert folder.metrics.read_bytes() == before


def test_the_end_of_a_training(folder):
    folder.finish(model(0.5), {"rounds": 3})
    assert json.loads((folder.folder / "summary.json").read_text()) == {"rounds": 3}
    arrays = load_file(folder.folder / "model.safetensors")
    assert {name: array.shape for name, array in arrays.items()} == {"first": (10, 20), "second": (100,)}
    assert set(arrays["first"].ravel()) == {0.5}
