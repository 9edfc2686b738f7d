"""A run's folder: one process writes it, and what a crash left is resumed or refused."""

import json

import numpy as np
import pytest
from federation import IDS, Nodes, make_app, model, node_context, strategy
from safetensors.numpy import load_file
from sqsgd.training import State

from sqsgd.runs.run_folder import RunFolder


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
    with made.held():
        made.begin(state(0), {"name": "test"})
        for round in range(3):
            made.write({"round": round})
        made.save(state(2), {"name": "test"})
    return made


def test_rounds_after_the_checkpoint_are_dropped(folder):
    """And so are a line that a crash cut off, and the summary, which is no longer true."""
    with folder.metrics.open("a") as file:
        file.write('{"round": 3')
    (folder.path / "summary.json").write_text("{}")
    kept, about = folder.load()
    assert (kept.round, kept.weights.tolist(), kept.spent) == (2, [2.0] * 3, {5: 2})
    assert about == {"name": "test"}
    with folder.held():
        folder.keep_rounds(2)
        folder.write({"round": 2, "again": True})
    assert [line["round"] for line in folder.lines] == [0, 1, 2]
    assert folder.metrics.read_text() == '{"round": 0}\n{"round": 1}\n{"round": 2, "again": true}\n'
    assert not (folder.path / "summary.json").exists()


def test_a_folder_that_lost_rounds_cannot_be_resumed(folder):
    for lost in ('{"round": 0}\n', '{"round": 0}\n{"round": 1}', '{"round": 0}\n{"rou\n', ""):
        folder.metrics.write_text(lost)
        with folder.held(), pytest.raises(ValueError, match=r"damaged: only . of the checkpoint's 2"):
            folder.keep_rounds(2)
        assert folder.metrics.read_text() == lost


def test_what_json_does_not_know_is_not_written(folder):
    before = folder.metrics.read_bytes()
    with folder.held(), pytest.raises(ValueError, match="JSON"):
        folder.write({"loss": float("nan")})
    assert folder.metrics.read_bytes() == before


def test_nothing_is_written_by_a_process_that_does_not_hold_the_folder(folder):
    for write in (lambda: folder.write({"round": 3}), lambda: folder.keep_rounds(1)):
        with pytest.raises(RuntimeError, match="without being held"):
            write()


def test_the_round_that_was_begun_last_is_remembered(folder):
    assert folder.last_begun == -1
    folder.begin_round(7)
    assert RunFolder(folder.path).last_begun == 7


def test_the_end_of_a_training(folder):
    folder.finish({"first": np.full((10, 20), 0.5, np.float32)}, {"rounds": 3})
    assert json.loads((folder.path / "summary.json").read_text()) == {"rounds": 3}
    arrays = load_file(folder.path / "model.safetensors")
    assert {name: array.shape for name, array in arrays.items()} == {"first": (10, 20)}
    assert set(arrays["first"].ravel()) == {0.5}
