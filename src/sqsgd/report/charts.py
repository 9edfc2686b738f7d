"""What the figures show, before anything is drawn: the page, its tables and the images share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sqsgd.report.groups import Group
from sqsgd.report.text import listed, number, percent
from sqsgd.runs.reading import Numbers, RunData

MOST_POINTS = 300
PARTS = ("gradient", "encode", "aggregate", "rest")
BAND = " The line is the mean over seeds, the band reaches from the lowest to the highest run."


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The mean of a group's runs, with the lowest and the highest at each point."""

    series: int
    label: str
    x: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers
    runs: int


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Curves over one pair of axes."""

    name: str
    title: str
    x_title: str
    y_title: str
    caption: str
    curves: tuple[Curve, ...]
    kind: Literal["share", "amount"] = "amount"
    log_x: bool = False
    log_y: bool = False

    def shown(self, value: float) -> str:
        """A value of the vertical axis as text."""
        return percent(value) if self.kind == "share" else number(value)

    @property
    def alternative(self) -> str:
        """The figure in words, for those who do not see it."""
        ends = [
            f"{curve.label} goes from {self.shown(curve.mean[0])} at {number(curve.x[0])} "
            f"to {self.shown(curve.mean[-1])} at {number(curve.x[-1])}"
            for curve in self.curves
        ]
        return f"Line chart: {self.y_title} against {self.x_title}. " + "; ".join(ends) + "."


@dataclass(frozen=True, kw_only=True)
class Split:
    """Where a group's time went: milliseconds of a round by part."""

    series: int
    label: str
    milliseconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SplitChart:
    """The time of a round by part, one bar a group."""

    name: str = "time"
    title: str = "Where the time goes"
    x_title: str = "milliseconds a round"
    caption: str = (
        "Mean over all rounds and runs of a group, on the machine that ran them. Gradient: the clients' "
        "training; encode: clipping, rotation, noise and packing; aggregate: the server."
    )
    splits: tuple[Split, ...]

    @property
    def alternative(self) -> str:
        """The figure in words, for those who do not see it."""
        bars = [
            f"{split.label}: "
            + ", ".join(f"{part} {number(value)}" for part, value in split.milliseconds.items())
            for split in self.splits
        ]
        return f"Bar chart: {self.x_title}. " + "; ".join(bars) + "."


def line_charts(groups: Sequence[Group]) -> list[Chart]:
    """Accuracy by round and by bytes, loss, ε in total, bound and clip rate."""
    band = BAND if any(len(group.counted) > 1 for group in groups) else ""
    accuracy = _curves(groups, _accuracy_by("round"))
    by_bytes = _curves(groups, _accuracy_by("bytes"))
    epsilon = _curves(groups, _sampled("epsilon_total"))
    not_private = [group.label for group in groups if group.last("epsilon_total") == math.inf]
    moving = [_moves(group) for group in groups]
    fixed = [group.label for group, moves in zip(groups, moving, strict=True) if group.counted and not moves]
    left_out = f" Not drawn, because it never moves: {listed(fixed)}." if fixed else ""
    bound = [curve for curve in _curves(groups, _sampled("bound")) if moving[curve.series]]
    clip_rate = [curve for curve in _curves(groups, _averaged("clip_rate")) if moving[curve.series]]
    return [
        Chart(
            name="accuracy-by-round",
            title="Accuracy by round",
            x_title="rounds",
            y_title="accuracy",
            kind="share",
            caption=f"On {_held_out(groups)}, measured every so many rounds.{band}",
            curves=tuple(accuracy),
        ),
        Chart(
            name="accuracy-by-bytes",
            title="Accuracy by bytes sent",
            x_title="bytes sent by one client a round, added up",
            y_title="accuracy",
            kind="share",
            caption="Whole messages as measured, of one client a round: the same one, where clients answer "
            f"every round. What it receives is not counted.{band}",
            curves=tuple(by_bytes),
            log_x=_far_apart([curve.x[-1] for curve in by_bytes]),
        ),
        Chart(
            name="loss",
            title="Training loss",
            x_title="rounds",
            y_title="loss",
            caption=f"Mean over the round's clients; known to the simulation, never sent.{band}",
            curves=tuple(_curves(groups, _averaged("loss"))),
        ),
        Chart(
            name="epsilon",
            title="Privacy budget spent",
            x_title="rounds",
            y_title="ε in total",
            caption="The epsilons of all reports of the client that sent most of them, added up (basic "
            "composition)."
            + (f" Not drawn, because nothing is promised: {listed(not_private)}." if not_private else ""),
            curves=tuple(epsilon),
            log_y=_far_apart([curve.mean[-1] for curve in epsilon]),
        ),
        Chart(
            name="bound",
            title="Bound",
            x_title="rounds",
            y_title="bound",
            caption="The magnitude up to which reports are faithful; the server follows it from privatised "
            f"magnitudes only.{left_out}",
            curves=tuple(bound),
        ),
        Chart(
            name="clip-rate",
            title="Reports at the bound",
            x_title="rounds",
            y_title="share of reports",
            kind="share",
            caption=f"The share of privatised magnitudes at or near the bound.{left_out}",
            curves=tuple(clip_rate),
        ),
    ]


