"""A run's folder: one process writes it, and what a crash left is resumed or refused."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import prepared, resumed, started, stopped

from sqsgd.training import State
from sqsgd.training.run_folder import CHECKPOINT, RunFolder, new_folder


def state(round):
    weights = np.full(3, round, np.float32)
    return State(round=round, weights=weights, bound=1.0, optimizer={}, residuals={}, spent={5: round})


@pytest.fixture
def folder(tmp_path):
    """One that holds three rounds and the checkpoint of the second."""
    made = RunFolder(tmp_path / "new" / "run")
    with made.held():
        made.begin(state(0), {"name": "test"}, "")
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


@pytest.mark.parametrize("fails", ["fsync", "pwrite", "replace"])
def test_a_disk_that_fills_up_leaves_the_last_checkpoint(tmp_path, monkeypatch, fails):
    run = prepared(tmp_path / "run")
    steps = started(run)
    for _ in range(5):
        next(steps)
    path = run.folder / CHECKPOINT
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    usual = os.pwrite

    def half(descriptor, content, at):
        usual(descriptor, content[: len(content) // 2], at)
        full()

    monkeypatch.setattr(os, fails, half if fails == "pwrite" else full)
    with pytest.raises(OSError, match="No space left"):
        list(steps)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert not list(run.folder.glob("*.part"))
    assert len(list(resumed(run))) == 8


@pytest.mark.parametrize("damage", [b"", b"SQ", None])
def test_a_damaged_checkpoint_is_reported_as_damaged(tmp_path, damage):
    run = stopped(tmp_path / "run")
    path = run.folder / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
        run.resumed()


def make_ten(place):
    return [str(new_folder("mnist5k", Path(place))) for _ in range(10)]


def test_many_at_once_get_one_folder_each(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        made = [folder for ten in pool.map(make_ten, [tmp_path] * 4, chunksize=1) for folder in ten]
    assert len(set(made)) == 40
    assert all(Path(folder).is_dir() for folder in made)
