"""What goes wrong around a run: full disks, changed files, impossible wishes."""

import json
import os

import pytest
from tiny_runs import TINY, cut_off, finished, prepared

from sqsgd.experiments import checkpoint, runner
from sqsgd.experiments.config import load_config
from sqsgd.federated import Settings
from sqsgd.optimizers import Optimizer


def stopped(folder):
    """A run that was cut off after five rounds: its last checkpoint is of round 4."""
    return cut_off(prepared(folder), 5)


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


@pytest.mark.parametrize(
    "change", [{"epsilon": 6.0}, {"seed": 7}, {"scheme": "fedsgd"}, {"optimizer": "adam"}, {"clients": 5}]
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


def test_a_checkpoint_from_before_a_key_was_known_goes_on(tmp_path):
    run = stopped(tmp_path / "run")
    state, kept = checkpoint.load_state(run.folder)
    del kept["test_images"]
    checkpoint.save_state(run.folder, state, kept)
    assert runner.resume(run).round == 4
    checkpoint.save_state(run.folder, state, {**kept, "epsilon": 3.0})
    with pytest.raises(ValueError, match=r"begun with 3\.0"):
        runner.resume(run)


def test_more_rounds_may_be_asked_for(tmp_path):
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    finished(whole, rounds=20)
    finished(longer, rounds=12)
    text = (longer / "config.toml").read_text()
    (longer / "config.toml").write_text(text.replace("rounds = 12", "rounds = 20"))
    run = runner.prepare(load_config(longer / "config.toml"), longer)
    steps = runner.train(run, runner.resume(run))
    next(steps)
    assert not (longer / "summary.json").exists()  # the old one is no longer true
    list(steps)
    assert (whole / "model.safetensors").read_bytes() == (longer / "model.safetensors").read_bytes()


@pytest.mark.parametrize("damage", [b"", b"SQ", None])
def test_a_damaged_checkpoint_is_said_to_be_one(tmp_path, damage):
    run = stopped(tmp_path / "run")
    path = run.folder / checkpoint.NAME
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
        runner.resume(run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {"epsilon": 3.0}}, r"options\.epsilon = 3.0"),
        ({"options": {"bits": 3}}, r"options\.bits = 3"),
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
def test_impossible_wishes_are_named_and_nothing_is_written(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path / "run", **change)
    assert not (tmp_path / "run").exists()


def test_every_key_reaches_the_settings(tmp_path):
    wishes = {
        "lr": 0.07, "optimizer": "momentum", "bound": 3.0, "track": False, "clip": 2.5, "alpha": 0.5,
        "beta": 0.75, "weigh_by_size": True, "secure": True, "seed": 9,
    }  # fmt: skip
    assert prepared(tmp_path / "run", **wishes).settings == Settings(
        seed=9, optimizer=Optimizer(kind="momentum", rate=0.07), bound=3.0, track=False, clip=2.5, alpha=0.5,
        beta=0.75, weigh_by_size=True, secure=True,
    )  # fmt: skip


def test_the_default_rate_suits_the_optimizer(tmp_path):
    rates = {
        kind: prepared(tmp_path / kind, optimizer=kind).settings.optimizer.rate
        for kind in ("sgd", "momentum", "adam")
    }
    assert rates["momentum"] == rates["adam"] == rates["sgd"] / 100


def test_the_summary_counts_all_rounds_and_the_most_that_a_client_spent(tmp_path):
    finished(tmp_path / "run", clients=40, participation="5")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["epsilon_all_rounds"] == 60.0 * 12
    assert summary["epsilon_total"] < summary["epsilon_all_rounds"]
