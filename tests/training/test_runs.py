"""Runs: what they write, that they resume to the same bits after any interruption, what they refuse."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_runs import ONCE, SIGNS, TINY, cut_off, finished, loaded, prepared, resumed, started, stopped
from tiny_runs import SMALL_ONCE as SMALL
from typed import typed

from sqsgd.runs import train
from sqsgd.training.run_folder import CHECKPOINT, RunFolder
from sqsgd.training.settings import load_config, make_config


def test_a_run_writes_everything(tmp_path):
    folder = tmp_path / "run"
    steps = finished(folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.toml", "metrics.jsonl", "model.safetensors", "summary.json", CHECKPOINT}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(12)) == [step.round for step in steps]
    assert [line["round"] for line in lines if "accuracy" in line] == [4, 9, 11]
    always = {"loss", "epsilon", "epsilon_total", "bytes_up", "bytes_down", "clip_rate", "bound", "seconds"}
    assert all(always <= line.keys() for line in lines)
    chosen = {"scheme": "sqsgd-stateless", "partition": "iid", "decay": "linear"}
    chosen["options"] = {"code": "sparse"}
    assert load_config(folder / "config.toml") == make_config({**TINY, **chosen})
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["epsilon"], summary["epsilon_total"]) == (60.0, 720.0)
    assert summary["bytes_up"] == 5 + 2
    assert summary["finished"]
    assert "protects nobody" in summary["noise"]
    assert {name: value.shape for name, value in load_file(folder / "model.safetensors").items()} == {
        "weight": (4, 8),
        "bias": (4,),
    }


@pytest.mark.parametrize(
    ("stop", "changes"),
    [
        (1, {}),
        (4, {"optimizer": "momentum", "lr": 0.05}),
        (7, {"optimizer": "adam", "lr": 0.05, **SIGNS}),
        (11, {"scheme": "dgc", "bytes": 30, "lr": 0.05}),
    ],
)
def test_an_interrupted_run_ends_in_the_same_bits(tmp_path, stop, changes):
    """Residuals and momentum come back too."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finished(whole, **changes)
    cut_off(prepared(broken, **changes), stop)
    again = loaded(broken)
    list(resumed(again))
    assert (whole / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()
    rounds = [json.loads(line)["round"] for line in (broken / "metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(12))


def interrupted(run, round):
    """The run, ended by Ctrl-C while the model after this round is measured."""
    measure, measured = run.problem.objective.evaluate, []

    def evaluate(*arguments, **named):
        measured.append(measure(*arguments, **named))
        if len(measured) == round // 5:
            raise KeyboardInterrupt
        return measured[-1]

    used = run.problem.objective
    objective = SimpleNamespace(**vars(used), is_default=True, loss=used.loss, evaluate=evaluate)
    broken = dataclasses.replace(run, problem=dataclasses.replace(run.problem, objective=objective))
    with pytest.raises(KeyboardInterrupt):
        list(started(broken))
    return run


@pytest.mark.parametrize("changes", [{"secure": True}, {"ledgers": "here"}])
def test_a_round_whose_measurement_was_interrupted_is_not_made_again(tmp_path, changes):
    """Its reports have left their clients: with other noise they would be second ones."""
    if "ledgers" in changes:
        changes = {"ledgers": str(tmp_path / "ledgers")}
    run = interrupted(prepared(tmp_path / "run", **changes, **SIGNS), 10)
    run, state = run.resumed()
    assert (state.round, state.lost) == (9, 9)
    rest = list(run.rounds())
    assert [(record.round, record.clients) for record in rest] == [(9, 0), (10, 4), (11, 4)]
    assert rest[-1].epsilon_total == 12 * 60.0


def command(folder, *arguments):
    options = {key: value for key, value in TINY.items() if not key.endswith("_every") and key != "workers"}
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    script = str(Path(sys.executable).with_name("sqsgd"))
    return [script, "train", *(arguments or (*words, "--rounds", "300")), "--out", str(folder)]


def test_a_killed_process_resumes_to_the_same_bits(tmp_path, monkeypatch):
    """Killed, resumed, interrupted in round 250 by Ctrl-C, and resumed again."""
    killed, metrics = tmp_path / "killed", tmp_path / "killed" / "metrics.jsonl"
    process = subprocess.Popen(command(killed), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 240  # on a busy machine
    while not (metrics.exists() and metrics.stat().st_size > 15_000) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL, errors
    write = RunFolder.write

    def interrupting(folder, line):
        write(folder, line)
        if line["round"] == 250:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write", interrupting)
        done = typed(command(killed, "--resume"))
    assert (done.code, "--resume" in done.error) == (128 + signal.SIGINT, True)
    assert not (killed / "model.safetensors").exists()
    list(resumed(loaded(killed)))
    options = {key: value for key, value in TINY.items() if not key.endswith("_every")}
    finished(tmp_path / "whole", options, rounds=300)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert models[0] == models[1]


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (ONCE, {"clients": 4001}, "partition = 'drawn' lets them draw one each"),
        (ONCE, {"scheme": "fedsgd", "ledgers": "somewhere"}, "'fedsgd' is not locally private"),
        (ONCE, {"scheme": "privunit", "ledgers": "x"}, "real arithmetic only, which ledgers do not certify"),
        (ONCE, {"reports": 0}, "reports = 0 must be .* 1 to 10000"),
        (SMALL, {"reports": 3}, "rounds = 4 cannot be cut into 3 passes of one length"),
        (SMALL, {"reports": 2, "rounds": 200}, "rounds = 100 is more than clients = 40"),
        (SMALL, {"reports": 2, "participation": "5"}, "reports = 2 needs participation = 'once', not '5'"),
        (SMALL, {"reports": 2, "visits": 1, "engine": "flower"}, "asks a node for one report in a round"),
        (SMALL, {"reports": 2, "scheme": "sqsgd", "options": {"code": "signs"}}, "would link its reports"),
        (TINY, {"clients": 500}, "500 clients cannot share 320 examples"),
        (TINY, {"model": "tiny:batch_norm"}, "running statistics"),
        (TINY, {"bytes": 1000}, "bytes = 1000 is more than the whole gradient.*at most 144"),
    ],
)
def test_invalid_runs_are_refused_before_anything_is_written_or_paid(tmp_path, base, changes, words):
    with pytest.raises(ValueError, match=words):
        prepared(tmp_path / "run", base, **changes)
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_killed_before_its_configuration_was_written_starts_again(tmp_path):
    run = prepared(tmp_path / "run")
    with pytest.raises(ValueError, match="nothing to resume"):
        run.resumed()
    run.started()
    (run.folder / "config.toml").unlink()
    assert len(finished(tmp_path / "run")) == 12
    with pytest.raises(ValueError, match="holds a run already"):
        run.started()


def longer(folder, rounds):
    """The same run with more rounds, resumed."""
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("rounds = 12", f"rounds = {rounds}"))
    return loaded(folder).resumed()


@pytest.mark.parametrize("changes", [{"secure": True}, {"ledgers": "here"}])
def test_a_finished_run_that_goes_on_loses_no_round(tmp_path, changes):
    if "ledgers" in changes:  # most clients have not spent their budget when the run ends
        changes = {"ledgers": str(tmp_path / "ledgers"), "clients": 40, "participation": "4"}
    finished(tmp_path / "run", **changes, **SIGNS)
    run, state = longer(tmp_path / "run", 14)
    assert (state.round, state.lost) == (12, -1)
    assert [(record.round, record.clients) for record in run.rounds()] == [(12, 4), (13, 4)]


def test_a_run_that_was_killed_before_its_summary_loses_no_round(tmp_path, monkeypatch):
    run = prepared(tmp_path / "run", secure=True, **SIGNS)
    monkeypatch.setattr(RunFolder, "finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(started(run))
    assert longer(tmp_path / "run", 14)[1].lost == -1


@pytest.mark.parametrize(("scheme", "too_little"), [("vqsgd", 0.1), ("sqsgd", 0.02)])
def test_what_cannot_be_learned_is_told_before(scheme, too_little, tmp_path):
    """Both ways. Guessing one of four classes gives a quarter; noise alone gives up to 0.6, by its seed."""
    for epsilon, seeds in ((too_little, 3), (10.0, 1)):
        reached = []
        for seed in range(seeds):
            folder = tmp_path / f"{epsilon} {seed}"
            run = prepared(folder, scheme=scheme, epsilon=epsilon, bytes=16, rounds=40, seed=seed)
            assert bool(train.outlook(run.config, run.scheme)) is (seeds > 1)
            reached.append(list(started(run))[-1].accuracy)
        assert np.mean(reached) < 0.5 if seeds > 1 else reached[0] > 0.9
    told = [
        train.outlook(config, config.make_scheme(run.problem.dim))
        for lr in (0.0, 0.1)
        for config in [make_config({**TINY, "scheme": scheme, "epsilon": too_little, "lr": lr})]
    ]
    assert told[0] == told[1]  # no rate helps
    assert told[0].startswith(f"{scheme} at epsilon {too_little}: little or nothing will be learned from ")


@pytest.mark.parametrize("name", ["model.safetensors", "summary.json", "report.html", "config.toml"])
def test_a_users_own_files_are_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("my own")
    with pytest.raises(ValueError, match=f"holds a {name}, which a run would replace: choose another --out"):
        train.begin({"dataset": "no.such:data"}, None, tmp_path, resume=False)  # before data are loaded
    assert (tmp_path / name).read_text() == "my own"


@pytest.mark.parametrize("change", [{"epsilon": 6.0}, {"seed": 7}, {"optimizer": "adam"}])
def test_a_run_does_not_go_on_under_another_configuration(tmp_path, change):
    """Else epsilon_total would be counted with the new epsilon for rounds that spent the old one."""
    stopped(tmp_path / "run")
    file, ((name, value),) = tmp_path / "run" / "config.toml", change.items()
    lines = [line for line in file.read_text().splitlines() if not line.startswith(f"{name} =")]
    file.write_text("\n".join([f"{name} = {json.dumps(value)}", *lines]))
    with pytest.raises(ValueError, match=f"{name} = .*this run was begun with"):
        loaded(tmp_path / "run").resumed()
