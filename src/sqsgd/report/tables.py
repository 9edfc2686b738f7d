"""HTML tables: the results, the data of each figure, the configuration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqsgd.report.charts import Chart, SplitChart
from sqsgd.report.groups import Group
from sqsgd.report.styles import series_style
from sqsgd.report.text import MISSING, counted, escape, number, percent
from sqsgd.training.summary import Headline

MOST_ROWS, ALL_ROWS = 25, 200
"""The most rows of one curve, and of all curves of a figure."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is shown, and the number to sort by; without one, the text is sorted."""

    html: str
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Header:
    """A column; ``first`` is the order after the first click."""

    name: str
    numeric: bool = True
    first: str = "ascending"


HEADERS = (
    Header(name="Group", numeric=False),
    Header(name="Runs"),
    Header(name="Accuracy", first="descending"),
    Header(name="Best accuracy", first="descending"),
    Header(name="Learning rate"),
    Header(name="Privacy", numeric=False),
    Header(name="ε per round"),
    Header(name="Total ε"),
    Header(name="Bytes per round"),
    Header(name="Of float32"),
    Header(name="Seconds"),
    Header(name="Status", numeric=False),
)


def results_table(groups: Sequence[Group]) -> str:
    """One row per group; the script sorts by ``data-value``."""
    heads = "".join(
        f'<th scope="col" data-first="{header.first}"{_numeric(header.numeric)}>'
        f'<button type="button">{_heading(header.name)}</button></th>'
        for header in _headers(groups)
    )
    rows = "".join(_row(series, group) for series, group in enumerate(groups))
    return (
        '<div class="scroll" role="region" aria-labelledby="results-title" tabindex="0">'
        f'<table id="results-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _headers(groups: Sequence[Group]) -> list[Header]:
    """The columns, with the name of what was measured; "result", if that differs between groups."""
    headlines = {group.headline for group in groups}
    (only,) = headlines if len(headlines) == 1 else [Headline(name="result")]
    first = "ascending" if only.better == "lower" else "descending"
    names = {"Accuracy": only.title, "Best accuracy": f"Best {only.name}"}
    return [
        Header(name=names[header.name], first=first) if header.name in names else header for header in HEADERS
    ]


def _heading(name: str) -> str:
    """A heading whose arrow stays on the line of its last word."""
    *first, last = name.split()
    arrow = '<span class="arrow" aria-hidden="true"></span>'
    return escape(" ".join([*first, ""])) + f'<span class="last">{escape(last)}{arrow}</span>'


def _row(series: int, group: Group) -> str:
    cells = _cells(group)
    first = f'<th scope="row">{sample(series)} {escape(group.label)}</th>'
    rest = "".join(
        f"<td{_numeric(header.numeric)}{_sort_value(cell)}>{cell.html}</td>"
        for header, cell in zip(HEADERS[1:], cells, strict=True)
    )
    return f"<tr>{first}{rest}</tr>"


def _cells(group: Group) -> list[Cell]:
    ratio = group.summary.bytes_up_ratio if group.summary else math.nan
    return [
        Cell(html=str(len(group.runs)), value=len(group.runs)),
        _accuracy(group),
        Cell(html=_value(group, group.best_accuracy), value=group.best_accuracy),
        Cell(html=MISSING if math.isnan(group.lr) else f"{group.lr:.3g}", value=group.lr),
        Cell(html=group.notion.replace("-", " ")),
        Cell(html=number(group.last("epsilon")), value=group.last("epsilon")),
        Cell(html=number(group.last("epsilon_total")), value=group.last("epsilon_total")),
        Cell(html=number(group.last("bytes_up")), value=group.last("bytes_up")),
        Cell(html=MISSING if math.isnan(ratio) else _fraction(ratio), value=1 / ratio),
        Cell(html=MISSING if math.isnan(group.seconds) else f"{group.seconds:,.1f}", value=group.seconds),
        Cell(html=_status(group)),
    ]


def _fraction(ratio: float) -> str:
    return f"1/{ratio:,.0f}" if ratio >= 10 else f"1/{ratio:.2g}"


def _accuracy(group: Group) -> Cell:
    mean, half = group.accuracy
    width = f"{100 * half:.1f}" if group.headline.is_share else number(half)
    interval = "" if math.isnan(half) else f' <span class="interval">± {width}</span>'
    return Cell(html=_value(group, mean) + interval, value=mean)


def _value(group: Group, value: float) -> str:
    """A value of the group's headline, with its name unless it is the accuracy."""
    if group.headline.is_share:
        return percent(value)
    return MISSING if math.isnan(value) else f"{escape(group.headline.name)} {number(value)}"


def _status(group: Group) -> str:
    """The progress of a single run, or the number of runs in each state."""
    text = group.runs[0].progress if len(group.runs) == 1 else group.states
    finished = all(run.state == "finished" for run in group.runs)
    return escape(text) if finished else f'<span class="warning">{escape(text)}</span>'


def chart_table(chart: Chart) -> str:
    """The points of a line chart, at most MOST_ROWS per curve."""
    banded = any(curve.banded for curve in chart.curves)
    heads = ["Group", chart.x_title, chart.y_title, *(["± 95 %"] if banded else [])]
    most = max(5, min(MOST_ROWS, ALL_ROWS // max(len(chart.curves), 1)))
    rows = []
    for curve in chart.curves:
        every = -(-len(curve.x) // most)
        for point in range((len(curve.x) - 1) % every, len(curve.x), every):
            values = [chart.shown(curve.mean[point])]
            if banded:
                values.append(chart.shown(curve.half[point]) if curve.banded else "")
            rows.append([curve.label, number(curve.x[point]), *values])
    return _plain_table(chart.title, heads, rows)


def split_table(chart: SplitChart) -> str:
    """The bars of the time chart."""
    parts = list(chart.splits[0].milliseconds) if chart.splits else []
    rows = [[split.label, *(number(split.milliseconds[part]) for part in parts)] for split in chart.splits]
    return _plain_table(f"{chart.title}, {chart.x_title}", ["Group", *parts], rows)


def configuration(groups: Sequence[Group]) -> str:
    """Every setting of every group, collapsed."""
    pieces = []
    for group in groups:
        values = {name: value for name, value in dataclasses.asdict(group.config).items() if name != "seed"}
        rows = [[name, str(value)] for name, value in values.items()]
        repeated = {run.folder for run in group.repeated}
        runs = [
            [
                f"seed {run.config.seed}",
                f"{run.folder}: {run.status}"
                + ("; does not count, another run has its seed" if run.folder in repeated else ""),
            ]
            for run in group.runs
        ]
        table = _plain_table(f"Configuration of {group.label}", ["Setting", "Value"], rows + runs, "settings")
        pieces.append(
            f'<details class="group"><summary>{escape(group.label)} '
            f"({counted(len(group.runs), 'run')})</summary>{table}</details>"
        )
    return "".join(pieces)


def sample(series: int) -> str:
    """A sample of the group's line, as in the figures."""
    style = series_style(series)
    dash = " ".join(map(str, style.dash))
    return (
        f'<svg class="sample" width="40" height="12" viewBox="-20 -6 40 12" aria-hidden="true" '
        f'style="color:var(--series-{style.colour})"><path d="M-20 0H20" stroke="currentColor" '
        f'stroke-width="2" stroke-dasharray="{dash}"/>'
        f'<path d="{style.marker.path}" fill="currentColor"/></svg>'
    )


def _plain_table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], style: str = "data"
) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(value)}</td>" for value in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">'
        f'<table class="{style}"><caption class="hidden">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _numeric(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _sort_value(cell: Cell) -> str:
    """The attribute to sort by. JavaScript parses Infinity; a missing value is empty and sorts last."""
    if cell.value is None:
        return ""
    if math.isnan(cell.value):
        return ' data-value=""'
    return f' data-value="{"Infinity" if math.isinf(cell.value) else repr(float(cell.value))}"'
