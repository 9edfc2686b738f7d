"""Charts drawn with plotly."""

import dataclasses

import numpy as np
import pytest

from sqsgd.report.charts import MOST_MARKERS, line_charts, split_chart
from sqsgd.report.figures import figure as figure_of

pytest.importorskip("plotly", reason="needs pip install 'sqsgd[report]'")


def traces(figure, role):
    return [trace for trace in figure.data if trace.meta["role"] == role]


def test_a_band_only_where_there_are_several_runs(grouped):
    chart = line_charts(grouped({"seed": 0}, {"seed": 1}, {"scheme": "fedsgd", "notion": "none"}))[0]
    figure = figure_of(chart)
    (several,) = (curve for curve in chart.curves if curve.runs == 2)
    (band,) = traces(figure, "band")
    assert band.meta["series"] == several.series
    assert max(band.y) == several.high.max()
    assert min(band.y) == several.low.min()
    assert figure.data[0] is band  # below all lines
    assert [line.meta["series"] for line in traces(figure, "line")] == [
        curve.series for curve in chart.curves
    ]


def test_what_the_pointer_shows(grouped):
    chart = line_charts(grouped({"seed": 0}, {"seed": 1}))[0]
    (line,) = traces(figure_of(chart), "line")
    curve = chart.curves[0]
    mean, low, high = (chart.shown(values[-1]) for values in (curve.mean, curve.low, curve.high))
    assert line.text[-1] == f"{mean} ({low} to {high})"
    assert "%{x:,} rounds" in line.hovertemplate


def test_markers_are_few_and_those_of_equal_curves_lie_apart(grouped):
    chart = line_charts(grouped({"rounds": 1000, "evaluate_every": 1}))[0]
    (curve,) = chart.curves
    both = dataclasses.replace(chart, curves=(curve, dataclasses.replace(curve, series=1)))
    first, second = traces(figure_of(both), "markers")
    assert len(first.x) <= MOST_MARKERS
    assert not set(first.x) & set(second.x)


def test_axes(grouped):
    by_round, by_bytes, *_ = line_charts(grouped({}, {"scheme": "fedsgd", "notion": "none", "dim": 100000}))
    for chart, kind, suffix in ((by_round, "linear", None), (by_bytes, "log", "B")):
        axis = figure_of(chart).layout.xaxis
        assert (axis.type, axis.ticksuffix) == (kind, suffix)


def test_labels_are_text_whatever_they_hold(grouped):
    chart = line_charts(grouped({}))[0]
    curve = dataclasses.replace(chart.curves[0], label='<a href="x">%{y}</a> & ' + "long " * 20)
    (line,) = traces(figure_of(dataclasses.replace(chart, curves=(curve,))), "line")
    for text in (line.name, line.hovertemplate):
        assert "<a" not in text
        assert "&lt;a href" in text
        assert "%{y}" not in text
    assert line.hovertemplate.count("<br>") > 3  # it fits on a phone


def test_bars_lie_in_the_order_of_the_groups_and_add_up(grouped):
    groups = grouped({"best": 0.9}, {"bytes": 64, "best": 0.5})
    chart = split_chart(groups)
    figure = figure_of(chart)
    assert [note.text for note in figure.layout.annotations] == [group.label for group in groups]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # the first on top
    assert np.sum([bar.x for bar in figure.data], axis=0) == pytest.approx([100.0, 100.0])
    assert len({bar.marker.pattern.shape for bar in figure.data}) == len(figure.data)  # without colours too
