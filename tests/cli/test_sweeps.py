"""What `compare` and `ablate` share: rows of the table, and values of the command line in every run."""

import pytest
from sweep_rows import FAILED, ROW
from tiny_runs import SWEEP

from sqsgd.cli import _sweeps as sweeps
from sqsgd.cli._failures import Ended
from sqsgd.experiments import sweep_runner
from sqsgd.experiments.sweep import make_sweep


def test_a_row_of_the_table():
    assert sweeps._cells(ROW) == [
        "epsilon 8", "sqsgd", "91.23%\xa0±\xa01.23", "3", "0.123", "8", "local", "273", "12", "",
    ]  # fmt: skip
    cells = sweeps._cells(FAILED)
    assert (cells[2], cells[4], cells[-1]) == ("", "", "levels = 1000 must be")
    assert sweeps._cells({**ROW, "half_width": None})[2] == "91.23%"
    assert sweeps._cells({**ROW, "lr_by_rule": True})[4] == "0.123 (rule)"


def test_other_metrics_are_plain_numbers_under_their_name():
    error = {
        **ROW,
        "accuracy": None,
        "metric": "RMSE",
        "better": "lower",
        "value": 0.4321,
        "half_width": 0.012,
    }
    assert sweeps._cells(error)[2] == "0.4321\xa0±\xa00.012"
    assert [sweeps._measured(rows) for rows in ([error], [ROW], [error, ROW])] == [
        "RMSE",
        "accuracy",
        "result",
    ]


def test_values_of_the_command_line_are_in_every_run():
    values = {"title": "x", "arms": [{"scheme": "sqsgd"}], "rates": [0.1], "seeds": [1]}
    plain = make_sweep({**values, "panels": [{"epsilon": 8.0}, {"epsilon": 4.0, "rounds": 9}]}, "a test")
    changed = sweeps.with_values(plain, {"rounds": 2, "dataset": "mnist5k"})
    jobs = changed.jobs({cell.name: 0.1 for cell in changed.cells()})
    assert [(job.config.epsilon, job.config.rounds) for job in jobs] == [(8.0, 2), (4.0, 2)]


def test_columns_that_are_empty_are_left_out_and_a_number_keeps_its_interval(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = ["sqsgd-stateless", "sqsgd, with a rather long name of many words", "fedsgd"]
    sweeps._print_rows([{**ROW, "panel": "", "arm": name} for name in names], "A title")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("91.23% ± 1.23") == 3
    assert "panel" not in shown
    assert "failed" not in shown


def test_panels_that_become_equal_are_one():
    values = {"title": "x", "arms": [{"scheme": "sqsgd"}], "rates": [0.1], "seeds": [1]}
    plain = make_sweep({**values, "panels": [{"epsilon": 8.0}, {"epsilon": 4.0}]}, "a test")
    assert len(sweeps.with_values(plain, {"epsilon": 2.0}).cells()) == 1


def test_a_process_that_died_ends_with_1(tmp_path, monkeypatch):
    def died(*_arguments, **_options):
        raise OSError("a process of the sweep died (out of memory?)")
        yield

    monkeypatch.setattr(sweep_runner, "run_sweep", died)
    sweep = make_sweep(SWEEP, "a test")
    with pytest.raises(Ended) as ended:
        sweeps.run(sweep, "tiny", tmp_path / "out", resume=False, jobs=1, as_json=True)
    assert ended.value.status == 1
    assert "a process of the sweep died (out of memory?); the runs in" in ended.value.reason
