"""The results as CSV."""

import csv
import math
from pathlib import Path

import pytest

from sqsgd.report.charts import all_charts
from sqsgd.report.spreadsheets import ARM, POINT, RUN, write_spreadsheets

PAGE = Path(__file__).parents[2] / "docs/how-to/read-the-report.md"


@pytest.fixture
def written(grouped, tmp_path):
    """Groups of these settings, and the rows of each file."""

    def make(*settings):
        groups = grouped(*settings)
        paths = write_spreadsheets(groups, all_charts(groups), tmp_path / "csv")
        rows = {}
        for path in paths:
            with path.open(newline="") as file:
                rows[path.name] = list(csv.DictReader(file))
        return groups, rows

    return make


def test_a_row_per_run_and_a_row_per_arm(written):
    fedsgd = {"scheme": "fedsgd", "notion": "none", "name": "Fed, SGD", "best": 0.5}
    groups, rows = written(*({"seed": seed} for seed in range(3)), fedsgd, {"bytes": 64, "done": 17})
    assert len(rows["runs.csv"]) == 5
    assert len(rows["arms.csv"]) == 3
    first = next(row for row in rows["runs.csv"] if row["seed"] == "1")
    run = next(run for run in groups[0].runs if run.config.seed == 1)
    assert float(first["value"]) == run.accuracies[-1]
    assert (first["bytes"], float(first["bytes_per_report"])) == ("256", 273.0)
    arms = {row["arm"]: row for row in rows["arms.csv"]}
    whole = arms[groups[0].label]
    assert (float(whole["mean"]), float(whole["half_width_95"])) == groups[0].accuracy
    assert (whole["runs"], whole["state"]) == ("3", "finished")
    assert sorted(arm["state"] for arm in arms.values()) == ["finished", "finished", "unfinished"]
    assert arms["Fed, SGD"]["half_width_95"] == ""
    assert math.isinf(float(arms["Fed, SGD"]["epsilon"]))
    assert next(row["state"] for row in rows["runs.csv"] if row["bytes"] == "64") == "unfinished"


def test_an_error_is_named_and_its_lowest_value_is_the_best(written):
    groups, rows = written({"metric": "RMSE", "best": 0.25, "loss": "squared-error"})
    for row, value in ((rows["runs.csv"][0], "value"), (rows["arms.csv"][0], "mean")):
        assert row["metric"] == "RMSE"
        assert float(row["best"]) == min(groups[0].runs[0].accuracies)
        assert float(row[value]) == groups[0].runs[0].accuracies[-1]


def test_a_row_per_point_of_a_figure(written):
    groups, rows = written(*({"seed": seed} for seed in range(3)))
    chart = all_charts(groups)[0]
    found = [row for row in rows["figures.csv"] if row["figure"] == "accuracy-by-round"]
    assert [float(row["mean"]) for row in found] == chart.curves[0].mean.tolist()
    assert [float(row["half_width_95"]) for row in found] == chart.curves[0].half.tolist()


def test_a_name_is_not_a_formula(written):
    _, rows = written({"name": "=1+1"})
    assert rows["arms.csv"][0]["arm"] == "'=1+1"


@pytest.mark.parametrize("column", sorted({*RUN, *ARM, *POINT}))
def test_every_column_is_documented(column):
    assert f"| `{column}` |" in PAGE.read_text()
