"""Sweeps: what a file means, what is kept, what is not done twice, what a table says."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from tiny_runs import SWEEP

from sqsgd.training import sweep as sweeps
from sqsgd.training import train
from sqsgd.training.sweep import figure_file, figure_named, load_sweep, make_sweep

FIGURE_FILES = sorted((Path(__file__).parents[2] / "experiments").glob("figure*.toml"))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("path", FIGURE_FILES, ids=lambda path: path.stem)
def test_the_files_of_the_figures_load_and_survive_a_round_trip(path, small):
    sweep = load_sweep(path, small=small)
    assert make_sweep(tomllib.loads(sweep.to_toml()), "again") == sweep
    assert sweep.jobs({cell.name: 0.1 for cell in sweep.cells()})


def test_panels_times_arms_times_seeds():
    sweep = make_sweep(
        {**SWEEP, "panels": [{"epsilon": 60.0}, {"epsilon": 20.0, "arms": [{"scheme": "sqsgd"}]}]}, ""
    )
    assert [(cell.panel, cell.arm) for cell in sweep.cells()] == [
        ("epsilon 60", "sqsgd"),
        ("epsilon 60", "fedsgd"),
        ("epsilon 20", "sqsgd"),
    ]
    assert len(sweep.tuning_jobs()) == 3 * 2
    jobs = sweep.jobs({cell.name: 0.05 for cell in sweep.cells()})
    assert len(jobs) == 3 * 2
    assert {job.config.epsilon for job in jobs} == {60.0, 20.0}
    assert len({job.folder for job in jobs + sweep.tuning_jobs()}) == 12
    assert all(job.config.validation == 0.1 for job in sweep.tuning_jobs())
    assert all(job.config.validation == 0 for job in jobs)
    assert all(job.config.evaluate_every == job.config.rounds for job in sweep.tuning_jobs())


def test_base_panels_and_arms_are_merged():
    base = {**SWEEP["base"], "options": {"reach": 2.0, "levels": 4}, "ledgers": "kept"}
    arms = [{"scheme": "sqsgd-paper", "options": {"levels": 16}}]
    sweep = make_sweep({**SWEEP, "base": base, "arms": arms, "tuning_rounds": 2}, "")
    (cell,) = sweep.cells()
    assert cell.values["options"] == {"reach": 2.0, "levels": 16}
    jobs = sweep.jobs({cell.name: 0.1})
    assert [job.config.ledgers for job in jobs] == [f"kept/runs/{cell.name}/seed-{seed}" for seed in (1, 2)]
    assert [{job.config.rounds for job in some} for some in (sweep.tuning_jobs(), jobs)] == [{2}, {6}]


def test_arms_and_panels_can_be_named():
    arms = [{"scheme": "sqsgd", "name": "Ours"}, {"scheme": "fedsgd"}]
    sweep = make_sweep({**SWEEP, "panels": [{"name": "ε = 60", "epsilon": 60.0}], "arms": arms}, "")
    assert [(cell.panel, cell.arm) for cell in sweep.cells()] == [("ε = 60", "Ours"), ("ε = 60", "fedsgd")]
    jobs = sweep.jobs({cell.name: 0.05 for cell in sweep.cells()})
    assert {job.folder for job in jobs} >= {"runs/ε-60_Ours/seed-1", "runs/ε-60_fedsgd/seed-2"}
    assert {job.config.name for job in jobs} == {"ε = 60: Ours", "ε = 60: fedsgd"}
    assert make_sweep(tomllib.loads(sweep.to_toml()), "again") == sweep


@pytest.mark.parametrize("name", ["figure1", "figure1-communication", "communication"])
def test_figures_have_short_names(name):
    assert figure_named(name) == ("communication", "figure1-communication")
    assert figure_file("figure1-communication").stem == "figure1-communication"
    with pytest.raises(ValueError, match="figure5 does not exist"):
        figure_file("figure5")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": []}, "arms is empty"),
        ({"rates": []}, "rates is empty"),
        ({"seeds": [1, 1]}, "holds a value twice"),
        ({"seeds": [1000]}, "reserved for the tuning runs"),
        ({"rates": ["fast"]}, "rates"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"arms": ["sqsgd"]}, r"write each of arms as a table"),
        ({"arms": [{"scheme": "sqsgd"}, {"scheme": "sqsgd"}]}, "are the same"),
        ({"arms": [{"scheem": "sqsgd"}]}, "did you mean 'scheme'"),
        ({"base": {"epsilon": -1.0}}, "epsilon"),
        ({"title": 3}, "title"),
        ({"arms": [{"scheme": "sqsgd"}, {"scheme": "sqsg"}]}, "did you mean 'sqsgd'"),
        ({"validation": 2.0}, "validation"),
        ({"choose_by": "los"}, "must be one of metric, loss"),
        ({"base": {"lr": 0.1}}, "all arms and panels share rates"),
        ({"arms": [{"scheme": "sqsgd", "seed": 3}]}, "all arms and panels share seeds"),
        ({"arms": [{"scheme": "sqsgd", "name": "../.."}]}, "must hold a letter or a digit"),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(change, message):
    with pytest.raises(ValueError, match=message):
        make_sweep({**SWEEP, **change}, "a test")


def finished(values, out, **options):
    sweep = make_sweep(values, "a test")
    sweeps.open_folder(sweep, out, resume=options.pop("resume", False))
    ticks = list(sweeps.run_sweep(sweep, out, jobs=2, **options))
    return ticks, json.loads((out / "table.json").read_text())


def test_a_sweep_ends_with_a_table_and_is_not_done_twice(tmp_path):
    out = tmp_path / "sweep"
    ticks, rows = finished(SWEEP, out)
    assert (ticks[-1].runs, ticks[-1].failed) == (4, 0)
    assert {row["arm"] for row in rows} == {"sqsgd", "fedsgd"}
    assert all(row["runs"] == 2 and row["half_width"] is None for row in rows)  # from three runs on
    assert rows == sorted(rows, key=lambda row: -row["accuracy"])
    summaries = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert len(summaries) == 8
    held = json.loads(next(iter(out.glob("tuning/sqsgd/*/summary.json"))).read_text())["held_out"]
    assert held == "32 training images of tiny:data, held out"
    _, again = finished(SWEEP, out, resume=True)
    assert again == rows
    assert summaries == {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}


def test_a_run_that_fails_is_said_to_have_failed_and_the_others_go_on(tmp_path):
    arms = [{"scheme": "sqsgd"}, {"scheme": "sqsgd", "options": {"levels": 1000}}]
    ticks, rows = finished({**SWEEP, "arms": arms}, tmp_path / "sweep")
    good, bad = rows
    assert (good["runs"], good["failed"]) == (2, [])
    assert (bad["runs"], bad["lr"], bad["accuracy"]) == (0, None, None)
    assert "levels = 1000" in bad["failed"][0]
    assert any(tick.failed == 2 for tick in ticks)


def test_folders_are_not_mixed_up(tmp_path):
    sweep, other = make_sweep(SWEEP, ""), make_sweep({**SWEEP, "seeds": [5]}, "")
    with pytest.raises(ValueError, match="nothing to resume"):
        sweeps.open_folder(sweep, tmp_path / "a", resume=True)
    sweeps.open_folder(sweep, tmp_path / "a", resume=False)
    with pytest.raises(ValueError, match="holds a sweep already"):
        sweeps.open_folder(sweep, tmp_path / "a", resume=False)
    with pytest.raises(ValueError, match="another sweep"):
        sweeps.open_folder(other, tmp_path / "a", resume=True)
    sweeps.open_folder(sweep, tmp_path / "a", resume=True)
    for file, words in (
        ("config.toml", "training run"),
        ("metrics.jsonl", "training run"),
        ("a", "not empty"),
    ):
        folder = tmp_path / f"with {file}"
        folder.mkdir()
        (folder / file).write_text("")
        with pytest.raises(ValueError, match=words):
            sweeps.open_folder(sweep, folder, resume=False)
        assert [path.name for path in folder.iterdir()] == [file]


def test_two_processes_do_not_run_one_sweep(tmp_path):
    sweep = make_sweep(SWEEP, "a test")
    sweeps.open_folder(sweep, tmp_path, resume=False)
    with (tmp_path / "sweep.toml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is running the sweep"):
            list(sweeps.run_sweep(sweep, tmp_path, jobs=1))
    assert not list(tmp_path.rglob("metrics.jsonl"))


COMPARE = [str(Path(sys.executable).with_name("sqsgd")), "compare", "--json", "--out"]


def begun(values, out, **variables):
    """A sweep of the command line, when one of its runs is under way."""
    config = out.with_suffix(".toml")
    config.write_text(make_sweep(values, "").to_toml())
    command = [*COMPARE, str(out), "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **variables})
    wait_until(lambda: any(path.stat().st_size > 5000 for path in out.rglob("metrics.jsonl")))
    return process


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupted_sweep_goes_on_to_the_same_models(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    values = {**SWEEP, "base": {**SWEEP["base"], "rounds": 100, "evaluate_every": 100}, "rates": [0.05]}
    finished(values, whole)
    start = begun(values, broken)
    start.send_signal(signal.SIGINT)
    _, errors = start.communicate(timeout=60)
    assert start.returncode == 130, errors
    assert b"--resume" in errors
    assert not (broken / "table.json").exists()
    subprocess.run([*COMPARE, str(broken), "--resume"], check=True, capture_output=True)
    for path in whole.rglob("model.safetensors"):
        assert path.read_bytes() == (broken / path.relative_to(whole)).read_bytes()


MARK = "SQSGD_TEST_MARK"


def marked(mark):
    """The processes with this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_nobody_trains_on_when_the_sweep_was_killed(tmp_path):
    values = {**SWEEP, "base": {**SWEEP["base"], "rounds": 100_000}, "rates": [0.05]}
    mark = f"test-{os.getpid()}-{tmp_path.name}"
    start = begun(values, tmp_path / "killed", **{MARK: mark})
    try:
        assert len(marked(mark)) >= 3  # it, and two that train
        start.kill()
        wait_until(lambda: not marked(mark))
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        start.communicate()


