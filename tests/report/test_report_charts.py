"""What the figures show, before anything is drawn."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from sqsgd.report.charts import ALL_POINTS, MOST_POINTS, line_charts, split_chart


def test_curves_are_means_with_the_interval_of_student(grouped):
    groups = grouped(*({"seed": seed} for seed in range(3)), {"scheme": "fedsgd", "notion": "none"})
    by_round, by_bytes, loss, epsilon, bound, clip_rate = line_charts(groups)
    group = next(each for each in groups if each.config.scheme == "sqsgd")
    curve = next(each for each in by_round.curves if each.label == "sqsgd")
    values = np.stack([run.accuracies for run in group.runs])
    assert np.allclose(curve.mean, values.mean(axis=0))
    low, high = stats.t.interval(0.95, 2, curve.mean, stats.sem(values, axis=0))
    assert np.allclose((curve.low, curve.high), (low, high))
    assert curve.half[-1] == group.accuracy[1]  # the band ends at the ± of the table
    assert next(each for each in by_bytes.curves if each.label == "sqsgd").x[-1] == 40 * 273
    assert by_bytes.log_x is False
    assert len(loss.curves) == 2
    assert [each.label for each in epsilon.curves] == ["sqsgd"]
    assert epsilon.curves[0].mean[-1] == 16000
    assert not epsilon.curves[0].banded
    assert "there is no guarantee: fedsgd" in epsilon.caption
    for chart in (bound, clip_rate):
        assert [each.label for each in chart.curves] == ["sqsgd"]
        assert "it is constant: fedsgd" in chart.caption


def test_bytes_that_lie_far_apart_have_a_logarithmic_axis(grouped):
    groups = grouped({}, {"scheme": "fedsgd", "notion": "none", "dim": 100000})
    assert line_charts(groups)[1].log_x


def test_long_runs_are_thinned_to_their_very_end(grouped):
    groups = grouped({"rounds": 1000, "evaluate_every": 1})
    for chart in line_charts(groups):
        (curve,) = chart.curves
        assert len(curve.x) == MOST_POINTS
    assert line_charts(groups)[0].curves[0].x[-1] == 1000
    assert line_charts(groups)[3].curves[0].mean[-1] == 400_000
    loss = line_charts(groups)[2].curves[0]
    assert loss.mean[0] == pytest.approx(groups[0].runs[0].columns["loss"][:5].mean())


def test_the_time_is_split_without_loss(grouped):
    (split,) = split_chart(grouped({})).splits
    assert split.milliseconds == pytest.approx({"gradient": 60, "encode": 20, "aggregate": 5, "rest": 15})


def test_alternative_text_of_a_line_chart(grouped):
    chart = line_charts(grouped({}))[3]
    words = "Line chart: total ε against rounds. sqsgd goes from 400 at 1 to 16,000 at 40."
    assert chart.alternative == words


def test_a_group_without_rounds_has_no_curve_and_no_bar(grouped):
    groups = grouped({}, {"scheme": "fedsgd", "notion": "none", "done": 0})
    assert len(groups) == 2
    for chart in line_charts(groups):
        assert [curve.label for curve in chart.curves] == ["sqsgd"]
        assert "fedsgd" not in chart.caption
    assert [split.label for split in split_chart(groups).splits] == ["sqsgd"]


def test_alternative_text_of_the_bars(grouped):
    chart = split_chart(grouped({}))
    words = "Bar chart: milliseconds per round. sqsgd: gradient 60, encode 20, aggregate 5, rest 15."
    assert chart.alternative == words


def test_bands_are_drawn_and_explained_from_three_runs_on(grouped):
    (group,) = grouped({}, {"seed": 1}, {"seed": 2})
    for runs in (1, 2, 3):
        chart = line_charts([dataclasses.replace(group, runs=group.runs[:runs])])[0]
        assert chart.curves[0].banded is (runs == 3)
        assert ("95 % confidence interval (Student's t)" in chart.caption) is (runs == 3)


def test_bands_of_shares_end_at_0_and_1(grouped):
    curve = line_charts(grouped({}))[0].curves[0]
    wide = dataclasses.replace(curve, half=np.full_like(curve.mean, 2.0))
    assert (wide.low.min(), wide.high.max()) == (0.0, 1.0)
    assert dataclasses.replace(wide, share=False).low.min() < 0  # a loss may be negative


def test_many_groups_have_fewer_points_each(grouped):
    (group,) = grouped({"rounds": 1000, "evaluate_every": 1})
    chart = line_charts([group] * 32)[0]
    assert sum(len(curve.x) for curve in chart.curves) == ALL_POINTS
    assert {curve.x[-1] for curve in chart.curves} == {1000}


def test_an_error_is_drawn_under_its_name_and_said_to_be_better_when_lower(grouped):
    by_round, by_bytes, *_ = line_charts(grouped({"metric": "RMSE", "best": 0.25}))
    assert (by_round.title, by_round.y_title, by_round.y_unit) == ("RMSE by round", "RMSE", "number")
    assert by_bytes.title == "RMSE by bytes sent"
    assert "Lower is better." in by_round.caption
    assert by_round.curves[0].mean[-1] < by_round.curves[0].mean[0]


def test_groups_with_another_metric_are_left_out_and_named(grouped):
    by_round, *_ = line_charts(grouped({}, {"metric": "RMSE", "loss": "squared-error"}))
    assert len(by_round.curves) == 1
    assert "another metric was measured" in by_round.caption
