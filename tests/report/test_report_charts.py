"""What the figures show, that they can be told apart, and the files drawn from them."""

import dataclasses
import itertools
import json
import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from scipy import stats

from sqsgd.report import charts as drawn
from sqsgd.report.charts import COLOURS, SERIES, all_charts, line_charts, time_chart, write_charts

FEDSGD = {"scheme": "fedsgd", "notion": "none"}


def test_curves_are_means_with_the_interval_of_student(grouped):
    groups = grouped(*({"seed": seed} for seed in range(3)), FEDSGD, {**FEDSGD, "seed": 1})
    by_round, by_bytes, loss, epsilon, bound, clip_rate = line_charts(groups)
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
    assert "there is no guarantee: fedsgd" in epsilon.caption
    for chart in (bound, clip_rate):
        assert list(chart.curves) == ["sqsgd"]
        assert "it is constant: fedsgd" in chart.caption


def test_bands_of_shares_end_at_0_and_1(grouped):
    groups = grouped(*({"seed": seed} for seed in range(3)))
    for run, last in zip(groups[0].runs, (1.0, 1.0, 0.0), strict=True):
        run.columns["accuracy"][-1] = run.columns["loss"][-1] = last
    by_round, _, loss, *_ = line_charts(groups)
    assert (by_round.points[-1]["low"], by_round.points[-1]["high"]) == (0.0, 1.0)
    assert loss.points[-1]["low"] < 0  # a loss may be negative


def test_bytes_that_lie_far_apart_have_a_logarithmic_axis(grouped):
    chart = line_charts(grouped({}, {**FEDSGD, "dim": 100000}))[1]
    assert chart.spec()["encoding"]["x"]["scale"]["type"] == "log"


def test_long_runs_are_thinned_to_their_very_end(grouped):
    (group,) = grouped({"rounds": 1000, "evaluate_every": 1})
    charts = line_charts([group])
    assert [len(chart.points) for chart in charts] == [drawn.MOST_POINTS] * 6
    by_round, _, loss, epsilon, *_ = charts
    assert (by_round.points[-1]["x"], epsilon.points[-1]["mean"]) == (1000, 400_000)
    assert loss.points[0]["mean"] == pytest.approx(group.runs[0].columns["loss"][:10].mean())
    assert 20 < len(by_round.rows()) <= drawn.MOST_ROWS
    assert by_round.rows()[-1]["x"] == 1000
    data = by_round.spec()["data"]["values"]
    assert sum("marked" in row for row in data) <= drawn.MARKERS
    assert max(len(json.dumps(row)) for row in data) < 90
    assert len(line_charts([group] * 32)[0].points) == drawn.ALL_POINTS


def test_the_time_is_split_without_loss(grouped):
    points = time_chart(grouped({})).points
    assert [point["mean"] for point in points] == pytest.approx([60, 20, 5, 15])
    assert [point["part"] for point in points] == ["gradient", "encode", "aggregate", "rest"]


def test_a_group_without_rounds_is_not_drawn_and_not_named(grouped):
    for chart in all_charts(grouped({}, {**FEDSGD, "done": 0})):
        assert list(chart.curves) == ["sqsgd"]
        assert "fedsgd" not in chart.caption


def test_an_error_is_drawn_under_its_name_without_groups_of_another_metric(grouped):
    runs = ({"metric": "RMSE", "best": 0.25, "loss": "squared-error"}, {"best": 0.1})
    by_round, *_ = line_charts(grouped(*runs))
    assert len(by_round.curves) == 1
    assert "another metric was measured" in by_round.caption
    by_round, *_ = line_charts([group for group in grouped() if group.headline.name == "RMSE"])
    assert (by_round.title, by_round.y_title, by_round.share) == ("RMSE by round", "RMSE", False)
    assert "Lower is better." in by_round.caption


# ---------------------------------------------------------------- runs that did not measure everything


def forget(run, *names, rounds=slice(None)):
    for name in names:
        run.columns[name][rounds] = math.nan


def test_charts_leave_out_what_is_unknown(grouped):
    """Such as a federation, whose nodes report no loss and no times."""
    groups = grouped({"engine": "flower", "secure": True}, FEDSGD)
    (group,) = (group for group in groups if group.config.engine == "flower")
    times = ("seconds_gradient", "seconds_encode", "seconds_aggregate")
    forget(group.runs[0], "loss", "bound", "clip_rate", "test_loss", *times)
    by_round, by_bytes, loss, epsilon, bound, clip_rate, time = all_charts(groups)
    assert all(group.label in chart.curves for chart in (by_round, by_bytes, epsilon))
    for chart in (loss, bound, clip_rate):
        assert group.label not in chart.curves
        assert group.label not in chart.caption  # an unknown bound is not a constant one
    assert group.label not in time.curves
    assert time.caption.endswith(f"Not drawn, because its parts were not timed: {group.label}.")


def test_lost_rounds_are_left_out_of_means_and_of_curves(grouped):
    (group,) = grouped({"seed": 0, "rounds": 600}, {"seed": 1, "rounds": 600})
    forget(group.runs[0], "loss", rounds=slice(0, 1))
    forget(group.runs[1], "accuracy", rounds=slice(0, 10))
    by_round, _, loss, *_ = line_charts([group])
    first = [run.columns["loss"][:6] for run in group.runs]
    assert loss.points[0]["mean"] == pytest.approx((np.mean(first[0][1:]) + np.mean(first[1])) / 2)
    assert by_round.points[0]["x"] == 20


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<svg"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
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


# ---------------------------------------------------------------- colours

# Machado, Oliveira and Fernandes (2009), severity 1: linear RGB as seen without one type of cone.
SIGHT = {
    "all cones": "1 0 0 0 1 0 0 0 1",
    "no red": "0.152286 1.052583 -0.204868 0.114503 0.786281 0.099216 -0.003882 -0.048116 1.051998",
    "no green": "0.367322 0.860646 -0.227968 0.280085 0.672501 0.047413 -0.011820 0.042940 0.968881",
    "no blue": "1.255528 -0.076749 -0.178779 -0.078411 0.930809 0.147602 0.004733 0.691367 0.303900",
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour):
    parts = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    dark, light = sorted(TO_XYZ[1] @ linear(colour) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb):
    scaled = TO_XYZ @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(scaled > 216 / 24389, np.cbrt(scaled), (24389 / 27 * scaled + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [0, 1])
def test_colours_can_be_read_and_differ_for_the_colour_blind(theme):
    for ground in ("background", "surface"):
        texts = [COLOURS[name][theme] for name in ("ink", "muted", "accent", "warning")]
        assert all(contrast(text, COLOURS[ground][theme]) >= 4.5 for text in texts)
        assert all(contrast(pair[theme], COLOURS[ground][theme]) >= 3 for pair in SERIES)
    for sight in SIGHT.values():
        matrix = np.array(sight.split(), float).reshape(3, 3)
        seen = [lab(matrix @ linear(pair[theme])) for pair in SERIES]
        assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 12
