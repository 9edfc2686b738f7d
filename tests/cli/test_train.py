"""`sqsgd train` and `sqsgd report`: what epsilon covers, progress, pages, and what a failure leaves."""

import json
import resource
import signal
from pathlib import Path

import pytest
from folders import write_run
from typed import typed

from sqsgd.cli.output import Ended
from sqsgd.cli.train import describe, final_page
from sqsgd.learning.problem import LearningProblem, ModelFailed

SUMMARY = {
    "scheme": "sqsgd", "accuracy": 0.91234, "held_out": "1,000 test images of mnist5k", "notion": "local",
    "epsilon": 8.0, "epsilon_all_rounds": 80.0, "epsilon_total": 80.0, "participation": "all", "refused": 0,
    "noise": "seeded: for tests alone", "bytes_up": 64, "bytes_up_ratio": 7490.6, "seconds": 12.3,
    "lr": 0.12345, "decay": "linear",
}  # fmt: skip


ALL_ROUNDS = "8 per round; 80 for a client that takes part in all rounds"


def described(**changes):
    return describe({**SUMMARY, **changes}, Path("runs/a"))


TINY = "sqsgd train --dataset tiny:data --model tiny:model --clients 4 --bytes 2 --epsilon 60"


def test_a_model_that_fails_in_training_is_named_and_the_run_stays(tmp_path, monkeypatch):
    def failing(_problem, _weights):
        raise ModelFailed("model Late failed: AssertionError: too many")

    monkeypatch.setattr(LearningProblem, "measure", failing)
    done = typed(f"{TINY} --rounds 30 --out {tmp_path}/run")
    assert done.code == 1
    assert "model Late failed: AssertionError: too many; the last" in done.error
    assert f"checkpoint in {tmp_path / 'run'} is intact" in done.error
    assert "internal" not in done.error
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ALL_ROUNDS),
        ({"epsilon_total": 24.0}, f"{ALL_ROUNDS}; 24 for the client that took part most often"),
        ({"participation": "once"}, "8 per report, which is the total: no user sends two"),
        ({"notion": "none"}, ALL_ROUNDS.replace("80", "infinite").replace("8 ", "infinite (not private) ")),
        # once, but central: a single report is not private
        ({"participation": "once", "notion": "central"}, ALL_ROUNDS),
    ],
)
def test_what_epsilon_covers(changes, told):
    assert f"\nepsilon        {told}\n" in described(**changes)


def test_the_summary_ends_with_the_path_of_the_page(tmp_path):
    page = tmp_path / "run/report.html"
    done = typed(f"{TINY} --rounds 2 --name Mine --out {tmp_path}/run")
    assert done.out.splitlines()[-1] == f"page           {page}"
    assert "round 1 of 2" in done.error
    assert "Mine" in page.read_text()
    done = typed(f"{TINY} --rounds 2 --out {tmp_path}/other --json")
    told = json.loads(done.out)
    assert (told["page"], done.error) == (str(tmp_path / "other/report.html"), "")
    assert told["seconds_command"] > told["seconds"]


def test_a_page_and_its_files(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"runs/{seed}", seed=seed)
    (tmp_path / "runs/b").mkdir()
    (tmp_path / "runs/b/error.txt").write_text("out of memory\n")
    out = tmp_path / "page.html"
    folders = [f"--{kind}={tmp_path / kind}" for kind in ("csv", "pdf", "svg")]
    done = typed(["sqsgd", "report", tmp_path / "runs", "--out", out, *folders, "--json"])
    assert done.code == 0
    page, *files = json.loads(done.out)
    assert page == str(out)
    assert "<title>" in out.read_text()[:2000]
    assert sorted(files) == sorted(
        str(path) for kind in ("csv", "pdf", "svg") for path in (tmp_path / kind).iterdir()
    )
    assert len(files) == 3 + 6 + 6
    assert done.error.startswith("not shown: ")
    assert "out of memory" in done.error


def test_a_full_disk_is_named_with_its_file_and_the_remedy(tmp_path):
    """No file may become longer than some kilobytes here."""
    run = write_run(tmp_path / "a", rounds=4)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, usual[1]))
    try:
        with pytest.raises(Ended) as ended:
            final_page(run, tmp_path / "page.html", "A title")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        signal.signal(signal.SIGXFSZ, before)
    assert ended.value.status == 1
    told = ended.value.reason
    assert told.startswith(f"{tmp_path / 'page.html'}: File too large; free some space")
    assert f"sqsgd report {run} --out {tmp_path / 'page.html'} --title 'A title'" in told
    assert not list(tmp_path.glob("page*"))  # nothing half-written


@pytest.mark.parametrize(("typed_option", "scheme", "told"), [
    ("--batch 9", "sqsgd-record", "batch is ignored: each client draws its records itself"),
    ("--delta 1e-5", "sqsgd", "delta is ignored: it is for a guarantee per record"),
])  # fmt: skip
def test_an_option_of_the_other_unit_is_named(tmp_path, typed_option, scheme, told):
    size = "--bytes 20" if scheme == "sqsgd-record" else "--bytes 2"
    done = typed(
        f"{TINY.replace('--bytes 2', size)} --scheme {scheme} {typed_option} --rounds 1 --out {tmp_path}/run"
    )
    assert told in done.error
