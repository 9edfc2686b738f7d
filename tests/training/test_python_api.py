"""``sqsgd.train``: the command's run from Python, with objects of one's own."""

import json
import logging
import re

import numpy as np
import pytest
import torch
from torch import nn
from typed import typed

import sqsgd
from sqsgd import make_scheme

SMALL = {
    "clients": 4, "rounds": 4, "epsilon": 60.0, "bytes": 12, "batch": 8, "evaluate_every": 2, "workers": 1
}  # fmt: skip


def numbers(count=120, seed=0):
    """Three inputs and a number to predict from them."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(count, 3)).astype(np.float32)
    return inputs, inputs @ np.array([1.0, -2.0, 0.5], np.float32)


def absolute(model, batch):
    inputs, labels = batch
    return (model(inputs).squeeze(1) - labels).abs().mean()


class Ranked:
    """The mean absolute error, and a metric of its own."""

    lower_is_better = ("worst",)
    loss = staticmethod(absolute)

    def metrics(self, outputs, labels):
        return {"worst": (outputs.squeeze(1) - labels).abs().max()}


def test_rounds_are_read_one_by_one(tmp_path, caplog):
    """Without a callback: a loop that is broken off goes on, here or elsewhere, to the same model."""
    caplog.set_level(logging.INFO, logger="sqsgd")
    whole = sqsgd.train(model="linear", out=tmp_path / "whole", report=False, **SMALL)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "reading mnist5k"
    assert any(line.startswith("round 2 of 4: accuracy ") for line in lines)
    assert not any(line.startswith("round 3 of 4: ") for line in lines)  # not measured: debug
    rounds = sqsgd.run(model="linear", out=tmp_path / "run", **SMALL)
    assert (len(rounds), rounds.folder) == (4, tmp_path / "run")
    for record in rounds:
        assert record.to_dict()["round"] == record.round
        if record.round == 1:
            break
    with pytest.raises(ValueError, match="is not finished: read all of its rounds"):
        _ = rounds.result
    assert [record.round for record in rounds] == [2, 3]
    assert list(rounds) == []
    assert (tmp_path / "run" / "report.html").exists()
    for here, there in zip(rounds.result.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(here, there)
    other = sqsgd.run(model="linear", out=tmp_path / "other", report=False, **SMALL)
    for _ in other:
        break
    again = sqsgd.run(out=tmp_path / "other", resume=True, report=False)
    assert [record.round for record in again] == [1, 2, 3]
    assert without_times(tmp_path / "other") == without_times(tmp_path / "whole")
    finished = sqsgd.train(out=tmp_path / "whole", resume=True, report=False)
    for here, there in zip(finished.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(here, there)


def without_times(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "seconds" not in name} for line in lines]


def test_it_is_the_run_of_the_command(tmp_path):
    run = sqsgd.train(model="linear", out=tmp_path / "python", **SMALL)
    config = tmp_path / "more.toml"
    config.write_text("\n".join(f"{name} = {value}" for name, value in SMALL.items()))
    done = typed(f"sqsgd train --model linear --config {config} --out {tmp_path / 'command'} --json")
    assert done.code == 0, done.error
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("python", "command")]
    assert files[0] == files[1]
    assert "report.html" in files[0]
    assert without_times(tmp_path / "python") == without_times(tmp_path / "command")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("python", "command")]
    assert weights[0] == weights[1]
    assert run.summary["accuracy"] == json.loads(done.out)["accuracy"]
    assert (run.folder, run.config.rounds, len(run.records)) == (tmp_path / "python", 4, 4)


def test_data_model_and_loss_may_be_objects(tmp_path):
    model = nn.Linear(3, 1)
    before = model.weight.clone()
    run = sqsgd.train(
        dataset=numbers(), model=model, loss=Ranked(), out=tmp_path / "run", report=False, **SMALL
    )
    assert torch.equal(model.weight, before)  # the given module is copied
    assert not torch.equal(run.model.weight, before)
    with torch.no_grad():
        errors = (run.model(torch.from_numpy(numbers()[0])).squeeze(1) - torch.from_numpy(numbers()[1])).abs()
    assert 0 < run.metrics["worst"] <= errors.max() + 1e-5
    assert (run.summary["metric"], run.summary["better"], run.summary["accuracy"]) == ("worst", "lower", None)
    assert (run.config.dataset, run.config.model, run.config.loss) == ("in-memory",) * 3
    assert [line.get("metric") for line in run.records] == [None, "worst", None, "worst"]


def longer(folder, rounds=6):
    """A finished run that may go on."""
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("rounds = 4", f"rounds = {rounds}"))


GOES_ON = {**SMALL, "model": "linear", "decay": "none", "lr": 0.1, "report": False}


def test_a_run_of_objects_is_resumed_with_the_same_objects(tmp_path):
    """Functions that can be imported are known by their names; other data are noticed."""
    given, out = {"dataset": numbers(), "loss": absolute}, tmp_path / "run"
    sqsgd.train(**given, **GOES_ON, out=out)
    longer(out)
    inputs, labels = numbers()
    for wrong, words in (
        ({}, r"dataset = 'in-memory'.*sqsgd.train\(out=..., resume=True, dataset"),
        ({**given, "loss": "squared-error"}, "leave out loss"),
        ({**given, "dataset": numbers}, "leave out dataset"),
        ({**given, "model": nn.Linear(3, 1)}, "leave out model"),
        ({"dataset": numbers(200)}, r"labels \[\[160, 3\], \[40, 3\], .*begun with \[\[96, 3\], \[24, 3\]"),
        ({"dataset": (inputs[::-1].copy(), labels[::-1].copy())}, "give the same data in the same order"),
    ):
        with pytest.raises(ValueError, match=words):
            sqsgd.train(**wrong, out=out, resume=True)
    again = sqsgd.train(**given, model="linear", out=out, resume=True, report=False)
    assert again.summary["rounds"] == 6


def test_torch_keeps_its_threads_and_numbers_of_numpy_are_numbers(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        settings = {**SMALL, "clients": np.int64(4), "epsilon": np.float32(60)}
        run = sqsgd.train(model="linear", **settings, out=tmp_path / "run", report=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (run.config.clients, run.config.epsilon) == (4, 60.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheme": "fedsgd", "bytes": 0}, "fedsgd, not private, 4 rounds"),
        ({"scheme": make_scheme("privunit", dim=7850, epsilon=30.0, bytes=12)}, "epsilon 30 per report"),
        ({"scheme": "cpsgd", "bytes": 0}, "epsilon 5[0-9.]* of the sum of reports"),
        ({"scheme": "sqsgd-record", "bytes": 0}, "epsilon 60 per record in all rounds"),
    ],
)
def test_what_a_run_says_of_itself_is_its_guarantee(settings, words, tmp_path):
    run = sqsgd.train(model="linear", **SMALL | settings, out=tmp_path / "run", report=False)
    assert re.search(words, repr(run)), repr(run)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"options": "code=signs"}, "options = 'code=signs' must be of type dict"),
        ({"device": "cuda"}, "device = 'cuda' .*here there is cpu"),
        ({"dataset": numbers()}, "labels are torch.float32.* 'squared-error'"),
        ({"dataset": numbers(), "engine": "flower"}, "other processes, which need dataset by name"),
    ],
)
def test_wrong_settings_are_named(settings, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if torch.cuda.is_available() and settings.get("device") == "cuda":
        pytest.skip("there is a cuda device")
    with pytest.raises(ValueError, match=words):
        sqsgd.train(**{"model": "linear", **SMALL, **settings})
    assert not (tmp_path / "runs").exists()
