"""The figures of a report in Vega-Lite: the page, its tables and the image files all come from here."""

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

MOST_POINTS, MOST_ROWS = 60, 10  # of a curve, and of the table below the chart: pages stay small
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
"""Colours of the groups, which colour-blind readers can distinguish too."""
DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3], [14, 4], [8, 2, 2, 2, 2, 2])
"""Colour and dash repeat with different periods: the first 24 groups are drawn differently."""

Spec = dict[str, Any]
Point = dict[str, Any]


def config(colours: Mapping[str, str], series: Sequence[str], size: int) -> Spec:
    """Return the look of all charts as a configuration of Vega-Lite; ``size``: of the labels, in pixels."""
    ink, muted, line = colours["ink"], colours["muted"], colours["line"]
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": size, "titleFontSize": size}
    axis = {"gridColor": line, "domainColor": muted, "tickColor": muted, "titleFontWeight": "normal"}
    legend = {"orient": "bottom", "title": None, "labelLimit": 24 * size, "symbolSize": 4 * size**2}
    return {
        "background": None,
        "font": "system-ui, Liberation Sans, Arial, sans-serif",
        "view": {"stroke": None},
        "axis": {**text, **axis, "labelOverlap": True},
        "legend": {**text, **legend, "symbolType": "stroke", "columnPadding": 16, "rowPadding": 4},
        "line": {"strokeWidth": size / 6.5},
        "point": {"size": size**2 / 4},
        "range": {"category": list(series)},
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
    share: bool = False  # the vertical axis is in percent
    from_zero: bool = False
    log_x: bool = False
    log_y: bool = False

    @property
    def curves(self) -> dict[str, list[Point]]:
        curves: dict[str, list[Point]] = {}
        for point in self.points:
            curves.setdefault(point["group"], []).append(point)
        return curves

    @property
    def headings(self) -> dict[str, str]:
        banded = {"half": "± 95 %"} if any("low" in point for point in self.points) else {}
        return {"group": "Group", "x": self.x_title, "mean": self.y_title, **banded}

    def rows(self) -> list[Row]:
        """Return the data as a table, at most ``MOST_ROWS`` points per curve and always the last."""
        kept = [points[i] for points in self.curves.values() for i in _ends(len(points), MOST_ROWS) - 1]
        show = percent if self.share else number
        return [{**p, **{key: Shown(p[key], show(p[key])) for key in ("mean", "half")}} for p in kept]

    def spec(self, *, interactive: bool = True) -> Spec:
        """In Vega-Lite. On pages a click on the legend picks out groups, dragging moves, Ctrl-wheel zooms."""
        rounds, banded = self.x_title == "rounds", any("low" in point for point in self.points)
        drawn = list(self.curves)
        columns = max(1, min(4, 60 // (9 + max(map(len, drawn), default=0))))
        group: Spec = {"field": "group", "type": "nominal", "scale": {"domain": list(self.groups)}}
        group["legend"] = {"values": drawn, "columns": columns} if len(self.groups) > 1 else None
        x = _quantity("x", self.x_title)
        x["scale"] = {"type": "log", "nice": False} if self.log_x else {"zero": rounds}
        x["axis"] = {"format": ",d", "tickMinStep": 1} if rounds else {"format": "~s", "tickCount": 4}
        y = _quantity("mean", self.y_title)
        y["scale"] = {"type": "log", "nice": False} if self.log_y else {"zero": self.from_zero}
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
        few = max(map(len, self.curves.values()), default=0) <= 10
        line = {
            "mark": {"type": "line", "clip": interactive, "point": few},
            "encoding": {"y": y, "strokeDash": dashes, "opacity": opacity},
        }
        layers: list[Spec] = [*([band] if banded else []), line]
        if interactive:  # the legend takes clicks for the first layer only
            chosen = {"name": "chosen", "select": {"type": "point", "fields": ["group"]}, "bind": "legend"}
            zoom = {"type": "interval", "zoom": "wheel![event.ctrlKey]"}
            layers[0] = {**layers[0], "params": [chosen, {"name": "zoom", "select": zoom, "bind": "scales"}]}
            invisible = {"type": "point", "filled": True, "clip": True, "opacity": 0, "size": 200}
            layers.append({"mark": invisible, "encoding": {"y": y, "tooltip": tooltip}})  # for the pointer
        keys = ("x", "mean", "low", "high")
        shown = [{key: _short(point[key]) for key in keys if key in point} for point in self.points]
        values = [{"group": point["group"], **each} for point, each in zip(self.points, shown, strict=True)]
        return {"data": {"values": values}, "encoding": {"x": x, "color": group}, "layer": layers}


def write_charts(charts: Iterable[Chart], folder: str | Path, kind: str) -> list[Path]:
    """Draw every chart that has points as ``svg``, ``png`` or ``pdf``, a column wide. Returns the files."""
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


def all_charts(groups: Sequence[Group]) -> list[Chart]:
    """Accuracy by round and by bytes, loss, total ε, bound and clip rate. Some may have no points."""
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
        x_title="cumulative uplink bytes per client",
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
        + _left_out("they have no guarantee", not_private),
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
        from_zero=True,
    )
    return [by_round, by_bytes, loss, budget, bound, clip_rate]


def _left_out(reason: str, groups: Sequence[Group]) -> str:
    names = [group.label for group in groups if group.counted]
    return f" Not drawn, because {reason}: {listed(names)}." if names else ""


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

    ``average``: means over equal spans of rounds instead. Values that are not ``estimated`` have no interval.
    """
    curves: list[Point] = []
    lowest, highest = (0.0, 1.0) if share else (-math.inf, math.inf)
    for group in groups:
        if not group.counted:
            continue
        values = _column(group, column)
        if average:
            ends = _ends(group.rounds, MOST_POINTS)
            spans = np.split(values, ends[:-1], axis=1)
            means = [np.ma.masked_invalid(span).mean(axis=1).filled(np.nan) for span in spans]
            values = np.stack(means, axis=1)
        else:
            known = np.flatnonzero(np.isfinite(values).all(axis=0)) + 1
            ends = known[_ends(len(known), MOST_POINTS) - 1]
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
    """Return a column of all counted runs, as runs × rounds."""
    return np.stack([run.columns[name][: group.rounds] for run in group.counted])


def _ends(length: int, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the ends of at most ``most`` equal spans of 0..length. The last one is ``length``."""
    return np.round(np.linspace(0, length, min(length, most) + 1)[1:]).astype(np.int64)


def _moves(group: Group) -> bool:
    runs = [run.columns for run in group.counted]
    return any(np.ptp(run["bound"]) > 0 or np.nan_to_num(run["clip_rate"]).any() for run in runs)


def _far_apart(points: Sequence[Point], key: str) -> bool:
    """Return whether the ends of the curves are too far apart for a linear axis."""
    ends = [end for end in {point["group"]: point[key] for point in points}.values() if end > 0]
    return bool(ends) and max(ends) > 20 * min(ends)


def _quantity(field: str, title: str) -> Spec:
    return {"field": field, "type": "quantitative", "title": title}


def _short(value: float) -> float:
    """Return the value to six digits, as a whole number where it is one: more cannot be seen."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded
