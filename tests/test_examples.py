"""Every file under examples/ runs."""

import importlib.util
import runpy
import sys

import pytest
import torch
from safetensors.torch import load_file
from snippets import ROOT

import sqsgd
from sqsgd.learning.gradients import parameter_count

EXAMPLES = ROOT / "examples"
RUN = {"private_mean", "logistic_regression", "own_module", "make_notebook", "planner_trade_offs", "adapters"}


def module(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_no_example_is_left_out():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == RUN
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == {"planner_trade_offs"}
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    # tests/flower/test_example_app.py and tests/nvflare/test_simulator.py run them
    assert folders == {"flower_app", "nvflare_job"}


def test_private_mean_has_the_predicted_error(capsys):
    runpy.run_path(str(EXAMPLES / "private_mean.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "local epsilon 8, 6 bytes per person" in out
    error, predicted = (float(word.split()[-1]) for word in out.replace(" of the bound", "").split(";"))
    assert error == pytest.approx(predicted, rel=0.4)  # one draw of 64 coordinates: a deviation of some 10 %


def test_logistic_regression_learns_and_its_ledgers_refuse(monkeypatch, capsys):
    example = module("logistic_regression")
    monkeypatch.setattr(example, "CAP", 18.0)
    assert example.main(rounds=4) > 0.7  # guessing: 0.5
    out = capsys.readouterr().out
    assert "round 3: the report was not sent" in out
    assert "3 rounds of 6 bytes" in out


def test_own_module_learns(capsys):
    assert module("own_module").main(rounds=8) > 0.3  # guessing: 0.1
    assert "18,474 weights, 52 bytes per report" in capsys.readouterr().out


def test_the_notebook_runs():
    pytest.importorskip("matplotlib", reason="the docs extra is not installed")
    assert module("make_notebook").notebook()["cells"]


def test_an_adapter_of_a_transformer_is_all_that_is_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("SQSGD_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(ROOT)  # the example takes its alphabet from tools
    (tmp_path / "public.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    example = module("adapters")
    assert example.main(str(tmp_path / "public.txt"), steps=12) < 4  # guessing: 4.2
    text = torch.randint(0, 65, (12, 81), generator=torch.Generator().manual_seed(1))
    sizes = {"lora": 6466, "prompt": 768, "head": 6305, "whole": 244_097}
    for name, size in sizes.items():
        model = getattr(example, name)(65)
        assert torch.equal(model(text[:, :-1])[:, :40], model(text[:, :40]))
        assert parameter_count(model) == size
    about = {"clients": 2, "rounds": 1, "epsilon": 400.0, "bytes": 64, "report": False}
    data = ((text[:, :-1], text[:, 1:]),) * 2
    run = sqsgd.train(dataset=data, model=example.lora, out=tmp_path / "run", **about)
    saved = load_file(tmp_path / "run/model.safetensors")
    assert {name.rpartition(".")[2] for name in saved} == {"up", "down"}
    assert torch.equal(run.model.letters.weight, load_file(example.public())["letters.weight"])
