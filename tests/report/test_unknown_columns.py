"""Runs that did not measure everything, such as a federation whose nodes report no loss and no times."""

import math

import numpy as np
import pytest
from folders import write_run

from sqsgd.report import images, page, tables
from sqsgd.report.charts import all_charts, line_charts, split_chart
from sqsgd.report.groups import group_runs
from sqsgd.report.statement import promises
from sqsgd.training import reading

UNKNOWN = (
    "loss",
    "bound",
    "clip_rate",
    "test_loss",
    "seconds_gradient",
    "seconds_encode",
    "seconds_aggregate",
)


def forget(run, *names, rounds=slice(None)):
    for name in names:
        run.columns[name][rounds] = math.nan
    return run


@pytest.fixture
def partly_known(grouped):
    """A group with unknown columns, and one that measured everything."""
    groups = grouped({"engine": "flower", "secure": True}, {"scheme": "fedsgd", "notion": "none"})
    (group,) = (group for group in groups if group.config.engine == "flower")
    forget(group.runs[0], *UNKNOWN)
    return groups


def test_charts_leave_out_what_is_unknown(partly_known):
    label = next(group.label for group in partly_known if group.config.engine == "flower")
    by_round, by_bytes, loss, epsilon, bound, clip_rate = line_charts(partly_known)
    for chart in (by_round, by_bytes, epsilon):
        assert label in [curve.label for curve in chart.curves]
    for chart in (loss, bound, clip_rate):
        assert label not in [curve.label for curve in chart.curves]
        assert label not in chart.caption  # an unknown bound is not a constant one
    time = split_chart(partly_known)
    assert label not in [split.label for split in time.splits]
    assert time.caption.endswith(f"Not drawn, because its parts were not timed: {label}.")
    assert not any("nan" in chart.alternative for chart in all_charts(partly_known))


def test_tables_and_statement_say_what_is_known(partly_known):
    shown = tables.results_table(partly_known)
    assert "nan" not in shown
    assert "16,000" in shown
    (made,) = (promise for promise, _ in promises(partly_known) if promise.notion == "local")
    assert (made.total, made.reports) == (16000, 40)


def test_a_run_without_any_numbers_promises_nothing(grouped):
    groups = grouped({})
    forget(groups[0].runs[0], *(name for name in groups[0].runs[0].columns if name != "round"))
    assert all(chart.empty for chart in all_charts(groups))
    assert "nan" not in tables.results_table(groups)
    ((made, _),) = promises(groups)
    assert made.short == "Unknown guarantee"


def test_lost_rounds_are_left_out_of_means_and_of_curves(grouped):
    (group,) = grouped({"seed": 0, "rounds": 600}, {"seed": 1, "rounds": 600})
    forget(group.runs[0], "loss", rounds=slice(0, 1))
    forget(group.runs[1], "accuracy", rounds=slice(0, 10))
    by_round, _, loss, *_ = line_charts([group])
    first = [run.columns["loss"][:3] for run in group.runs]
    assert loss.curves[0].mean[0] == pytest.approx((np.mean(first[0][1:]) + np.mean(first[1])) / 2)
    assert by_round.curves[0].x[0] == 20


def test_page_and_images_are_written(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run")
    runs = [forget(reading.read_run(folder), *UNKNOWN, "seconds")]
    assert math.isnan(group_runs(runs)[0].seconds)
    for module in (page, images):
        monkeypatch.setattr(module, "read_runs", lambda _paths: (runs, []))
    content = page.write_report([folder], tmp_path / "report.html").read_text()
    assert content.count("There is nothing to draw.") == 4
    names = [path.stem for path in images.write_images([folder], tmp_path / "svg", "svg")]
    assert names == ["accuracy-by-round", "accuracy-by-bytes", "epsilon"]
