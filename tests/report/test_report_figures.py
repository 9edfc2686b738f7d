"""Charts as plotly's JSON."""

import dataclasses
import json

import numpy as np
import pytest

from sqsgd.report.charts import MOST_MARKERS, line_charts, split_chart
from sqsgd.report.figures import figure as figure_of


def traces(figure, role):
    return [trace for trace in figure["data"] if trace["meta"]["role"] == role]


def test_a_band_only_where_there_are_three_runs(grouped):
    seeds = ({"seed": seed} for seed in range(3))
    two = ({"seed": seed, "scheme": "fedsgd", "notion": "none"} for seed in range(2))
    chart = line_charts(grouped(*seeds, *two))[0]
    figure = figure_of(chart)
    (several,) = (curve for curve in chart.curves if curve.runs == 3)
    (band,) = traces(figure, "band")
    assert band["meta"]["series"] == several.series
    assert (min(band["y"]), max(band["y"])) == pytest.approx(
        (several.low.min(), several.high.max()), rel=1e-5
    )
    assert figure["data"][0] is band  # below all lines
    lines = traces(figure, "line")
    assert [line["meta"]["series"] for line in lines] == [curve.series for curve in chart.curves]


def test_what_the_pointer_shows(grouped):
    chart = line_charts(grouped(*({"seed": seed} for seed in range(3))))[0]
    (line,) = traces(figure_of(chart), "line")
    assert line["customdata"] == pytest.approx(chart.curves[0].half, rel=1e-5)
    for part in ("%{y:.1%} ± %{customdata:.1%} (95 %)", "%{x:,} rounds"):
        assert part in line["hovertemplate"]
    alone = dataclasses.replace(chart.curves[0], half=np.full_like(chart.curves[0].half, np.nan))
    (line,) = traces(figure_of(dataclasses.replace(chart, curves=(alone,))), "line")
    assert "±" not in line["hovertemplate"]


def test_numbers_are_short_and_json_can_hold_them(grouped):
    for chart in line_charts(grouped({})):
        written = json.dumps(figure_of(chart)["data"], allow_nan=False)
        assert max(map(len, written.replace("]", ",").split(","))) < 90
        assert "000000" not in written


def test_markers_are_few_and_those_of_equal_curves_lie_apart(grouped):
    chart = line_charts(grouped({"rounds": 1000, "evaluate_every": 1}))[0]
    (curve,) = chart.curves
    both = dataclasses.replace(chart, curves=(curve, dataclasses.replace(curve, series=1)))
    first, second = traces(figure_of(both), "markers")
    assert len(first["x"]) <= MOST_MARKERS
    assert not set(first["x"]) & set(second["x"])


def test_axes(grouped):
    by_round, by_bytes, *_ = line_charts(grouped({}, {"scheme": "fedsgd", "notion": "none", "dim": 100000}))
    for chart, kind, suffix in ((by_round, "linear", None), (by_bytes, "log", "B")):
        axis = figure_of(chart)["layout"]["xaxis"]
        assert (axis["type"], axis.get("ticksuffix")) == (kind, suffix)


def test_labels_are_text_whatever_they_hold(grouped):
    chart = line_charts(grouped({}))[0]
    curve = dataclasses.replace(chart.curves[0], label='<a href="x">%{y}</a> & ' + "long " * 20)
    (line,) = traces(figure_of(dataclasses.replace(chart, curves=(curve,))), "line")
    for text in (line["name"], line["hovertemplate"].partition("<br>%{y")[0]):
        assert "<a" not in text
        assert "&lt;a href" in text
        assert "%{y}" not in text
    assert line["hovertemplate"].count("<br>") > 3  # it fits on a phone


def test_bars_lie_in_the_order_of_the_groups_and_add_up(grouped):
    groups = grouped({"best": 0.9}, {"bytes": 64, "best": 0.5})
    figure = figure_of(split_chart(groups))
    layout, bars = figure["layout"], figure["data"]
    assert [note["text"] for note in layout["annotations"]] == [group.label for group in groups]
    assert layout["yaxis"]["range"][0] > layout["yaxis"]["range"][1]  # the first on top
    assert np.sum([bar["x"] for bar in bars], axis=0) == pytest.approx([100.0, 100.0])
    assert len({bar["marker"]["pattern"]["shape"] for bar in bars}) == len(bars)  # without colours too
