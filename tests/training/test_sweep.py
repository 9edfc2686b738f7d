"""Sweeps: what a file means, what is kept, what is not done twice, what a table says."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from live import marked, wait_until
from tiny_runs import SWEEP

from sqsgd.runs import sweep as sweeps
from sqsgd.runs import train
from sqsgd.runs.sweep import load_sweep, make_sweep

FIGURE_FILES = sorted((Path(__file__).parents[2] / "experiments").glob("figure*.toml"))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("path", FIGURE_FILES, ids=lambda path: path.stem)
def test_the_files_of_the_figures_load_and_survive_a_round_trip(path, small):
    sweep = load_sweep(path, small=small)
    assert make_sweep(tomllib.loads(sweep.to_toml()), "again") == sweep
    assert sweep.jobs({cell.name: 0.1 for cell in sweep.cells()})


def test_panels_times_arms_times_seeds():
    panels = [{"epsilon": 60.0}, {"epsilon": 20.0, "arms": [{"scheme": "sqsgd"}]}]
    sweep = make_sweep({**SWEEP, "panels": panels}, "")
    found = [f"{cell.panel}, {cell.arm}" for cell in sweep.cells()]
    assert found == ["epsilon 60, sqsgd", "epsilon 60, fedsgd", "epsilon 20, sqsgd"]
    assert len(sweep.tuning_jobs()) == 3 * 2
    jobs = sweep.jobs({cell.name: 0.05 for cell in sweep.cells()})
    assert len(jobs) == 3 * 2
    assert {job.config.epsilon for job in jobs} == {60.0, 20.0}
    assert len({job.folder for job in jobs + sweep.tuning_jobs()}) == 12
    assert all(job.config.validation == 0.1 for job in sweep.tuning_jobs())
    assert all(job.config.validation == 0 for job in jobs)
    assert all(job.config.evaluate_every == job.config.rounds for job in sweep.tuning_jobs())


def test_base_panels_and_arms_are_merged_and_may_have_names():
    arms = [{"scheme": "sqsgd", "name": "Ours"}, {"scheme": "fedsgd"}]
    sweep = make_sweep({**SWEEP, "panels": [{"name": "ε = 60", "epsilon": 60.0}], "arms": arms}, "")
    jobs = sweep.jobs({cell.name: 0.05 for cell in sweep.cells()})
    assert {job.folder for job in jobs} >= {"runs/ε-60_Ours/seed-1", "runs/ε-60_fedsgd/seed-2"}
    assert {job.config.name for job in jobs} == {"ε = 60: Ours", "ε = 60: fedsgd"}
    base = {**SWEEP["base"], "options": {"reach": 2.0, "levels": 4}, "ledgers": "kept"}
    arms = [{"scheme": "sqsgd-paper", "options": {"levels": 16}}]
    sweep = make_sweep({**SWEEP, "base": base, "arms": arms, "tuning_rounds": 2}, "")
    (cell,) = sweep.cells()
    assert cell.values["options"] == {"reach": 2.0, "levels": 16}
    jobs = sweep.jobs({cell.name: 0.1})
    assert [job.config.ledgers for job in jobs] == [f"kept/runs/{cell.name}/seed-{seed}" for seed in (1, 2)]
    assert [{job.config.rounds for job in some} for some in (sweep.tuning_jobs(), jobs)] == [{2}, {6}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": []}, "arms is empty"),
        ({"arms": ["sqsgd"]}, r"write each of arms as a table"),
        ({"arms": [{"scheme": "sqsgd"}, {"scheme": "sqsgd"}]}, "are the same"),
        ({"base": {"lr": 0.1}}, "all arms and panels share rates"),
        ({"arms": [{"scheme": "sqsgd", "seed": 3}]}, "all arms and panels share seeds"),
    ],
)
def test_what_is_wrong_is_named_before_anything_runs(change, message):
    with pytest.raises(ValueError, match=message):
        make_sweep({**SWEEP, **change}, "a test")


def finished(values, out, resume=False):
    sweep = make_sweep(values, "a test")
    if not resume:
        sweeps.begin_sweep(sweep, out)
    ticks = list(sweeps.run_sweep(sweep, out, jobs=1))
    return ticks, json.loads((out / "table.json").read_text())


@pytest.mark.usefixtures("one_process")
def test_a_sweep_ends_with_a_table_names_what_failed_and_is_not_done_twice(tmp_path):
    out, wrong = tmp_path / "sweep", {"scheme": "sqsgd", "options": {"levels": 1000}}
    values = {**SWEEP, "arms": [*SWEEP["arms"], wrong]}
    ticks, rows = finished(values, out)
    assert ticks[-1] == ("training: 4 of 4 runs, round 24 of 24", 24, 24)
    assert any("2 failed, " in text for text, *_ in ticks)
    *good, bad = rows
    assert {row["arm"] for row in good} == {"sqsgd", "fedsgd"}
    assert all(row["runs"] == 2 and row["half_width"] is None for row in good)  # from three runs on
    assert good == sorted(good, key=lambda row: -row["accuracy"])
    assert (bad["runs"], bad["lr"], bad["accuracy"]) == (0, None, None)
    assert "levels = 1000" in bad["failed"][0]
    summaries = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert len(summaries) >= 8
    held = json.loads(next(iter(out.glob("tuning/sqsgd/*/summary.json"))).read_text())["held_out"]
    assert held == "32 training images of tiny:data, held out"
    _, again = finished(values, out, resume=True)
    assert again == rows
    assert summaries == {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}


def test_folders_are_not_mixed_up(tmp_path):
    sweep = make_sweep(SWEEP, "")
    sweeps.begin_sweep(sweep, tmp_path / "a")
    assert load_sweep(tmp_path / "a" / "sweep.toml") == sweep
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("")
    for name, words in (("a", "holds a sweep already"), ("b", "not empty"), ("b/mine", "is a file; name")):
        with pytest.raises(ValueError, match=words):
            sweeps.begin_sweep(sweep, tmp_path / name)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine"]
    with (tmp_path / "a" / "sweep.toml").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another process is running the sweep"):
            list(sweeps.run_sweep(sweep, tmp_path / "a", jobs=1))


COMPARE = [str(Path(sys.executable).with_name("sqsgd")), "compare", "--jobs", "1", "--json", "--out"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_sweep_that_was_killed_or_interrupted_goes_on_to_the_same_models(tmp_path, request):
    """Nobody trains on when its first process was killed."""
    base = {**SWEEP["base"], "rounds": 200, "evaluate_every": 200}
    sweep = make_sweep({**SWEEP, "base": base, "rates": [0.05], "arms": SWEEP["arms"][:1]}, "")
    out, config, mark = tmp_path / "sweep", tmp_path / "sweep.toml", f"test-{os.getpid()}-{tmp_path.name}"
    config.write_text(sweep.to_toml())
    environment = {**os.environ, "SQSGD_TEST": mark}
    process = subprocess.Popen([*COMPARE, str(out), "--config", str(config)], env=environment)
    try:
        begun = lambda: any(path.stat().st_size > 5_000 for path in out.rglob("metrics.jsonl"))  # noqa: E731
        wait_until(begun, 240, "some rounds")
        assert len(marked(mark)) >= 2  # it, and one that trains
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: not marked(mark), 240, "all processes have ended")
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(sweeps.Interrupted):
        list(sweeps.run_sweep(sweep, out, jobs=1, stop=[signal.SIGINT]))
    assert not (out / "table.json").exists()
    request.getfixturevalue("one_process")
    list(sweeps.run_sweep(sweep, out, jobs=1))
    for job in sweep.jobs({"sqsgd": 0.05}):
        list(train.prepare(job.config, tmp_path / "whole" / job.folder).started().rounds())
        models = [
            (place / job.folder / "model.safetensors").read_bytes() for place in (out, tmp_path / "whole")
        ]
        assert models[0] == models[1]


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
    loads, load_data = [], train.load_data
    monkeypatch.setattr(train, "load_data", lambda *a, **k: loads.append(a) or load_data(*a, **k))

    def checked(**changes):
        return sweeps.check_runs(make_sweep({**SWEEP, **changes}, "a test"))

    panels = [{"epsilon": 40.0}, {"epsilon": 60.0}, {"clients": 8}]
    assert checked(panels=panels) == []
    assert len(loads) == 1
    wrong = {"name": "B", "scheme": "sqsgd", "options": {"levels": 1000}}
    with pytest.raises(ValueError, match="arm 'B', panel 'P': levels = 1000"):
        checked(arms=[*SWEEP["arms"], wrong], panels=[{"name": "P"}])
    with pytest.raises(
        ValueError, match="arm 'sqsgd', panel 'clients 300': 300 clients cannot share 288 examples"
    ):
        checked(panels=[{"clients": 8}, {"clients": 300}])  # where rates are chosen, without a tenth


@pytest.mark.parametrize(
    ("accuracies", "tried_next", "marked"),
    [
        ({0.05: 0.4, 0.2: 0.6, 0.7: 0.6}, ["lr-1"], True),  # the best is as good at the end
        ({0.05: 0.6, 0.2: 0.6, 0.7: 0.5}, ["lr-0.03"], True),
        ({0.05: 0.4, 0.2: 0.6, 0.7: 0.5}, [], False),
        ({0.05: 0.1, 0.2: 0.1}, [], True),  # nothing is learned, or all is: rates decide nothing
        ({1e-6: 0.2, 0.2: 0.1}, [], True),  # the smallest that is tried at all
    ],
)
def test_a_best_rate_at_the_end_of_the_grid_is_continued_and_marked(accuracies, tried_next, marked, tmp_path):
    sweep = make_sweep({**SWEEP, "arms": [{"scheme": "sqsgd"}]}, "a test")
    for rate, accuracy in accuracies.items():
        written(tmp_path / f"tuning/sqsgd/lr-{rate:g}", accuracy=accuracy, lr=rate)
    assert [Path(job.folder).name for job in sweeps.wider(sweep, tmp_path)] == tried_next
    (row,) = sweeps.table(sweep, tmp_path, sweeps.choose(sweep, tmp_path))
    assert row["lr_at_edge"] is marked
