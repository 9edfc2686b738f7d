"""Runs with dgc keep two vectors a client: they checkpoint, and resume to the same bits."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from sqsgd.training.settings import load_config
from tiny_runs import cut_off, prepared

from sqsgd.experiments import runner
from sqsgd.runs import checkpoint

DGC = {"scheme": "dgc", "bytes": 24, "lr": 0.02}


def train(folder):
    run = prepared(folder, **DGC)
    return run, list(runner.train(run, runner.start(run)))


def memories(folder):
    """What each of the four clients keeps, from the last checkpoint."""
    kept = load_file(folder / checkpoint.NAME)
    return [kept[f"residual.{client}"] for client in range(4)]


def test_a_checkpoint_holds_velocity_and_what_waits(tmp_path):
    run, steps = train(tmp_path / "run")
    assert run.scheme.residual
    for kept in memories(run.folder):
        assert (kept.shape, kept.dtype) == ((2, 36), np.float32)
        assert kept[0].any()
        assert kept[1].any()
    assert {step.bytes_up for step in steps} == {run.scheme.bits // 8}
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["notion"], summary["epsilon"]) == ("none", "infinity")


@pytest.mark.parametrize("stop", [1, 4, 7, 11])
def test_an_interrupted_run_ends_in_the_same_bits(tmp_path, stop):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole)
    cut_off(prepared(broken, **DGC), stop)
    again = runner.prepare(load_config(broken / "config.toml"), broken)
    list(runner.train(again, runner.resume(again)))
    assert (whole / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()
    assert np.array_equal(memories(whole), memories(broken))


def test_a_run_that_forgets_its_velocity_ends_elsewhere(tmp_path):
    """So that the test above would notice."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(whole)
    run = cut_off(prepared(broken, **DGC), 4)
    state = runner.resume(run)
    for kept in state.residuals.values():
        kept[0] = 0
    list(runner.train(run, state))
    assert (whole / "model.safetensors").read_bytes() != (broken / "model.safetensors").read_bytes()
