"""`sqsgd compare`: the table at the end, what is shown on the way, and the status where a scheme failed."""

import json

import pytest
from typed import typed

from sqsgd.cli import compare as sweeps
from sqsgd.experiments import sweep_runner
from sqsgd.experiments.sweep import make_sweep
from sqsgd.experiments.sweep_runner import Tick

ROW = {
    "panel": "epsilon 8", "arm": "sqsgd", "accuracy": 0.91234, "half_width": 0.0123, "runs": 3, "lr": 0.1,
    "epsilon": 8.0, "notion": "local", "bytes_up": 273, "seconds": 12.4, "failed": [],
}  # fmt: skip
FAILED = {
    **ROW, "arm": "vqsgd", "accuracy": None, "half_width": None, "runs": 0, "lr": None,
    "failed": ["levels = 1000 must be", "the same"],
}  # fmt: skip


def test_a_row_of_the_table():
    assert sweeps._cells(ROW) == [
        "epsilon 8", "sqsgd", "91.23% ± 1.23", "3", "0.1", "8", "local", "273", "12", "",
    ]  # fmt: skip
    cells = sweeps._cells(FAILED)
    assert (cells[2], cells[4], cells[-1]) == ("", "", "levels = 1000 must be")
    assert sweeps._cells({**ROW, "half_width": None})[2] == "91.23%"


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """A comparison whose runs are over: what the command makes of their table."""

    def compare(rows, *more):
        def run_sweep(_sweep, out, **_options):
            (out / "runs").mkdir()
            (out / "table.json").write_text(json.dumps(rows))
            yield Tick(stage="training", rounds=1, of_rounds=2000, runs=1, of_runs=2, failed=1)

        monkeypatch.setattr(sweep_runner, "run_sweep", run_sweep)
        monkeypatch.setattr(sweeps, "page_beside", lambda *_: None)
        return typed(["sqsgd", "compare", "--schemes", "sqsgd,vqsgd", "--out", tmp_path / "out", *more])

    return compare


@pytest.mark.parametrize(("rows", "code"), [([ROW], 0), ([ROW, FAILED], 1)])
def test_a_scheme_without_a_run_ends_with_1(ran, rows, code, tmp_path):
    done = ran(rows, "--json")
    assert done.code == code
    assert json.loads(done.out) == {"folder": str(tmp_path / "out"), "page": "", "rows": rows}
    assert done.error == ""


def test_people_get_the_table_and_see_how_far_it_is(ran, tmp_path):
    done = ran([ROW])
    assert "91.23% ± 1.23" in done.out
    assert done.out.endswith(f"written to {tmp_path / 'out'}\n")
    assert done.error == "training: 1 of 2 runs, 1 failed, round 1 of 2,000\n"


def test_values_of_the_command_line_are_in_every_run():
    values = {"title": "x", "arms": [{"scheme": "sqsgd"}], "rates": [0.1], "seeds": [1]}
    plain = make_sweep({**values, "panels": [{"epsilon": 8.0}, {"epsilon": 4.0, "rounds": 9}]}, "a test")
    changed = sweeps._with(plain, {"rounds": 2, "dataset": "mnist5k"})
    jobs = changed.jobs({cell.name: 0.1 for cell in changed.cells()})
    assert [(job.config.epsilon, job.config.rounds) for job in jobs] == [(8.0, 2), (4.0, 2)]
