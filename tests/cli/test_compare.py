"""`sqsgd compare`: the table at the end, progress on the way, and the status if a scheme has no run."""

import json

import pytest
from sweep_rows import FAILED, ROW
from typed import typed

from sqsgd.cli import _sweeps
from sqsgd.experiments import sweep_runner
from sqsgd.experiments.sweep_runner import Tick


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Run a comparison whose runs are done, from their table."""

    def compare(rows, *more):
        def run_sweep(_sweep, out, **_options):
            (out / "runs").mkdir()
            (out / "table.json").write_text(json.dumps(rows))
            yield Tick(stage="training", rounds=1, of_rounds=2000, runs=1, of_runs=2, failed=1)

        monkeypatch.setattr(sweep_runner, "run_sweep", run_sweep)
        monkeypatch.setattr(_sweeps, "try_write_report", lambda *_: None)
        return typed(["sqsgd", "compare", "--schemes", "sqsgd,vqsgd", "--out", tmp_path / "out", *more])

    return compare


@pytest.mark.parametrize(("rows", "code"), [([ROW], 0), ([ROW, FAILED], 1)])
def test_a_scheme_without_a_run_ends_with_1(ran, rows, code, tmp_path):
    done = ran(rows, "--json")
    assert done.code == code
    assert json.loads(done.out) == {"folder": str(tmp_path / "out"), "page": "", "rows": rows}
    assert done.error == ""


def test_without_json_the_table_and_the_progress_are_printed(ran, tmp_path):
    done = ran([ROW])
    assert "91.23% ± 1.23" in done.out
    assert done.out.endswith(f"written to {tmp_path / 'out'}\n")
    assert done.error == "training: 1 of 2 runs, 1 failed, round 1 of 2,000\n"


def test_settings_of_a_file_are_not_given_twice(tmp_path):
    (tmp_path / "sweep.toml").write_text('title = "x"\n[[arms]]\nscheme = "sqsgd"\n')
    done = typed(["sqsgd", "compare", "--config", tmp_path / "sweep.toml", "--seeds", "3"])
    assert done.code == 2
    assert "are set in the --config file" in done.error


def test_arms_that_cannot_learn_are_told_before_they_run(ran):
    """vqsgd needs about epsilon = ln(2 dim) for its first vertex; sqsgd does with less."""
    small = "--epsilon 0.5 --bytes 16 --rounds 20 --dataset tiny:data --model tiny:model"
    done = ran([ROW], *small.split())
    told = [line for line in done.error.splitlines() if "nothing will be learned" in line]
    assert [line.split(" at ")[0] for line in told] == ["vqsgd"]
