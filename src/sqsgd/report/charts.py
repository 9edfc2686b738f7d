"""The figures of a report in Vega-Lite: the page, its tables and the image files all come from here."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sqsgd._internal.files import write_atomically
from sqsgd.report.groups import Group
from sqsgd.report.tables import Row, Shown, listed, number, percent
from sqsgd.training.reading import Numbers
from sqsgd.training.summary import ACCURACY, FEWEST, mean_interval

MOST_POINTS, ALL_POINTS = 100, 800
"""The most points of one curve, and of all curves of a chart: pages with many groups stay small."""
MOST_ROWS, ALL_ROWS = 25, 200
"""The most rows of one curve, and of all curves, in the table below a chart."""
MARKERS = 10
PARTS = ("gradient", "encode", "aggregate", "rest")
BAND = (
    " The line is the mean over seeds; the band is its 95 % confidence interval (Student's t), "
    "where there are three seeds or more."
)
COLOURS = {
    "background": ("#f7f8f9", "#12161b"), "surface": ("#ffffff", "#1a2027"), "ink": ("#1c2128", "#e7eaee"),
    "muted": ("#545d68", "#a9b3be"), "line": ("#d7dce1", "#36404a"), "accent": ("#0a58a8", "#82bdff"),
    "warning": ("#8a4b00", "#f0b866"),
}  # fmt: skip
"""Colours on light and on dark pages."""
SERIES = (
    ("#0a5fa8", "#62b0f2"), ("#c75000", "#ff9a4d"), ("#00805c", "#35cf9f"), ("#a8327f", "#f191cb"),
    ("#5e4a00", "#f4f0a0"), ("#303030", "#d0d0d0"), ("#2b93c9", "#a6ecff"), ("#9a76e8", "#8467dd"),
)  # fmt: skip
"""Colours of the groups, which colour-blind readers can tell apart too."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3], [14, 4], [8, 2, 2, 2, 2, 2])
"""Colour, shape and dash repeat with different periods: the first 168 groups are drawn differently."""

Spec = dict[str, Any]
Point = dict[str, Any]


def config(colours: Mapping[str, str], series: Sequence[str], size: int) -> Spec:
    """The look of all charts as a configuration of Vega-Lite; ``size`` is that of the labels in pixels."""
    ink, muted, line = colours["ink"], colours["muted"], colours["line"]
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": size, "titleFontSize": size}
    axis = {"gridColor": line, "domainColor": muted, "tickColor": muted, "titleFontWeight": "normal"}
    legend = {"orient": "bottom", "title": None, "labelLimit": 24 * size, "symbolSize": size**2 / 3}
    return {
        "background": None,
        "font": "system-ui, Liberation Sans, Arial, sans-serif",
        "view": {"stroke": None},
        "axis": {**text, **axis, "labelOverlap": True},
        "legend": {**text, **legend, "symbolStrokeWidth": 0, "columnPadding": 16, "rowPadding": 4},
        "bar": {"stroke": colours["surface"], "strokeWidth": 1},
        "line": {"strokeWidth": size / 6.5},
        "point": {"size": size**2 / 4},
        "range": {"category": list(series), "symbol": list(SHAPES)},
    }