def split_chart(groups: Sequence[Group]) -> SplitChart:
    """The time of a round by part."""
    splits = []
    for series, group in enumerate(groups):
        if not group.counted:
            continue
        rounds = sum(run.rounds for run in group.counted)
        total = {name: 1000 * _sum(group, name) / rounds for name in ("seconds", *_timed())}
        parts = {part: total[f"seconds_{part}"] for part in PARTS[:-1]}
        parts["rest"] = max(0.0, total["seconds"] - float(np.nansum(list(parts.values()))))
        splits.append(Split(series=series, label=group.label, milliseconds=parts))
    return SplitChart(splits=tuple(splits))


def _timed() -> list[str]:
    return [f"seconds_{part}" for part in PARTS[:-1]]


def _sum(group: Group, name: str) -> float:
    return math.fsum(float(run.columns[name].sum()) for run in group.counted)


Points = Callable[[RunData, int], tuple[Numbers, Numbers]]
"""x and y of a run, from its first so many rounds."""


def _curves(groups: Sequence[Group], points: Points) -> list[Curve]:
    curves = []
    for series, group in enumerate(groups):
        pairs = [points(run, group.rounds) for run in group.counted]
        if not pairs:
            continue
        x = np.mean([pair[0] for pair in pairs], axis=0)
        values = np.stack([pair[1] for pair in pairs])
        if not x.size or not np.isfinite(values).any():
            continue
        curves.append(
            Curve(
                series=series,
                label=group.label,
                x=x,
                mean=values.mean(axis=0),
                low=values.min(axis=0),
                high=values.max(axis=0),
                runs=len(pairs),
            )
        )
    return curves


def _accuracy_by(axis: Literal["round", "bytes"]) -> Points:
    def points(run: RunData, rounds: int) -> tuple[Numbers, Numbers]:
        accuracy = run.columns["accuracy"][:rounds]
        x = np.cumsum(run.columns["bytes_up"][:rounds]) if axis == "bytes" else np.arange(1.0, rounds + 1)
        measured = np.flatnonzero(~np.isnan(accuracy))
        kept = measured[_ends(len(measured)) - 1]
        return x[kept], accuracy[kept]

    return points


def _sampled(column: str) -> Points:
    """The value at the end of each of at most MOST_POINTS equal spans of rounds."""

    def points(run: RunData, rounds: int) -> tuple[Numbers, Numbers]:
        ends = _ends(rounds)
        return ends.astype(np.float64), run.columns[column][ends - 1]

    return points


def _averaged(column: str) -> Points:
    """The mean over each of at most MOST_POINTS equal spans of rounds."""

    def points(run: RunData, rounds: int) -> tuple[Numbers, Numbers]:
        ends = _ends(rounds)
        pieces = np.split(run.columns[column][:rounds], ends[:-1])
        return ends.astype(np.float64), np.array([piece.mean() for piece in pieces])

    return points


def _ends(length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where at most MOST_POINTS equal spans of 0..length end; the last one is ``length``."""
    amount = min(length, MOST_POINTS)
    return np.round(np.linspace(0, length, amount + 1)[1:]).astype(np.int64)


def _moves(group: Group) -> bool:
    return any(
        np.ptp(run.columns["bound"]) > 0 or np.nan_to_num(run.columns["clip_rate"]).any()
        for run in group.counted
    )


def _far_apart(ends: Sequence[float]) -> bool:
    """A linear axis would press the smaller ones into a corner."""
    finite = [end for end in ends if 0 < end < math.inf]
    return bool(finite) and bool(max(finite) > 20 * min(finite))


def _held_out(groups: Sequence[Group]) -> str:
    names = {group.summary.held_out: None for group in groups if group.summary}
    return listed(list(names)) if names else "held-out data"
