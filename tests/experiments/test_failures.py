"""Changed and invalid configurations of a run."""

import json

import pytest
from sqsgd.training.settings import load_config
from tiny_runs import SIGNS, TINY, finished, prepared, stopped

from sqsgd.experiments import runner


@pytest.mark.parametrize(
    "change",
    [{"epsilon": 6.0}, {"seed": 7}, {"scheme": "sqsgd-stateless"}, {"optimizer": "adam"}, {"clients": 5}],
)
def test_a_run_does_not_go_on_under_another_configuration(tmp_path, change):
    """Else epsilon_total would be counted with the new epsilon for rounds that spent the old one."""
    folder = tmp_path / "run"
    stopped(folder)
    text = (folder / "config.toml").read_text()
    (name, value), old = *change.items(), TINY.get(*change, "")
    lines = [line for line in text.splitlines() if not line.startswith(f"{name} =")]
    for content in ([f"{name} = {json.dumps(value)}", *lines], lines):  # changed, and left out
        (folder / "config.toml").write_text("\n".join(content))
        config = load_config(folder / "config.toml")
        if getattr(config, name) == old or (name not in TINY and content is lines):
            continue
        with pytest.raises(ValueError, match=f"{name} = .*this run was begun with"):
            runner.resume(runner.prepare(config, folder))


def test_more_rounds_may_be_asked_for(tmp_path):
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    finished(whole, rounds=20, **SIGNS)
    finished(longer, rounds=12, **SIGNS)
    text = (longer / "config.toml").read_text()
    (longer / "config.toml").write_text(text.replace("rounds = 12", "rounds = 20"))
    run = runner.prepare(load_config(longer / "config.toml"), longer)
    steps = runner.train(run, runner.resume(run))
    next(steps)
    assert not (longer / "summary.json").exists()  # the old one is no longer true
    list(steps)
    assert (whole / "model.safetensors").read_bytes() == (longer / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {"epsilon": 3.0}}, r"options\.epsilon = 3.0"),
        ({"options": {"bytes": 3}}, r"options\.bytes = 3"),
        (
            {"scheme": "sqsgd-paper", "options": {"adaptive": "False"}},
            "adaptive = 'False' must be true or false",
        ),
        ({"bytes": 1000}, "bytes = 1000 is more than the whole gradient.*at most 144"),
        ({"model": "./tiny.py:model"}, "without .py or folders"),
        ({"model": "tiny:broken"}, "the factory failed: ZeroDivisionError"),
        ({"dataset": "tiny:needs_an_argument"}, "the factory failed: TypeError"),
        ({"model": "tiny:too_few_classes"}, "the model does not fit the data"),
    ],
)
def test_invalid_configurations_are_named_and_nothing_is_written(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()
