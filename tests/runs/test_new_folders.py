"""Runs without --out get a folder of their own, however many start in the same second."""

import json
import multiprocessing
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqsgd.training.run_folder import new_folder
from typed import typed

START = time.struct_time((2026, 1, 2, 3, 4, 5, 4, 2, 0))


@pytest.fixture
def _one_second(monkeypatch):
    strftime = time.strftime
    monkeypatch.setattr(time, "strftime", lambda form, *given: strftime(form, *(given or (START,))))


@pytest.mark.usefixtures("_one_second")
def test_the_second_and_third_take_the_next_name(tmp_path):
    place = tmp_path / "runs"
    made = [new_folder("my_code:data", place).name for _ in range(3)]
    first = "my_code-data-20260102-030405"
    assert made == [first, f"{first}-2", f"{first}-3"]
    assert sorted(folder.name for folder in place.iterdir()) == sorted(made)


def make_ten(place):
    return [str(new_folder("mnist5k", Path(place))) for _ in range(10)]


def test_many_at_once_get_one_each(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        made = [folder for ten in pool.map(make_ten, [tmp_path] * 4, chunksize=1) for folder in ten]
    assert len(set(made)) == 40
    assert all(Path(folder).is_dir() for folder in made)


def test_a_file_of_the_same_name_is_reported(tmp_path):
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(ValueError, match=r"runs is a file, .* choose one with --out"):
        new_folder("mnist5k", tmp_path / "runs")


@pytest.mark.usefixtures("_one_second")
def test_runs_and_sweeps_of_the_same_second_get_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = "sqsgd train --clients 2 --rounds 1 --batch 2 --json"
    folders = [json.loads(typed(train).out)["folder"] for _ in range(2)]
    assert folders == ["runs/mnist5k-20260102-030405", "runs/mnist5k-20260102-030405-2"]
    compare = "sqsgd compare --schemes fedsgd --clients 2 --rounds 1 --seeds 1 --rates 0.1 --jobs 1 --json"
    folders = [json.loads(typed(compare).out)["folder"] for _ in range(2)]
    assert folders == ["runs/compare-20260102-030405", "runs/compare-20260102-030405-2"]


def test_two_processes_started_together_both_train(tmp_path):
    options = ["--clients", "2", "--rounds", "1", "--batch", "2", "--json"]
    line = [sys.executable, "-m", "sqsgd", "train", *options]
    both = [subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {json.loads(process.communicate(timeout=300)[0])["folder"] for process in both}
    assert len(folders) == 2
    assert all(re.fullmatch(r"runs/mnist5k-\d{8}-\d{6}(-2)?", folder) for folder in folders)
    assert all((tmp_path / folder / "summary.json").exists() for folder in folders)
