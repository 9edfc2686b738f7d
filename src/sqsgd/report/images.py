"""Charts drawn with matplotlib, for papers: one column wide, selectable text, reproducible bytes."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqsgd.files.durable import write_atomically
from sqsgd.report.charts import PARTS, Chart, SplitChart, all_charts
from sqsgd.report.groups import Group, group_runs
from sqsgd.report.styles import LIGHT, PATTERNS, series_style
from sqsgd.report.text import interval, number
from sqsgd.training.reading import read_runs
from sqsgd.training.summary import ACCURACY

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
    "pdf.fonttype": 42,  # TrueType: publishers refuse the default, Type 3
}
_UNDATED: dict[str, dict[str, None]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def write_images(paths: Sequence[str | Path], folder: str | Path, kind: str) -> list[Path]:
    """Write the charts of all runs in or below ``paths`` to ``folder``; ``kind`` is png, svg or pdf."""
    return write_charts(all_charts(group_runs(read_runs(paths)[0])), folder, kind)


def write_charts(charts: Sequence[Chart | SplitChart], folder: str | Path, kind: str) -> list[Path]:
    """Write every chart that is not empty to ``folder``, as ``accuracy-by-round.svg`` and so on."""
    if kind not in _UNDATED:
        raise ValueError(f"kind = {kind!r} must be 'png', 'svg' or 'pdf'")
    import matplotlib as mpl

    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise ValueError(f"folder = {target} is a file")
    target.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(STYLE):
        for chart in charts:
            if not chart.empty:
                figure = _lines(chart) if isinstance(chart, Chart) else _bars(chart)
                written.append(target / f"{chart.name}.{kind}")
                write_atomically(written[-1], image(figure, kind))
    return written


def table_rows(groups: Sequence[Group]) -> list[list[str]]:
    """The table of results as a paper needs it: the heads, then one row per group."""
    measured = groups[0].headline.name if groups else ACCURACY.name
    heads = ["", "runs", measured, "rate", "privacy", "ε per report", "total ε", "bytes"]
    rows = [
        [
            _plain(group.label, 44),
            str(len(group.counted)),
            interval(*group.accuracy, share=group.headline.is_share),
            number(group.lr),
            group.notion.replace("-", " "),
            *(number(group.last(name)) for name in ("epsilon", "epsilon_total", "bytes_up")),
        ]
        for group in groups
    ]
    return [heads, *rows]


def write_table(groups: Sequence[Group], folder: str | Path, title: str) -> Path:
    """Write the results as ``table.pdf``: what the page's table says in the columns that a paper needs."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    heads, *rows = table_rows(groups)
    lines = [1 + row[0].count("\n") for row in rows]
    with mpl.rc_context(STYLE):
        height = 0.22 * (sum(lines) + 1)
        whole = height + 0.65
        figure = Figure(figsize=(7.0, whole))
        axes = figure.add_axes((0.01, 0.22 / whole, 0.98, height / whole), xlim=(0, 1), ylim=(0, 1))
        axes.axis("off")
        all_of_it: Any = (0, 0, 1, 1)  # which matplotlib takes, but does not declare
        table = axes.table(rows, colLabels=heads, bbox=all_of_it, edges="", cellLoc="right", colLoc="right")
        table.auto_set_font_size(False)
        table.auto_set_column_width(list(range(len(heads))))
        for (row, column), cell in table.get_celld().items():
            cell.set_height(lines[row - 1] if row else 1)
            cell.PAD = 0.04
            if column in (0, 4):
                cell.set_text_props(ha="left")
        for y in (1.0, 1 - 1 / (sum(lines) + 1), 0.0):
            axes.axhline(y, color="black", linewidth=0.6, clip_on=False)
        figure.text(0.01, 1 - 0.05 / whole, _plain(title, 90), va="top", fontsize=9)
        if any(not math.isnan(group.accuracy[1]) for group in groups):
            note = "±: half the width of the 95 % confidence interval (Student's t) over the runs"
            figure.text(0.01, 0.03 / whole, note, va="bottom", fontsize=7)
        place = Path(folder) / "table.pdf"
        write_atomically(place, image(figure, "pdf"))
    return place


def image(figure: Any, kind: str) -> bytes:
    """A matplotlib figure as SVG, PNG or PDF; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=300, metadata=_UNDATED[kind])
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
    axes.set(xlabel=_plain(chart.x_title, 60), ylabel=_plain(chart.y_title, 40))
    if chart.shows_title:
        axes.set_title(_plain(chart.title, 50), fontsize=9)
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
    axes.set_xlabel(_plain(chart.x_title, 60))
    if chart.shows_title:
        axes.set_title(_plain(chart.title, 50), fontsize=9)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _plain(label: str, width: int) -> str:
    """Escape a label: matplotlib renders $ as mathematics and hides labels that begin with an underscore."""
    return "\n".join(textwrap.wrap(label.lstrip("_"), width)).replace("$", r"\$")
