"""What the figures show, that they can be told apart, and the files drawn from them."""

import dataclasses
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from scipy import stats

from sqsgd.report.charts import all_charts, write_charts

FEDSGD = {"scheme": "fedsgd", "notion": "none"}


def test_curves_are_means_with_the_interval_of_student(grouped):
    groups = grouped(*({"seed": seed} for seed in range(3)), FEDSGD, {**FEDSGD, "seed": 1})
    by_round, by_bytes, loss, epsilon, bound, clip_rate = all_charts(groups)
    group = next(each for each in groups if each.config.scheme == "sqsgd")
    curve = by_round.curves["sqsgd"]
    values = np.stack([run.accuracies for run in group.runs])
    mean = [point["mean"] for point in curve]
    assert np.allclose(mean, values.mean(axis=0))
    low, high = stats.t.interval(0.95, 2, mean, stats.sem(values, axis=0))
    assert np.allclose([(point["low"], point["high"]) for point in curve], np.stack([low, high], axis=1))
    assert curve[-1]["half"] == group.accuracy[1]  # the band ends at the ± of the table
    assert {point["group"] for point in by_round.points if "low" in point} == {"sqsgd"}  # two say too little
    assert by_bytes.curves["sqsgd"][-1]["x"] == 40 * 273
    assert not by_bytes.log_x
    assert len(loss.curves) == 2
    assert list(epsilon.curves) == ["sqsgd"]
    assert epsilon.points[-1]["mean"] == 16000
    assert "low" not in epsilon.points[-1]  # nothing is estimated there
    assert "they have no guarantee: fedsgd" in epsilon.caption
    for chart in (bound, clip_rate):
        assert list(chart.curves) == ["sqsgd"]
        assert "it is constant: fedsgd" in chart.caption


def test_an_error_is_drawn_under_its_name_without_groups_of_another_metric(grouped):
    runs = ({"metric": "RMSE", "best": 0.25, "loss": "squared-error"}, {"best": 0.1})
    by_round, *_ = all_charts(grouped(*runs))
    assert len(by_round.curves) == 1
    assert "another metric was measured" in by_round.caption
    by_round, *_ = all_charts([group for group in grouped() if group.headline.name == "RMSE"])
    assert (by_round.title, by_round.y_title, by_round.share) == ("RMSE by round", "RMSE", False)


# ---------------------------------------------------------------- runs that did not measure everything


def forget(run, *names, rounds=slice(None)):
    for name in names:
        run.columns[name][rounds] = math.nan


def test_lost_rounds_are_left_out_of_means_and_of_curves(grouped):
    (group,) = grouped({"seed": 0, "rounds": 600}, {"seed": 1, "rounds": 600})
    forget(group.runs[0], "loss", rounds=slice(0, 1))
    forget(group.runs[1], "accuracy", rounds=slice(0, 10))
    by_round, _, loss, *_ = all_charts([group])
    first = [run.columns["loss"][:10] for run in group.runs]
    assert loss.points[0]["mean"] == pytest.approx((np.mean(first[0][1:]) + np.mean(first[1])) / 2)
    assert by_round.points[0]["x"] == 20


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<svg"), ("pdf", b"%PDF")])
def test_files_have_the_same_bytes_each_time(grouped, tmp_path, kind, start):
    """Figures without points are left out; labels are text, whatever they contain."""
    label = r"_$\bad{$ <b> & _"
    charts = all_charts(grouped(*({"name": label, "seed": seed} for seed in range(3)), {"scheme": "fedsgd"}))
    charts = charts if kind == "svg" else charts[:1]
    empty = dataclasses.replace(charts[0], name="empty", points=[])
    first, again = (write_charts([*charts, empty], tmp_path / name, kind) for name in ("one", "two"))
    assert [path.name for path in first] == [f"{chart.name}.{kind}" for chart in charts]
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.read_bytes().startswith(start)
    if kind == "svg":
        assert label in "".join(ElementTree.parse(first[0]).getroot().itertext())  # noqa: S314
