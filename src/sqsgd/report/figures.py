"""Charts drawn with plotly, for the page; its script applies the colours of the theme."""

from __future__ import annotations

import html
import textwrap
from typing import Any

from sqsgd.report.charts import PARTS, Chart, Curve, SplitChart
from sqsgd.report.styles import LIGHT, PATTERNS, series_style


def figure(chart: Chart | SplitChart) -> Any:
    """A ``plotly.graph_objects.Figure``; ``meta`` of its traces tells the script what to colour and hide."""
    return _line_figure(chart) if isinstance(chart, Chart) else _split_figure(chart)


def _line_figure(chart: Chart) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for curve in chart.curves:
        if curve.banded:
            figure.add_trace(_band(curve))
    for curve in chart.curves:
        figure.add_trace(_line(chart, curve))
        figure.add_trace(_markers(curve))
    figure.update_layout(**_layout())
    figure.update_xaxes(title=_plotly_text(chart.x_title), type="log" if chart.log_x else "linear")
    figure.update_yaxes(title=_plotly_text(chart.y_title), type="log" if chart.log_y else "linear")
    if chart.x_unit == "bytes":
        figure.update_xaxes(exponentformat="SI", ticksuffix="B", dtick=1 if chart.log_x else None)
    else:
        figure.update_xaxes(rangemode="tozero")
    if chart.y_unit == "share":
        figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    else:
        figure.update_yaxes(exponentformat="none", separatethousands=True)
    return figure


def _split_figure(chart: SplitChart) -> Any:
    """One bar per group, the first on top."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = [_in_lines(split.label) for split in chart.splits]
    row_height = 51 + 17 * max(name.count("<br>") for name in names)
    for index, part in enumerate(PARTS):
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=part,
                y=list(range(len(names))),
                width=16 / row_height,
                x=[split.milliseconds[part] for split in chart.splits],
                marker={
                    "color": LIGHT.series[index],
                    "pattern": {"shape": PATTERNS[index], "fillmode": "overlay", "solidity": 0.2},
                },
                meta={"role": "bar", "colour": index},
                hovertemplate=f"{part}: %{{x:.3g}} ms<extra></extra>",
            )
        )
    figure.update_layout(**_layout())
    figure.update_layout(
        barmode="stack",
        showlegend=True,
        height=110 + row_height * len(names),
        annotations=[_bar_label(row, name) for row, name in enumerate(names)],
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
    )
    figure.update_xaxes(title=chart.x_title, rangemode="tozero")
    figure.update_yaxes(visible=False, range=[len(names) - 0.5, -0.9])
    return figure


def _bar_label(row: int, text: str) -> dict[str, Any]:
    """A label above its bar, where a long one fits."""
    place = {"x": 0, "y": row, "xanchor": "left", "yanchor": "bottom", "yshift": 9, "align": "left"}
    return {"text": text, "showarrow": False, **place}


def _band(curve: Curve) -> Any:
    import plotly.graph_objects as go

    colour = series_style(curve.series).colour
    return go.Scatter(
        x=[*curve.x, *curve.x[::-1]],
        y=[*curve.high, *curve.low[::-1]],
        fill="toself",
        fillcolor=LIGHT.series[colour] + "2e",
        mode="none",
        hoverinfo="skip",
        showlegend=False,
        meta={"role": "band", "colour": colour, "series": curve.series},
    )


def _line(chart: Chart, curve: Curve) -> Any:
    import plotly.graph_objects as go

    style = series_style(curve.series)
    shown = [
        chart.shown(mean)
        if not curve.banded
        else f"{chart.shown(mean)} ({chart.shown(low)} to {chart.shown(high)})"
        for mean, low, high in zip(curve.mean, curve.low, curve.high, strict=True)
    ]
    return go.Scatter(
        x=curve.x,
        y=curve.mean,
        name=_plotly_text(curve.label),
        mode="lines",
        line={
            "width": 2,
            "color": LIGHT.series[style.colour],
            "dash": ",".join(f"{length}px" for length in style.dash) or "solid",
        },
        text=shown,
        hovertemplate=f"{_in_lines(curve.label)}<br>%{{text}}<br>at %{{x:,}} {chart.x_unit}<extra></extra>",
        meta={"role": "line", "colour": style.colour, "series": curve.series},
    )


def _markers(curve: Curve) -> Any:
    """A separate trace with few points, because each marker is an element of the page."""
    import plotly.graph_objects as go

    style = series_style(curve.series)
    return go.Scatter(
        x=curve.x[curve.marked],
        y=curve.mean[curve.marked],
        mode="markers",
        marker={"symbol": style.marker.plotly, "color": LIGHT.series[style.colour], "size": 8},
        hoverinfo="skip",
        meta={"role": "markers", "colour": style.colour, "series": curve.series},
    )


def _layout() -> dict[str, Any]:
    axis = {"automargin": True, "zeroline": False, "showline": True, "ticks": "outside", "ticklen": 4}
    return {
        "template": "none",
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
