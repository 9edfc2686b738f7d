"""Sweeps: what a file means, what is run, what is kept, what a table says."""

import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from sqsgd.experiments import sweep_runner
from sqsgd.experiments.sweep import FIGURES, best_rates, figure_file, load_sweep, make_sweep

FIGURE_FILES = sorted((Path(__file__).parents[2] / "experiments").glob("figure*.toml"))
BASE = {"dataset": "tiny:data", "model": "tiny:model", "clients": 4, "batch": 16, "rounds": 6, "bytes": 2}
TINY = {
    "title": "tiny",
    "base": {**BASE, "epsilon": 60.0},
    "arms": [{"scheme": "sqsgd"}, {"scheme": "fedsgd"}],
    "rates": [0.05, 0.2],
    "seeds": [1, 2],
}


def finished(values, out, **options):
    sweep = make_sweep(values, "a test")
    sweep_runner.open_folder(sweep, out, resume=options.pop("resume", False))
    ticks = list(sweep_runner.run_sweep(sweep, out, jobs=2, **options))
    return ticks, json.loads((out / "table.json").read_text())


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("path", FIGURE_FILES, ids=lambda path: path.stem)
def test_the_files_of_the_figures_load_and_survive_a_round_trip(path, small):
    sweep = load_sweep(path, small=small)
    assert make_sweep(tomllib.loads(sweep.to_toml()), "again") == sweep
    assert sweep.jobs({cell.name: 0.1 for cell in sweep.cells()})


def test_every_ablation_has_its_file():
    assert {figure_file(name).stem for name in FIGURES.values()} == set(FIGURES.values())


def test_the_small_version_is_smaller():
    for name in FIGURES.values():
        whole, small = (load_sweep(figure_file(name), small=small) for small in (False, True))
        rounds = [
            sum(job.config.rounds for job in sweep.jobs({cell.name: 0.1 for cell in sweep.cells()}))
            for sweep in (whole, small)
        ]
        assert rounds[1] < rounds[0] / 10


def test_panels_times_arms_times_seeds():
    sweep = make_sweep(
        {**TINY, "panels": [{"epsilon": 60.0}, {"epsilon": 20.0, "arms": [{"scheme": "sqsgd"}]}]}, ""
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


def test_choosing_may_take_fewer_rounds():
    sweep = make_sweep({**TINY, "tuning_rounds": 2}, "")
    assert {job.config.rounds for job in sweep.tuning_jobs()} == {2}
    assert {job.config.rounds for job in sweep.jobs({"sqsgd": 0.1})} == {6}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": []}, "arms is empty"),
        ({"rates": []}, "rates is empty"),
        ({"seeds": [1, 1]}, "names one twice"),
        ({"seeds": [1000]}, "the seed of the runs that choose"),
        ({"rates": ["fast"]}, "rates"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"arms": ["sqsgd"]}, r"write each of arms as a table"),
        ({"arms": [{"scheme": "sqsgd"}, {"scheme": "sqsgd"}]}, "are the same"),
        ({"arms": [{"scheem": "sqsgd"}]}, "did you mean 'scheme'"),
        ({"base": {"epsilon": -1.0}}, "epsilon"),
        ({"title": 3}, "title"),
        ({"arms": [{"scheme": "sqsgd"}, {"scheme": "sqsg"}]}, "did you mean 'sqsgd'"),
        ({"validation": 2.0}, "validation"),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(change, message):
    with pytest.raises(ValueError, match=message):
        make_sweep({**TINY, **change}, "a test")


def test_the_best_rate_wins():
    assert best_rates([("a", 0.1, 0.5), ("a", 0.3, 0.7), ("b", 0.1, 0.2), ("b", 0.3, 0.1)]) == {
        "a": 0.3,
        "b": 0.1,
    }


def test_a_sweep_ends_with_a_table_and_is_not_done_twice(tmp_path):
    out = tmp_path / "sweep"
    ticks, rows = finished(TINY, out)
    assert (ticks[-1].runs, ticks[-1].failed) == (4, 0)
    assert {row["arm"] for row in rows} == {"sqsgd", "fedsgd"}
    assert all(row["runs"] == 2 and row["half_width"] is not None for row in rows)
    assert rows == sorted(rows, key=lambda row: -row["accuracy"])
    summaries = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert len(summaries) == 8
    held = json.loads(next(iter(out.glob("tuning/sqsgd/*/summary.json"))).read_text())["held_out"]
    assert held == "32 training images of tiny:data, held out"
    _, again = finished(TINY, out, resume=True)
    assert again == rows
    assert summaries == {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}


def test_a_run_that_fails_is_said_to_have_failed_and_the_others_go_on(tmp_path):
    arms = [{"scheme": "sqsgd"}, {"scheme": "sqsgd", "options": {"levels": 1000}}]
    ticks, rows = finished({**TINY, "arms": arms}, tmp_path / "sweep")
    good, bad = rows
    assert (good["runs"], good["failed"]) == (2, [])
    assert (bad["runs"], bad["lr"], bad["accuracy"]) == (0, None, None)
    assert "levels = 1000" in bad["failed"][0]
    assert any(tick.failed == 2 for tick in ticks)


def test_folders_are_not_mixed_up(tmp_path):
    sweep, other = make_sweep(TINY, ""), make_sweep({**TINY, "seeds": [5]}, "")
    with pytest.raises(ValueError, match="nothing to resume"):
        sweep_runner.open_folder(sweep, tmp_path / "a", resume=True)
    sweep_runner.open_folder(sweep, tmp_path / "a", resume=False)
    with pytest.raises(ValueError, match="holds a sweep already"):
        sweep_runner.open_folder(sweep, tmp_path / "a", resume=False)
    with pytest.raises(ValueError, match="another sweep"):
        sweep_runner.open_folder(other, tmp_path / "a", resume=True)


def test_an_interrupted_sweep_goes_on_to_the_same_models(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    values = {**TINY, "base": {**TINY["base"], "rounds": 100, "evaluate_every": 100}, "rates": [0.05]}
    finished(values, whole)
    command = [str(Path(sys.executable).with_name("sqsgd")), "compare", "--out", str(broken), "--json"]
    (tmp_path / "sweep.toml").write_text(make_sweep(values, "").to_toml())
    start = subprocess.Popen([*command, "--config", str(tmp_path / "sweep.toml")], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size > 5000 for path in broken.rglob("metrics.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    start.send_signal(signal.SIGINT)
    _, errors = start.communicate(timeout=60)
    assert start.returncode == 130, errors
    assert b"--resume" in errors
    assert not (broken / "table.json").exists()
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    for path in whole.rglob("model.safetensors"):
        assert path.read_bytes() == (broken / path.relative_to(whole)).read_bytes()
