"""Charts drawn with matplotlib, for papers: one column wide, selectable text, reproducible bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqsgd.files.durable import write_atomically
from sqsgd.report.charts import PARTS, Chart, SplitChart, all_charts
from sqsgd.report.groups import Group, group_runs
from sqsgd.report.styles import LIGHT, PATTERNS, series_style
from sqsgd.runs.reading import read_runs

WIDTH, HEIGHT, LEGEND_ROW = 3.35, 2.2, 0.16
"""Inches: a column of a two-column paper, the axes, and a line of the legend."""
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "sqsgd",
}


def write_images(paths: Sequence[str | Path], folder: str | Path, kind: str) -> list[Path]:
    """Write the charts of all runs in or below ``paths`` to ``folder``; ``kind`` is png or svg."""
    return write_charts(group_runs(read_runs(paths)[0]), folder, kind)


def write_charts(groups: Sequence[Group], folder: str | Path, kind: str) -> list[Path]:
    """Write every chart that is not empty to ``folder``, as ``accuracy-by-round.svg`` and so on."""
    if kind not in ("png", "svg"):
        raise ValueError(f"kind = {kind!r} must be 'png' or 'svg'")
    import matplotlib as mpl

    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ValueError(f"folder = {target} is a file")
    target.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(STYLE):
        for chart in all_charts(groups):
            if not chart.empty:
                figure = _lines(chart) if isinstance(chart, Chart) else _bars(chart)
                written.append(target / f"{chart.name}.{kind}")
                write_atomically(written[-1], image(figure, kind))
    return written


def image(figure: Any, kind: str) -> bytes:
    """A matplotlib figure as SVG or PNG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    undated = {"Date": None} if kind == "svg" else {}
    figure.savefig(buffer, format=kind, dpi=300, metadata=undated)
    return buffer.getvalue()


def _figure(labels: Sequence[str], height: float) -> tuple[Any, Any, int]:
    """A figure with axes and room for a legend below, and the number of columns of that legend."""
    from matplotlib.figure import Figure

    columns = max(1, min(4, len(labels), 60 // (9 + max(map(len, labels)))))
    lines = sum(-(-len(label) // 44) for label in labels)
    rows = -(-lines // columns)
    figure = Figure(figsize=(WIDTH, height + LEGEND_ROW * rows), layout="constrained")
    return figure, figure.add_subplot(), columns


def _lines(chart: Chart) -> Any:
    from matplotlib.ticker import EngFormatter, PercentFormatter, StrMethodFormatter

    figure, axes, columns = _figure([curve.label for curve in chart.curves], HEIGHT)
    for curve in chart.curves:
        style = series_style(curve.series)
        colour = LIGHT.series[style.colour]
        if curve.banded:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(
            curve.x,
            curve.mean,
            color=colour,
            linewidth=1.1,
            linestyle=(0, tuple(length / 2 for length in style.dash)) if style.dash else "solid",
            marker=style.marker.matplotlib,
            markersize=3,
            markevery=curve.marked,
            label=_plain(curve.label, 44),
        )
    axes.set(xlabel=chart.x_title, ylabel=chart.y_title)
    axes.grid(color=LIGHT.line, linewidth=0.4)
    if chart.x_unit == "rounds":
        axes.set_xlim(left=0)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
    axes.xaxis.set_major_formatter(
        StrMethodFormatter("{x:,.0f}") if chart.x_unit == "rounds" else EngFormatter(unit="B", sep="")
    )
    if chart.y_unit == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(bottom=0)
    elif not chart.log_y:
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=3)
    return figure


def _bars(chart: SplitChart) -> Any:
    """One stacked bar per group, the first on top."""
    lines = max(-(-len(split.label) // 20) for split in chart.splits)
    figure, axes, columns = _figure(PARTS, 0.6 + (0.08 + 0.13 * lines) * len(chart.splits))
    rows = range(len(chart.splits))
    left = [0.0] * len(chart.splits)
    for index, part in enumerate(PARTS):
        lengths = [split.milliseconds[part] for split in chart.splits]
        axes.barh(
            rows,
            lengths,
            0.6,
            left,
            color=LIGHT.series[index],
            hatch=2 * PATTERNS[index],
            edgecolor="white",
            linewidth=0,
            label=part,
        )
        left = [start + length for start, length in zip(left, lengths, strict=True)]
    axes.set_yticks(rows, [_plain(split.label, 20) for split in chart.splits])
    axes.margins(y=0.02)
    axes.invert_yaxis()
    axes.set_xlabel(chart.x_title)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _plain(label: str, width: int) -> str:
    """Escape a label: matplotlib renders $ as mathematics and hides labels that begin with an underscore."""
    return "\n".join(textwrap.wrap(label.lstrip("_"), width)).replace("$", r"\$")