def written(folder, **summary):
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"accuracy": 0.5, "seconds": 2.0, **summary}))


def test_each_cell_takes_the_rate_at_which_it_did_best(tmp_path):
    sweep = make_sweep(SWEEP, "a test")
    for cell, accuracies in (("sqsgd", (0.4, 0.6)), ("fedsgd", (0.9, None))):
        for rate, accuracy in zip(sweep.rates, accuracies, strict=True):
            if accuracy is not None:
                written(tmp_path / f"tuning/{cell}/lr-{rate:g}", accuracy=accuracy)
    assert sweeps.choose(sweep, tmp_path) == {"sqsgd": 0.2, "fedsgd": 0.05}
    for rate, loss in ((0.05, 2.5), (0.2, 2.2)):
        written(tmp_path / f"by-loss/tuning/sqsgd/lr-{rate:g}", accuracy=1 - rate, test_loss=loss)
    assert sweeps.choose(sweep, tmp_path / "by-loss") == {"sqsgd": 0.05}
    by_loss = make_sweep({**SWEEP, "choose_by": "loss"}, "a test")
    assert sweeps.choose(by_loss, tmp_path / "by-loss") == {"sqsgd": 0.2}
    alone = make_sweep({**SWEEP, "rates": [0.7]}, "a test")  # nothing to choose, so nothing was tried
    assert sweeps.choose(alone, tmp_path) == {"sqsgd": 0.7, "fedsgd": 0.7}


