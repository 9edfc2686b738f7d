"""What the figures show. The page, its tables and the image files are all drawn from this description."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sqsgd.numerics.intervals import FEWEST, mean_interval
from sqsgd.report.groups import Group
from sqsgd.report.text import listed, number, percent
from sqsgd.training.reading import Numbers
from sqsgd.training.summary import ACCURACY

MOST_POINTS = 200
ALL_POINTS = 8 * MOST_POINTS
"""The most points of one curve, and of all curves of a chart: pages with many groups stay small."""
MOST_MARKERS = 10
PARTS = ("gradient", "encode", "aggregate", "rest")
BAND = (
    " The line is the mean over seeds; the band is its 95 % confidence interval (Student's t), "
    "where there are three seeds or more."
)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The mean over a group's runs, with half the width of its 95 % confidence interval at each point."""

    series: int
    label: str
    x: Numbers
    mean: Numbers
    half: Numbers
    """NaN for fewer than three runs."""
    runs: int
    share: bool = False
    """Whether the values lie between 0 and 1, where the interval is cut."""

    @property
    def banded(self) -> bool:
        """Whether there is a confidence interval to draw."""
        return bool(np.isfinite(self.half).all()) and bool(self.half.any())

    @property
    def low(self) -> Numbers:
        """The lower end of the interval."""
        return np.maximum(self.mean - self.half, 0.0 if self.share else -math.inf)

    @property
    def high(self) -> Numbers:
        """The upper end of the interval."""
        return np.minimum(self.mean + self.half, 1.0 if self.share else math.inf)

    @property
    def marked(self) -> slice:
        """The few points with a marker, shifted by series so that markers of equal curves do not coincide."""
        every = -(-len(self.x) // MOST_MARKERS)
        return slice(self.series % every, None, every)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over one pair of axes."""

    name: str
    title: str
    x_title: str = "rounds"
    y_title: str
    caption: str
    curves: tuple[Curve, ...]
    x_unit: Literal["rounds", "bytes"] = "rounds"
    y_unit: Literal["share", "number"] = "number"
    log_x: bool = False
    log_y: bool = False
    shows_title: bool = False
    """Whether image files show the title, which papers have in the caption; the page always does."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.curves

    def shown(self, value: float) -> str:
        """A value of the vertical axis as text."""
        return percent(value) if self.y_unit == "share" else number(value)

    @property
    def alternative(self) -> str:
        """Alternative text, for screen readers."""
        ends = [
            f"{curve.label} goes from {self.shown(curve.mean[0])} at {number(curve.x[0])} "
            f"to {self.shown(curve.mean[-1])} at {number(curve.x[-1])}"
            for curve in self.curves
        ]
        return f"Line chart: {self.y_title} against {self.x_title}. " + "; ".join(ends) + "."


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where a group's time went: milliseconds per round by part."""

    label: str
    milliseconds: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SplitChart:
    """The time of a round by part, one bar per group."""

    name: str = "time"
    title: str = "Where the time goes"
    x_title: str = "milliseconds per round"
    caption: str = (
        "Mean over all rounds and runs of a group, on the machine that ran them. Gradient: the clients' "
        "training; encode: clipping, rotation, noise and packing; aggregate: the server."
    )
    splits: tuple[Split, ...]
    shows_title: bool = False

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.splits

    @property
    def alternative(self) -> str:
        """Alternative text, for screen readers."""
        bars = [
            f"{split.label}: "
            + ", ".join(f"{part} {number(value)}" for part, value in split.milliseconds.items())
            for split in self.splits
        ]
        return f"Bar chart: {self.x_title}. " + "; ".join(bars) + "."


def all_charts(groups: Sequence[Group]) -> list[Chart | SplitChart]:
    """Every chart of a report, in order; some may be empty."""
    return [*line_charts(groups), split_chart(groups)]


def line_charts(groups: Sequence[Group]) -> list[Chart]:
    """Accuracy by round and by bytes, loss, total ε, bound and clip rate."""
    band = BAND if any(len(group.counted) >= FEWEST for group in groups) else ""
    epsilon = [
        dataclasses.replace(curve, half=np.full_like(curve.half, math.nan))  # nothing is estimated here
        for curve in _curves(groups, _thinned("epsilon_total"))
    ]
    headline = groups[0].headline if groups else ACCURACY
    unit: Literal["share", "number"] = "share" if headline.is_share else "number"
    others = [group.label for group in groups if group.headline != headline]
    apart = f" Not drawn, because another metric was measured: {listed(others)}." if others else ""
    lower = " Lower is better." if headline.better == "lower" else ""
    reached, by_bytes = (
        [curve for curve in curves if curve.label not in others]
        for curves in (
            _curves(groups, _thinned("accuracy"), share=headline.is_share),
            _curves(groups, _thinned("accuracy", by_bytes=True), share=headline.is_share),
        )
    )
    not_private = [group.label for group in groups if group.last("epsilon_total") == math.inf]
    moving = [_moves(group) for group in groups]
    fixed = [
        group.label
        for group, moves in zip(groups, moving, strict=True)
        if not moves and not math.isnan(group.last("bound"))
    ]
    left_out = f" Not drawn, because it is constant: {listed(fixed)}." if fixed else ""
    bound = [curve for curve in _curves(groups, _thinned("bound")) if moving[curve.series]]
    rates = _curves(groups, _averaged("clip_rate"), share=True)
    clip_rate = [curve for curve in rates if moving[curve.series]]
    return [
        Chart(
            name="accuracy-by-round",
            title=f"{headline.title} by round",
            y_title=headline.name,
            y_unit=unit,
            caption=f"Measured on {_held_out(groups)}, every few rounds.{lower}{band}{apart}",
            curves=tuple(reached),
        ),
        Chart(
            name="accuracy-by-bytes",
            title=f"{headline.title} by bytes sent",
            x_title="cumulative bytes sent per client",
            x_unit="bytes",
            y_title=headline.name,
            y_unit=unit,
            caption="Measured length of whole messages, of one client in every round. What clients receive "
            f"is not counted.{lower}{band}{apart}",
            curves=tuple(by_bytes),
            log_x=_far_apart([curve.x[-1] for curve in by_bytes]),
        ),
        Chart(
            name="loss",
            title="Training loss",
            y_title="loss",
            caption=f"Mean over the round's clients. Known in simulations only; never sent.{band}",
            curves=tuple(_curves(groups, _averaged("loss"))),
        ),
        Chart(
            name="epsilon",
            title="Privacy budget spent",
            y_title="total ε",
            caption="The sum of the epsilons of all reports of the client that sent most (basic composition)."
            + (f" Not drawn, because there is no guarantee: {listed(not_private)}." if not_private else ""),
            curves=tuple(epsilon),
            log_y=_far_apart([curve.mean[-1] for curve in epsilon]),
        ),
        Chart(
            name="bound",
            title="Bound",
            y_title="bound",
            caption="The largest magnitude that a report can represent. The server adapts it from privatised "
            f"magnitudes only.{left_out}{band}",
            curves=tuple(bound),
        ),
        Chart(
            name="clip-rate",
            title="Reports at the bound",
            y_title="share of reports",
            y_unit="share",
            caption=f"The share of privatised magnitudes at or near the bound.{left_out}{band}",
            curves=tuple(clip_rate),
        ),
    ]


def split_chart(groups: Sequence[Group]) -> SplitChart:
    """The time of a round by part; groups whose parts were not timed are left out."""
    splits, untimed = [], []
    for group in groups:
        if not group.counted:
            continue
        timed = {part: _milliseconds(group, f"seconds_{part}") for part in PARTS[:-1]}
        rest = _milliseconds(group, "seconds") - math.fsum(timed.values())
        if math.isnan(rest):
            untimed.append(group.label)
        else:
            parts = {**timed, "rest": max(0.0, rest)}
            splits.append(Split(label=group.label, milliseconds=parts))
    if not untimed:
        return SplitChart(splits=tuple(splits))
    left_out = f" Not drawn, because its parts were not timed: {listed(untimed)}."
    return SplitChart(splits=tuple(splits), caption=SplitChart.caption + left_out)


def _milliseconds(group: Group, column: str) -> float:
    """The mean per round; NaN if a round was not timed."""
    rounds = sum(run.rounds for run in group.counted)
    return 1000 * math.fsum(float(run.columns[column].sum()) for run in group.counted) / rounds


Points = Callable[[Group, int], tuple[Numbers, Numbers]]
"""The x of at most that many points of a group, and its values as an array of runs × points."""


def _curves(groups: Sequence[Group], points: Points, *, share: bool = False) -> list[Curve]:
    """One curve per group that has finite values, through the points that all of its runs have."""
    curves = []
    most = min(MOST_POINTS, max(20, ALL_POINTS // max(len(groups), 1)))
    for series, group in enumerate(groups):
        if not group.counted:
            continue
        x, values = points(group, most)
        known = np.isfinite(x) & np.isfinite(values).all(axis=0)
        if not known.any():
            continue
        intervals = np.array([mean_interval(column) for column in values[:, known].T.tolist()])
        curves.append(
            Curve(
                series=series,
                label=group.label,
                x=x[known],
                mean=intervals[:, 0],
                half=intervals[:, 1],
                runs=len(values),
                share=share,
            )
        )
    return curves


def _column(group: Group, name: str) -> Numbers:
    """A column of all counted runs, as runs × rounds."""
    return np.stack([run.columns[name][: group.rounds] for run in group.counted])


def _thinned(column: str, *, by_bytes: bool = False) -> Points:
    """The rounds in which the value is known, evenly spaced if there are too many."""

    def points(group: Group, most: int) -> tuple[Numbers, Numbers]:
        values = _column(group, column)
        known = np.flatnonzero(np.isfinite(values).all(axis=0))
        kept = known[_ends(len(known), most) - 1]
        if by_bytes:
            return np.cumsum(_column(group, "bytes_up"), axis=1).mean(axis=0)[kept], values[:, kept]
        return (kept + 1).astype(np.float64), values[:, kept]

    return points


def _averaged(column: str) -> Points:
    """The mean of the known values in each of at most that many equal spans of rounds."""

    def points(group: Group, most: int) -> tuple[Numbers, Numbers]:
        ends = _ends(group.rounds, most)
        spans = np.split(_column(group, column), ends[:-1], axis=1)
        means = [np.ma.masked_invalid(span).mean(axis=1).filled(np.nan) for span in spans]
        return ends.astype(np.float64), np.stack(means, axis=1)

    return points


def _ends(length: int, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The ends of at most ``most`` equal spans of 0..length; the last one is ``length``."""
    spans = min(length, most)
    return np.round(np.linspace(0, length, spans + 1)[1:]).astype(np.int64)


def _moves(group: Group) -> bool:
    return any(
        np.ptp(run.columns["bound"]) > 0 or np.nan_to_num(run.columns["clip_rate"]).any()
        for run in group.counted
    )


def _far_apart(ends: Sequence[float]) -> bool:
    """Whether the values are too far apart for a linear axis."""
    finite = [end for end in ends if 0 < end < math.inf]
    return bool(finite) and bool(max(finite) > 20 * min(finite))


def _held_out(groups: Sequence[Group]) -> str:
    names = {group.summary.held_out: None for group in groups if group.summary}
    return listed(list(names)) if names else "held-out data"
