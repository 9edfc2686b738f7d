"""Checkpoints: written whole or not at all, and read as they were written."""

import os

import numpy as np
import pytest
from sqsgd.training import State
from tiny_runs import prepared, stopped

from sqsgd.experiments import runner
from sqsgd.runs import checkpoint


def test_a_state_comes_back_as_it_was(tmp_path):
    numbers = np.random.default_rng(3)
    weights, moment, first, second = numbers.standard_normal((4, 7)).astype(np.float32)
    state = State(
        round=2**40, weights=weights, bound=0.1 + 0.2, optimizer={"moment": moment, "steps": np.int64(5)},
        residuals={0: first, 10**9: second}, spent={10**9: 3, 0: 1},
    )  # fmt: skip
    checkpoint.save_state(tmp_path, state, {"seed": 2**63, "options": {"levels": 8}})
    back, config = checkpoint.load_state(tmp_path)
    assert (back.round, back.bound, back.spent) == (state.round, state.bound, state.spent)
    assert config == {"seed": 2**63, "options": {"levels": 8}}
    assert back.optimizer["steps"] == 5
    for kept, was in ((back.weights, weights), (back.optimizer["moment"], moment)):
        assert kept.tobytes() == was.tobytes()
    assert {client: kept.tobytes() for client, kept in back.residuals.items()} == {
        0: first.tobytes(), 10**9: second.tobytes(),
    }  # fmt: skip


@pytest.mark.parametrize("fails", ["fsync", "pwrite", "replace"])
def test_a_disk_that_fills_up_leaves_the_last_checkpoint(tmp_path, monkeypatch, fails):
    run = prepared(tmp_path / "run")
    steps = runner.train(run, runner.start(run))
    for _ in range(5):
        next(steps)
    path = run.folder / checkpoint.NAME
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
    assert len(list(runner.train(run, runner.resume(run)))) == 8


def test_a_checkpoint_from_before_a_key_was_known_goes_on(tmp_path):
    run = stopped(tmp_path / "run")
    state, kept = checkpoint.load_state(run.folder)
    del kept["test_images"]
    checkpoint.save_state(run.folder, state, kept)
    assert runner.resume(run).round == 4
    checkpoint.save_state(run.folder, state, {**kept, "epsilon": 3.0})
    with pytest.raises(ValueError, match=r"begun with 3\.0"):
        runner.resume(run)


@pytest.mark.parametrize("damage", [b"", b"SQ", None])
def test_a_damaged_checkpoint_is_reported_as_damaged(tmp_path, damage):
    run = stopped(tmp_path / "run")
    path = run.folder / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
        runner.resume(run)