def error(value):
    return {"accuracy": None, "metric": "RMSE", "better": "lower", "metrics": {"RMSE": value}}


def test_of_errors_the_lowest_is_best(tmp_path):
    sweep = make_sweep(SWEEP, "a test")
    for cell, values in (("sqsgd", (0.4, 0.6)), ("fedsgd", ("nan", 0.9))):
        for rate, value in zip(sweep.rates, values, strict=True):
            written(tmp_path / f"tuning/{cell}/lr-{rate:g}", **error(value))
        written(tmp_path / f"runs/{cell}/seed-1", **error(values[1]))
    assert sweeps.choose(sweep, tmp_path) == {"sqsgd": 0.05, "fedsgd": 0.2}
    rows = sweeps.table(sweep, tmp_path, {"sqsgd": 0.05, "fedsgd": 0.2})
    assert [(row["arm"], row["metric"], row["value"]) for row in rows] == [
        ("sqsgd", "RMSE", 0.6), ("fedsgd", "RMSE", 0.9),
    ]  # fmt: skip


def test_a_table_counts_what_finished_and_names_what_failed(tmp_path):
    sweep = make_sweep(
        {**SWEEP, "seeds": [1, 2, 3], "arms": [{"scheme": name} for name in ("sqsgd", "fedsgd", "vqsgd")]}, ""
    )
    for seed, accuracy in ((1, 0.5), (2, 0.7), (3, 0.6)):
        written(tmp_path / f"runs/fedsgd/seed-{seed}", accuracy=accuracy, seconds=2.0 * seed, bytes_up=148)
    written(tmp_path / "runs/sqsgd/seed-1", accuracy=0.4)
    (tmp_path / "tuning/vqsgd/lr-0.05").mkdir(parents=True)
    (tmp_path / "tuning/vqsgd/lr-0.05/error.txt").write_text("ValueError: no\n")
    rows = sweeps.table(sweep, tmp_path, {"sqsgd": 0.2, "fedsgd": 0.05})
    assert [(row["arm"], row["runs"], row["lr"]) for row in rows] == [
        ("fedsgd", 3, 0.05), ("sqsgd", 1, 0.2), ("vqsgd", 0, None),
    ]  # fmt: skip
    best, single, failed = rows
    assert (best["accuracy"], best["seconds"], best["bytes_up"]) == (pytest.approx(0.6), 4.0, 148)
    assert best["half_width"] == pytest.approx(4.302653 * 0.1 / 3**0.5)
    assert (single["accuracy"], single["half_width"]) == (0.4, None)  # one run has no interval
    assert (failed["accuracy"], failed["failed"]) == (None, ["ValueError: no"])


