"""Run folders that the last version wrote are resumed by this one, to the same bits."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sqsgd.training.settings import load_config

from sqsgd.experiments import runner

WRITTEN = Path(__file__).parents[1] / "runs/last_version"


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_run_of_the_last_version_is_resumed_to_the_same_model(name, tmp_path):
    """Six of twelve rounds were made before the process was killed; the last checkpoint is of round 4."""
    folder = tmp_path / name
    shutil.copytree(WRITTEN / name, folder)
    expected = load_file(folder / "expected.safetensors")
    run = runner.prepare(load_config(folder / "config.toml"), folder)
    state = runner.resume(run)
    assert state.round == 4
    assert len(list(runner.train(run, state))) == 8
    found = load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)
