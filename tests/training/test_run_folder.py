"""A run's folder: one process writes it; what a crash left is resumed or refused, and read in any state."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from folders import write_run
from tiny_runs import prepared, resumed, started, stopped

from sqsgd.training import State
from sqsgd.training.reading import find_runs, read_run, read_runs
from sqsgd.training.run_folder import CHECKPOINT, RunFolder, new_folder


def state(round):
    weights = np.full(3, round, np.float32)
    return State(round=round, weights=weights, bound=1.0, optimizer={}, residuals={}, spent={5: round})


@pytest.fixture
def folder(tmp_path):
    """One that holds three rounds and the checkpoint of the second."""
    made = RunFolder(tmp_path / "new" / "run")
    with made.held():
        made.begin(state(0), {"name": "test"}, "")
        for round in range(3):
            made.write({"round": round})
        made.save(state(2), {"name": "test"})
    return made


def test_rounds_after_the_checkpoint_are_dropped(folder):
    """And so are a line that a crash cut off, and the summary, which is no longer true."""
    with folder.metrics.open("a") as file:
        file.write('{"round": 3')
    (folder.path / "summary.json").write_text("{}")
    kept, about = folder.load()
    assert (kept.round, kept.weights.tolist(), kept.spent) == (2, [2.0] * 3, {5: 2})
    assert about == {"name": "test"}
    with folder.held():
        folder.keep_rounds(2)
        folder.write({"round": 2, "again": True})
    assert [line["round"] for line in folder.lines] == [0, 1, 2]
    assert folder.metrics.read_text() == '{"round": 0}\n{"round": 1}\n{"round": 2, "again": true}\n'
    assert not (folder.path / "summary.json").exists()


def test_a_folder_that_lost_rounds_cannot_be_resumed(folder):
    for lost in ('{"round": 0}\n', '{"round": 0}\n{"round": 1}', '{"round": 0}\n{"rou\n', ""):
        folder.metrics.write_text(lost)
        with folder.held(), pytest.raises(ValueError, match=r"damaged: only . of the checkpoint's 2"):
            folder.keep_rounds(2)
        assert folder.metrics.read_text() == lost


@pytest.mark.parametrize("fails", ["fsync", "pwrite", "replace"])
def test_a_disk_that_fills_up_leaves_the_last_checkpoint(tmp_path, monkeypatch, fails):
    run = prepared(tmp_path / "run")
    steps = started(run)
    for _ in range(5):
        next(steps)
    path = run.folder / CHECKPOINT
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
    assert len(list(resumed(run))) == 8


@pytest.mark.parametrize("damage", [b"", b"SQ", None])
def test_a_damaged_checkpoint_is_reported_as_damaged(tmp_path, damage):
    run = stopped(tmp_path / "run")
    path = run.folder / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
        run.resumed()


def make_ten(place):
    return [str(new_folder("mnist5k", Path(place))) for _ in range(10)]


def test_many_at_once_get_one_folder_each(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        made = [folder for ten in pool.map(make_ten, [tmp_path] * 4, chunksize=1) for folder in ten]
    assert len(set(made)) == 40
    assert all(Path(folder).is_dir() for folder in made)


def test_unfinished_failed_and_empty_runs_say_so(tmp_path):
    unfinished = read_run(write_run(tmp_path / "a", done=37, rounds=600))
    assert unfinished.status == "unfinished at round 37 of 600"
    failed = read_run(write_run(tmp_path / "b", done=3, error="out of memory"))
    assert failed.status == "failed at round 3 of 40: out of memory"
    silent = read_run(write_run(tmp_path / "d", done=0, error=""))
    assert silent.status == "failed at round 0 of 40: no reason was given"
    second = write_run(tmp_path / "e")
    (second / "error.txt").write_text("the first attempt failed")
    assert read_run(second).state == "finished"
    (second / "metrics.jsonl").unlink()
    assert "metrics.jsonl ends at round 0" in read_run(second).status


def test_a_last_line_that_is_cut_off_is_no_round_yet(tmp_path):
    folder = write_run(tmp_path / "a", done=12)
    content = (folder / "metrics.jsonl").read_bytes()
    for cut in (1, 30, 200):
        (folder / "metrics.jsonl").write_bytes(content[:-cut])
        run = read_run(folder)
        assert (run.state, run.rounds) == ("unfinished", 11)


HUGE = f'{{"round": {"9" * 400}}}'


@pytest.mark.parametrize(
    "line", ["garbage", "{}", "[]", '{"round": 4}', "[" * 100000, '{"round": 1e999}', HUGE]
)
def test_a_damaged_line_ends_what_is_read(tmp_path, line):
    folder = write_run(tmp_path / "a")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[4] = line
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read_run(folder)
    assert (run.state, run.rounds) == ("damaged", 4)
    assert "line 5 of metrics.jsonl" in run.status


def test_runs_are_found_at_any_depth_once_and_in_natural_order(tmp_path):
    for seed in (10, 2, 0):
        write_run(tmp_path / "x" / "y" / f"seed-{seed}", seed=seed)
    write_run(tmp_path / "x" / ".hidden" / "seed-3", seed=3)
    (tmp_path / "x" / "sweep.toml").write_text("")
    found = find_runs([tmp_path, tmp_path / "x", tmp_path / "x" / "y" / "seed-2"])
    assert [folder.name for folder in found] == ["seed-0", "seed-2", "seed-10"]


def test_one_unreadable_run_does_not_hide_the_others(tmp_path):
    write_run(tmp_path / "good")
    bad = write_run(tmp_path / "bad")
    (bad / "config.toml").write_text("rounds = ")
    early = tmp_path / "early"
    early.mkdir()
    (early / "error.txt").write_text("no such dataset\nand more")
    runs, unreadable = read_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["good"]
    assert unreadable[0].startswith(str(bad))
    assert "early holds no run: " in unreadable[1]
    assert "failed before that was written: no such dataset" in unreadable[1]
    with pytest.raises(ValueError, match="no run can be read"):
        read_runs([bad])


def test_runs_that_chose_a_sweeps_rates_are_left_out(tmp_path):
    """Unless there are no others yet, or their folder is named."""
    sweep = tmp_path / "sweep"
    tuning = write_run(sweep / "tuning" / "sqsgd" / "lr-0.1")
    (sweep / "sweep.toml").write_text('title = "Mine"\n')
    assert find_runs([tmp_path]) == [tuning]
    final = write_run(sweep / "runs" / "sqsgd" / "seed-1")
    assert find_runs([sweep]) == find_runs([tmp_path]) == [final]
    assert find_runs([sweep / "tuning"]) == [tuning]
    other = write_run(tmp_path / "tuning" / "a")  # of no sweep
    assert find_runs([tmp_path]) == [final, other]