PAGE = config({name: f"var(--{name})" for name in COLOURS}, [f"var(--series-{i})" for i in range(8)], 13)
FILE = config({name: light for name, (light, _) in COLOURS.items()}, [light for light, _ in SERIES], 9)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over one pair of axes, one per group."""

    name: str
    title: str
    x_title: str = "rounds"
    y_title: str
    caption: str
    points: Sequence[Point]
    """Mean over the group's runs, half the width of its 95 % interval and its ends, in order of ``x``."""
    groups: Sequence[str]
    """The labels of all groups of the report, whose order decides colours and dashes."""
    share: bool = False
    """Whether the vertical axis is in percent."""
    log_x: bool = False
    log_y: bool = False

    @property
    def curves(self) -> dict[str, list[Point]]:
        """The points of each group that has some."""
        curves: dict[str, list[Point]] = {}
        for point in self.points:
            curves.setdefault(point["group"], []).append(point)
        return curves

    @property
    def headings(self) -> dict[str, str]:
        """The columns of ``rows``."""
        banded = {"half": "± 95 %"} if any("low" in point for point in self.points) else {}
        return {"group": "Group", "x": self.x_title, "mean": self.y_title, **banded}

    def rows(self) -> list[Row]:
        """The data as a table, at most ``MOST_ROWS`` points per curve and always the last."""
        most = max(5, min(MOST_ROWS, ALL_ROWS // max(len(self.curves), 1)))
        kept = [points[i] for points in self.curves.values() for i in _ends(len(points), most) - 1]
        show = percent if self.share else number
        return [{**p, **{key: Shown(p[key], show(p[key])) for key in ("mean", "half")}} for p in kept]

    def spec(self, *, interactive: bool = True) -> Spec:
        """The chart in Vega-Lite, without size and colours.

        On pages a click on the legend picks out groups, dragging moves the axes, Ctrl and the wheel zoom.
        """
        rounds, banded = self.x_title == "rounds", any("low" in point for point in self.points)
        drawn = list(self.curves)
        columns = max(1, min(4, 60 // (9 + max(map(len, drawn), default=0))))
        group: Spec = {"field": "group", "type": "nominal", "scale": {"domain": list(self.groups)}}
        group["legend"] = {"values": drawn, "columns": columns} if len(self.groups) > 1 else None
        x = _quantity("x", self.x_title)
        x["scale"] = {"type": "log", "nice": False} if self.log_x else {"zero": rounds}
        x["axis"] = {"format": ",d", "tickMinStep": 1} if rounds else {"format": "~s", "tickCount": 4}
        y = _quantity("mean", self.y_title)
        y["scale"] = {"type": "log", "nice": False} if self.log_y else {"zero": self.share}
        y["axis"] = {"format": ".0%"} if self.share else {"tickCount": 4} if self.log_y else {}
        faded = {"condition": {"param": "chosen", "value": 1}, "value": 0.08}
        opacity = faded if interactive else {"value": 1}
        form = ".1%" if self.share else ",.4~r"
        names = {"mean": self.y_title, **({"low": "95 % from", "high": "95 % to"} if banded else {})}
        tooltip = [{"field": "group"}, {**_quantity("x", self.x_title), "format": ","}]
        tooltip += [{**_quantity(field, title), "format": form} for field, title in names.items()]
        band = {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "area", "fillOpacity": 0.18, "clip": interactive},
            "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "opacity": opacity},
        }
        dashes = {**group, "scale": {**group["scale"], "range": list(DASHES)}}
        chosen = {"name": "chosen", "select": {"type": "point", "fields": ["group"]}, "bind": "legend"}
        zoom = {"type": "interval", "zoom": "wheel![event.ctrlKey]"}
        line = {
            "mark": {"type": "line", "clip": interactive},
            "encoding": {"y": y, "strokeDash": dashes, "opacity": opacity},
        }
        point = {"type": "point", "filled": True, "clip": interactive}
        markers = {
            "transform": [{"filter": "datum.marked"}],
            "mark": point,
            "encoding": {"y": y, "shape": group, "opacity": opacity},
        }
        targets = {  # invisible, for the pointer
            "mark": {**point, "opacity": 0, "size": 200},
            "encoding": {"y": y, "tooltip": tooltip},
        }
        layers: list[Spec] = [*([band] if banded else []), line, markers]
        if interactive:  # the legend takes clicks for the first layer only
            layers[0] = {**layers[0], "params": [chosen, {"name": "zoom", "select": zoom, "bind": "scales"}]}
            layers.append(targets)
        data = {"values": self._data()}
        return {"data": data, "encoding": {"x": x, "color": group}, "layer": layers}

    def _data(self) -> list[Spec]:
        """The points to six digits; a few have a marker, shifted so that those of equal curves lie apart."""
        rows: list[Spec] = []
        for label, points in self.curves.items():
            every = -(-len(points) // MARKERS)
            for i, point in enumerate(points):
                numbers = {
                    str(key): _short(point[key]) for key in ("x", "mean", "low", "high") if key in point
                }
                marked = {"marked": True} if i % every == self.groups.index(label) % every else {}
                rows.append({"group": label, **numbers, **marked})
        return rows


@dataclass(frozen=True, kw_only=True)
class TimeChart(Chart):
    """The milliseconds of a round by part, one bar per group: points have a ``part`` and a ``mean``."""

    @property
    def headings(self) -> dict[str, str]:
        """The columns of ``rows``."""
        return {"group": "Group", "part": "part", "mean": self.x_title}

    def rows(self) -> list[Row]:
        """The data as a table."""
        return list(self.points)

    def spec(self, *, interactive: bool = True) -> Spec:
        """The chart in Vega-Lite, without size and colours."""
        data = [{**p, "mean": _short(p["mean"]), "order": PARTS.index(p["part"])} for p in self.points]
        length = _quantity("mean", self.x_title)
        group = {"field": "group", "type": "nominal", "sort": None, "title": None}
        return {
            "data": {"values": data},
            "height": 30 * len(self.curves),
            "mark": "bar",
            "encoding": {
                "y": {**group, "axis": {"labelLimit": 160}},
                "x": length,
                "color": {"field": "part", "type": "nominal", "scale": {"domain": list(PARTS)}},
                "order": {"field": "order", "type": "quantitative"},
                "tooltip": [{"field": "group"}, {"field": "part"}, {**length, "format": ",.3~r"}],
            },
        }


def all_charts(groups: Sequence[Group]) -> list[Chart]:
    """Every chart of a report, in order; some may have no points."""
    return [*line_charts(groups), time_chart(groups)]


def write_charts(charts: Iterable[Chart], folder: str | Path, kind: str) -> list[Path]:
    """Draw every chart that has points to ``folder``, a column of a paper wide, as ``loss.svg`` and so on.

    Args:
        charts: what to draw.
        folder: is made if it does not exist.
        kind: ``svg``, ``png`` or ``pdf``.

    Returns:
        The files.
    """
    import vl_convert

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in (chart for chart in charts if chart.points):
        spec = {"width": 240, "height": 160, "config": FILE, **chart.spec(interactive=False)}
        image = getattr(vl_convert, f"vegalite_to_{kind}")(spec, **({"ppi": 300} if kind == "png" else {}))
        written.append(target / f"{chart.name}.{kind}")
        write_atomically(written[-1], image.encode() if isinstance(image, str) else image)
    return written


def line_charts(groups: Sequence[Group]) -> list[Chart]:
    """Accuracy by round and by bytes, loss, total ε, bound and clip rate."""
    band = BAND if any(len(group.counted) >= FEWEST for group in groups) else ""
    headline = groups[0].headline if groups else ACCURACY
    share, lower = headline.is_share, " Lower is better." if headline.better == "lower" else ""
    same = [group for group in groups if group.headline == headline]
    others = [group for group in groups if group.headline != headline]
    apart = _left_out("another metric was measured", others)
    epsilon = _curves(groups, "epsilon_total", estimated=False)
    not_private = [group for group in groups if group.last("epsilon_total") == math.inf]
    moving = [group for group in groups if _moves(group)]
    constant = [group for group in groups if not _moves(group) and not math.isnan(group.last("bound"))]
    fixed = _left_out("it is constant", constant)
    names = dict.fromkeys(group.summary.held_out for group in groups if group.summary)
    held_out = listed(list(names)) or "held-out data"
    chart = functools.partial(Chart, groups=[group.label for group in groups])
    by_round = chart(
        name="accuracy-by-round",
        title=f"{headline.title} by round",
        y_title=headline.name,
        caption=f"Measured on {held_out}, every few rounds.{lower}{band}{apart}",
        points=_curves(same, "accuracy", share=share),
        share=share,
    )
    sent = _curves(same, "accuracy", share=share, by_bytes=True)
    by_bytes = dataclasses.replace(
        by_round,
        name="accuracy-by-bytes",
        title=f"{headline.title} by bytes sent",
        x_title="cumulative bytes sent per client",
        caption="Measured length of whole messages, of one client in every round. What clients receive is "
        f"not counted.{lower}{band}{apart}",
        points=sent,
        log_x=_far_apart(sent, "x"),
    )
    loss = chart(
        name="loss",
        title="Training loss",
        y_title="loss",
        caption=f"Mean over the round's clients. Known in simulations only; never sent.{band}",
        points=_curves(groups, "loss", average=True),
    )
    budget = chart(
        name="epsilon",
        title="Privacy budget spent",
        y_title="total ε",
        caption="The sum of the epsilons of all reports of the client that sent most (basic composition)."
        + _left_out("there is no guarantee", not_private),
        points=epsilon,
        log_y=_far_apart(epsilon, "mean"),
    )
    bound = chart(
        name="bound",
        title="Bound",
        y_title="bound",
        caption="The largest magnitude that a report can represent. The server adapts it from privatised "
        f"magnitudes only.{fixed}{band}",
        points=_curves(moving, "bound"),
    )
    clip_rate = chart(
        name="clip-rate",
        title="Reports at the bound",
        y_title="share of reports",
        caption=f"The share of privatised magnitudes at or near the bound.{fixed}{band}",
        points=_curves(moving, "clip_rate", average=True, share=True),
        share=True,
    )
    return [by_round, by_bytes, loss, budget, bound, clip_rate]


def time_chart(groups: Sequence[Group]) -> TimeChart:
    """The time of a round by part; groups whose parts were not timed are left out."""
    points, untimed = [], []
    for group in groups:
        if not group.counted:
            continue
        times = {part: _milliseconds(group, f"seconds_{part}") for part in PARTS[:-1]}
        rest = _milliseconds(group, "seconds") - math.fsum(times.values())
        if math.isnan(rest):
            untimed.append(group)
            continue
        times["rest"] = max(0.0, rest)
        points += [{"group": group.label, "part": part, "mean": value} for part, value in times.items()]
    return TimeChart(
        name="time",
        title="Where the time goes",
        x_title="milliseconds per round",
        y_title="",
        caption="Mean over all rounds and runs of a group, on the machine that ran them. Gradient: the "
        "clients' training; encode: clipping, rotation, noise and packing; aggregate: the server."
        + _left_out("its parts were not timed", untimed),
        points=points,
        groups=[group.label for group in groups],
    )


def _left_out(reason: str, groups: Sequence[Group]) -> str:
    names = [group.label for group in groups if group.counted]
    return f" Not drawn, because {reason}: {listed(names)}." if names else ""


def _milliseconds(group: Group, column: str) -> float:
    """The mean per round; NaN if a round was not timed."""
    rounds = sum(run.rounds for run in group.counted)
    return 1000 * math.fsum(float(run.columns[column].sum()) for run in group.counted) / rounds


def _curves(
    groups: Sequence[Group],
    column: str,
    *,
    average: bool = False,
    by_bytes: bool = False,
    share: bool = False,
    estimated: bool = True,
) -> list[Point]:
    """For each group, at most ``MOST_POINTS`` rounds in which all of its runs have a finite value.

    ``average``: means over equal spans of rounds instead. ``by_bytes``: x is what a client has sent so far.
    ``share``: intervals are cut at 0 and 1. Values that are not ``estimated`` have no interval.
    """
    curves: list[Point] = []
    most = min(MOST_POINTS, max(20, ALL_POINTS // max(len(groups), 1)))
    lowest, highest = (0.0, 1.0) if share else (-math.inf, math.inf)
    for group in groups:
        if not group.counted:
            continue
        values = _column(group, column)
        if average:
            ends = _ends(group.rounds, most)
            spans = np.split(values, ends[:-1], axis=1)
            means = [np.ma.masked_invalid(span).mean(axis=1).filled(np.nan) for span in spans]
            values = np.stack(means, axis=1)
        else:
            known = np.flatnonzero(np.isfinite(values).all(axis=0)) + 1
            ends = known[_ends(len(known), most) - 1]
            values = values[:, ends - 1]
        x = ends.astype(np.float64)
        if by_bytes:
            x = np.cumsum(_column(group, "bytes_up"), axis=1).mean(axis=0)[ends - 1]
        points: list[Point] = []
        for at, runs in zip(x.tolist(), values.T.tolist(), strict=True):
            if np.isfinite([at, *runs]).all():
                mean, half = mean_interval(runs)
                half = half if estimated else math.nan
                points.append({"group": group.label, "x": at, "mean": mean, "half": half})
        if any(point["half"] > 0 for point in points):
            for point in points:
                low, high = point["mean"] - point["half"], point["mean"] + point["half"]
                point |= {"low": max(low, lowest), "high": min(high, highest)}
        curves += points
    return curves


def _column(group: Group, name: str) -> Numbers:
    """A column of all counted runs, as runs × rounds."""
    return np.stack([run.columns[name][: group.rounds] for run in group.counted])


def _ends(length: int, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The ends of at most ``most`` equal spans of 0..length; the last one is ``length``."""
    return np.round(np.linspace(0, length, min(length, most) + 1)[1:]).astype(np.int64)


def _moves(group: Group) -> bool:
    return any(
        np.ptp(run.columns["bound"]) > 0 or np.nan_to_num(run.columns["clip_rate"]).any()
        for run in group.counted
    )


def _far_apart(points: Sequence[Point], key: str) -> bool:
    """Whether the ends of the curves are too far apart for a linear axis."""
    ends = [end for end in {point["group"]: point[key] for point in points}.values() if end > 0]
    return bool(ends) and max(ends) > 20 * min(ends)


def _quantity(field: str, title: str) -> Spec:
    return {"field": field, "type": "quantitative", "title": title}


def _short(value: float) -> float:
    """The value to six digits, as a whole number where it is one: more cannot be seen."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded
