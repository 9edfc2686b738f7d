"""What `compare` and `ablate` share: rows of the table, and values of the command line in every run."""

from sweep_rows import FAILED, ROW

from sqsgd.cli import _sweeps as sweeps
from sqsgd.experiments.sweep import make_sweep


def test_a_row_of_the_table():
    assert sweeps._cells(ROW) == [
        "epsilon 8", "sqsgd", "91.23% ± 1.23", "3", "0.1", "8", "local", "273", "12", "",
    ]  # fmt: skip
    cells = sweeps._cells(FAILED)
    assert (cells[2], cells[4], cells[-1]) == ("", "", "levels = 1000 must be")
    assert sweeps._cells({**ROW, "half_width": None})[2] == "91.23%"


def test_other_metrics_are_plain_numbers_under_their_name():
    error = {
        **ROW,
        "accuracy": None,
        "metric": "RMSE",
        "better": "lower",
        "value": 0.4321,
        "half_width": 0.012,
    }
    assert sweeps._cells(error)[2] == "0.4321 ± 0.012"
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
