"""The printed summary of a run: what its epsilon covers, and whom it protects."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from typed import typed

from sqsgd.cli.options import show_progress
from sqsgd.cli.train import describe
from sqsgd.training import Record

train = import_module("sqsgd.cli.train")

SUMMARY = {
    "scheme": "sqsgd",
    "accuracy": 0.91234, "held_out": "1,000 test images of mnist5k", "notion": "local", "epsilon": 8.0,
    "epsilon_all_rounds": 80.0, "epsilon_total": 80.0, "participation": "all", "refused": 0,
    "noise": "seeded: for tests alone", "bytes_up": 64, "bytes_up_ratio": 7490.6, "seconds": 12.3,
    "share_gradient": 0.7, "share_encode": 0.2, "share_aggregate": 0.1,
    "lr": 0.12345, "decay": "linear",
}  # fmt: skip


ALL_ROUNDS = "8 per round; 80 for a client that takes part in all rounds"


def described(**changes):
    return describe({**SUMMARY, **changes}, Path("runs/a"))


def test_the_whole_summary():
    assert described().splitlines() == [
        "accuracy       91.23% on 1,000 test images of mnist5k",
        "scheme         sqsgd",
        f"epsilon        {ALL_ROUNDS}",
        "noise          seeded: for tests alone",
        "payload        64 bytes per client and round, 1/7491 of float32",
        "learning rate  0.123, falling linearly to 0",
        "time           12 s: gradient 70%, encode 20%, aggregate 10%",
        "written to     runs/a",
    ]


LATE = """
import numpy as np
from torch.nn import Linear

class Late(Linear):
    seen = 0

    def forward(self, x):
        Late.seen += 1
        assert Late.seen < 20, "too many"
        return super().forward(x)

def model():
    return Late(4, 2)

def data():
    return np.ones((40, 4), np.float32), np.arange(40) % 2
"""


def test_a_model_that_fails_in_training_is_named_and_the_run_stays(tmp_path, monkeypatch):
    (tmp_path / "fails_late.py").write_text(LATE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    done = typed(
        "sqsgd train --dataset fails_late:data --model fails_late:model --clients 2 --bytes 4 --rounds 30 "
        "--out run"
    )
    assert done.code == 1
    assert "model Late with loss 'cross-entropy' failed: AssertionError: too many; the last" in done.error
    assert "checkpoint in run is intact" in done.error
    assert "internal" not in done.error
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_metrics_of_ones_own_stand_where_accuracy_stands_and_say_what_is_better():
    told = described(
        accuracy=None, metric="RMSE", better="lower", metrics={"RMSE": 0.43218, "R2": "nan"}, test_loss=0.1868
    )
    assert told.splitlines()[:3] == [
        "RMSE           0.4322 (lower is better) on 1,000 test images of mnist5k",
        "R2             nan",
        "loss           0.1868",
    ]
    told = described(accuracy=None, metric="loss", better="lower", metrics={}, test_loss=0.25)
    assert told.startswith("loss           0.25 (lower is better) on 1,000 test images")
    assert told.count("loss") == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"epsilon_total": 24.0}, f"{ALL_ROUNDS}; 24 for the client that took part most often"),
        ({"participation": "once"}, "8 per report, which is the total: no user sends two"),
        ({"notion": "none"}, ALL_ROUNDS.replace("80", "infinite").replace("8 ", "infinite (not private) ")),
        # once, but central: a single report is not private
        ({"participation": "once", "notion": "central"}, ALL_ROUNDS),
    ],
)
def test_what_epsilon_covers(changes, told):
    assert f"\nepsilon        {told}\n" in described(**changes)


def records(rounds):
    for number in range(rounds):
        accuracy = 0.5 if number == 1 else None
        yield Record(
            round=number, accuracy=accuracy, epsilon=8.0, epsilon_total=8.0 * (number + 1), bytes_up=64,
            loss=1.0, bound=1.0,
        )  # fmt: skip


def test_progress_is_told_in_lines_where_there_is_no_terminal(capsys):
    show_progress(records(3), train._progress(1200), quiet=False, seconds=0)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "round 1 of 1,200: epsilon 8, 64 bytes per report",
        "round 2 of 1,200: accuracy 50.00%, epsilon 16, 64 bytes per report",
        "round 3 of 1,200: accuracy 50.00%, epsilon 24, 64 bytes per report",
    ]
    show_progress(records(3), train._progress(3), quiet=False, seconds=train.LINES)
    assert capsys.readouterr().err.count("\n") == 1  # the lines are far apart
    show_progress(records(3), train._progress(3), quiet=True, seconds=0)
    assert capsys.readouterr() == ("", "")


def test_the_summary_ends_with_the_path_of_the_page(tmp_path):
    options = ["--dataset", "tiny:data", "--model", "tiny:model", "--clients", "4", "--bytes", "2"]
    options += ["--epsilon", "60", "--rounds", "2", "--name", "Mine"]
    page = tmp_path / "run/report.html"
    done = typed(["sqsgd", "train", *options, "--out", tmp_path / "run"])
    assert done.code == 0
    assert done.out.splitlines()[-1] == f"page           {page}"
    assert "round 1 of 2" in done.error
    content = page.read_text()
    assert "Mine" in content
    assert 'http-equiv="refresh"' not in content
    done = typed(["sqsgd", "train", *options, "--out", tmp_path / "other", "--json"])
    assert json.loads(done.out)["page"] == str(tmp_path / "other/report.html")
    assert done.error == ""


@pytest.mark.parametrize(("epsilon", "told"), [(0.5, True), (20.0, False)])
def test_what_cannot_be_learned_is_told_on_standard_error(epsilon, told, tmp_path):
    line = (
        f"sqsgd train --dataset tiny:data --model tiny:model --scheme vqsgd --epsilon {epsilon} --clients 4"
    )
    done = typed(f"{line} --bytes 16 --rounds 3 --json --out {tmp_path / 'run'}")
    assert done.code == 0
    expected = "vqsgd at epsilon 0.5: little or nothing will be learned in 3 rounds of 4 clients"
    assert (expected in done.error) is told
    assert json.loads(done.out)["lr"] > 0


def test_an_experiment_of_the_package_is_found_by_its_name(monkeypatch, tmp_path):
    def begin(_values, config_file, *_more, **_options):
        raise ValueError(f"begun from {config_file.name}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(import_module("sqsgd.training.train"), "begin", begin)
    assert "begun from once-mnist.toml" in typed("sqsgd train --config once-mnist").error