@pytest.mark.parametrize("damage", ["", "{}", '{"accuracy": "high", "seconds": 1}', "[1]"])
def test_a_damaged_summary_is_named(tmp_path, damage):
    assert sweeps.summary_of(tmp_path) is None
    (tmp_path / "summary.json").write_text(damage)
    with pytest.raises(ValueError, match=r"summary\.json is damaged .* delete it"):
        sweeps.summary_of(tmp_path)


def test_every_arm_and_panel_is_checked_and_data_are_loaded_once(monkeypatch):
    loads, problems = [], []
    load_data, load_problem = train.load_data, train.load_problem
    monkeypatch.setattr(train, "load_data", lambda *a, **k: loads.append(a) or load_data(*a, **k))
    monkeypatch.setattr(train, "load_problem", lambda *a, **k: problems.append(a) or load_problem(*a, **k))

    def checked(**changes):
        return sweeps.check_runs(make_sweep({**SWEEP, **changes}, "a test"))

    panels = [{"epsilon": 40.0}, {"epsilon": 60.0}, {"clients": 8}]
    assert checked(panels=panels) == []
    assert (len(loads), len(problems)) == (1, 4)  # of 4 and 8 clients, with all the data and without some
    wrong = {"name": "B", "scheme": "sqsgd", "options": {"levels": 1000}}
    with pytest.raises(ValueError, match="arm 'B', panel 'P': levels = 1000"):
        checked(arms=[*SWEEP["arms"], wrong], panels=[{"name": "P"}])
    with pytest.raises(
        ValueError, match="arm 'sqsgd', panel 'clients 300': clients = 300 is more than the 288"
    ):
        checked(panels=[{"clients": 8}, {"clients": 300}])  # where rates are chosen, without a tenth
