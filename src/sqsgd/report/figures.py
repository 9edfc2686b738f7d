"""Charts as plotly's JSON, for the page; its script applies the colours of the theme."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable
from typing import Any

from sqsgd.report.charts import PARTS, Chart, Curve, SplitChart
from sqsgd.report.styles import LIGHT, PATTERNS, series_style

Figure = dict[str, Any]
"""``data`` and ``layout`` as plotly.js takes them."""


def figure(chart: Chart | SplitChart) -> Figure:
    """The figure of a chart; ``meta`` of its traces tells the script what to colour and hide."""
    return _line_figure(chart) if isinstance(chart, Chart) else _split_figure(chart)


def _line_figure(chart: Chart) -> Figure:
    bands = [_band(curve) for curve in chart.curves if curve.banded]
    lines = [trace for curve in chart.curves for trace in (_line(chart, curve), _markers(curve))]
    layout = _layout()
    for axis, title, log in (("xaxis", chart.x_title, chart.log_x), ("yaxis", chart.y_title, chart.log_y)):
        layout[axis] |= {"title": {"text": _plotly_text(title)}, "type": "log" if log else "linear"}
    if chart.x_unit == "bytes":
        layout["xaxis"] |= {
            "exponentformat": "SI",
            "ticksuffix": "B",
            **({"dtick": 1} if chart.log_x else {}),
        }
    else:
        layout["xaxis"]["rangemode"] = "tozero"
    if chart.y_unit == "share":
        layout["yaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    else:
        layout["yaxis"] |= {"exponentformat": "none", "separatethousands": True}
    return {"data": bands + lines, "layout": layout}


def _split_figure(chart: SplitChart) -> Figure:
    """One bar per group, the first on top."""
    names = [_in_lines(split.label) for split in chart.splits]
    row_height = 51 + 17 * max(name.count("<br>") for name in names)
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": list(range(len(names))),
            "width": 16 / row_height,
            "x": _short([split.milliseconds[part] for split in chart.splits]),
            "marker": {
                "color": LIGHT.series[index],
                "pattern": {"shape": PATTERNS[index], "fillmode": "overlay", "solidity": 0.2},
            },
            "meta": {"role": "bar", "colour": index},
            "hovertemplate": f"{part}: %{{x:.3g}} ms<extra></extra>",
        }
        for index, part in enumerate(PARTS)
    ]
    layout = _layout() | {
        "barmode": "stack",
        "showlegend": True,
        "height": 110 + row_height * len(names),
        "annotations": [_bar_label(row, name) for row, name in enumerate(names)],
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
    }
    layout["xaxis"] |= {"title": {"text": _plotly_text(chart.x_title)}, "rangemode": "tozero"}
    layout["yaxis"] |= {"visible": False, "range": [len(names) - 0.5, -0.9]}
    return {"data": bars, "layout": layout}


def _bar_label(row: int, text: str) -> dict[str, Any]:
    """A label above its bar, where a long one fits."""
    place = {"x": 0, "y": row, "xanchor": "left", "yanchor": "bottom", "yshift": 9, "align": "left"}
    return {"text": text, "showarrow": False, **place}


def _band(curve: Curve) -> dict[str, Any]:
    colour = series_style(curve.series).colour
    return {
        "type": "scatter",
        "x": _short([*curve.x, *curve.x[::-1]]),
        "y": _short([*curve.high, *curve.low[::-1]]),
        "fill": "toself",
        "fillcolor": LIGHT.series[colour] + "2e",
        "mode": "none",
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {"role": "band", "colour": colour, "series": curve.series},
    }


def _line(chart: Chart, curve: Curve) -> dict[str, Any]:
    style = series_style(curve.series)
    value = "%{y:.1%}" if chart.y_unit == "share" else "%{y:,.4~g}"
    half = "%{customdata:.1%}" if chart.y_unit == "share" else "%{customdata:,.2~g}"
    shown = f"{value} ± {half} (95 %)" if curve.banded else value
    return {
        "type": "scatter",
        "x": _short(curve.x),
        "y": _short(curve.mean),
        "name": _plotly_text(curve.label),
        "mode": "lines",
        "line": {
            "width": 2,
            "color": LIGHT.series[style.colour],
            "dash": ",".join(f"{length}px" for length in style.dash) or "solid",
        },
        **({"customdata": _short(curve.half)} if curve.banded else {}),
        "hovertemplate": f"{_in_lines(curve.label)}<br>{shown}<br>at %{{x:,}} {chart.x_unit}<extra></extra>",
        "meta": {"role": "line", "colour": style.colour, "series": curve.series},
    }


def _markers(curve: Curve) -> dict[str, Any]:
    """A separate trace with few points, because each marker is an element of the page."""
    style = series_style(curve.series)
    return {
        "type": "scatter",
        "x": _short(curve.x[curve.marked]),
        "y": _short(curve.mean[curve.marked]),
        "mode": "markers",
        "marker": {"symbol": style.marker.plotly, "color": LIGHT.series[style.colour], "size": 8},
        "hoverinfo": "skip",
        "meta": {"role": "markers", "colour": style.colour, "series": curve.series},
    }


def _short(values: Iterable[float]) -> list[float]:
    """The values to six digits, as whole numbers where they are: more cannot be seen."""
    rounded = (float(f"{value:.6g}") for value in values)
    return [int(value) if value.is_integer() else value for value in rounded]


def _layout() -> dict[str, Any]:
    axis = {"automargin": True, "zeroline": False, "showline": True, "ticks": "outside", "ticklen": 4}
    return {
        "showlegend": False,
        "height": 340,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": LIGHT.ink},
        "hovermode": "closest",
        "dragmode": False,
        "xaxis": {**axis, "gridcolor": LIGHT.line, "linecolor": LIGHT.muted},
        "yaxis": {**axis, "gridcolor": LIGHT.line, "linecolor": LIGHT.muted},
    }


def _plotly_text(text: str) -> str:
    """Escape a label: plotly renders HTML tags and links in its texts."""
    return html.escape(text, quote=False).replace("%{", "%\u200b{")


def _in_lines(label: str) -> str:
    """Wrap a label to the width of a phone."""
    return "<br>".join(map(_plotly_text, textwrap.wrap(label, 40)))
