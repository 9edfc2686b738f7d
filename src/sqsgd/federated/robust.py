"""Aggregates that a few lying clients move less than a mean: trimmed, and the median of groups.

Both work on each weight by itself. So they see a lie only where it stands out from the noise of honest
reports, which at most budgets it does not: docs/flower.md#lying-clients has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sqsgd.checks import Vector
from sqsgd.codec import Bytes, Columns
from sqsgd.core import Aggregate, Estimate, Scheme, Vectors
from sqsgd.core.aggregate import Weights
from sqsgd.randomness import seeded_rng
from sqsgd.task import Task, Tasks

MEAN, TRIMMED, MEDIAN = AGGREGATES = ("mean", "trimmed", "median of groups")
LEAST_HEARD = 4.0
"""Reports that must speak about each weight, on average: of fewer, nothing can be trimmed."""
LEAST_GROUPS = 7
_MOST_NUMBERS = 1 << 30  # 4 GiB of them are kept at most
_PIECE = 1 << 16  # weights that are sorted at a time

Counts = npt.NDArray[np.int64]


@dataclass
class RobustAggregate:
    """``Aggregate`` with another location than the mean: of single reports, or of the means of groups.

    ``trimmed``: at each weight, the mean of the reports without the lowest and the highest three tenths.
    ``median of groups``: the i-th report is in group i mod g, and the result is the median of the groups'
    means; g is the larger of 7 and the root of the number of reports, made odd. At a weight that only some
    reports are about, it is the location of those, times their share, so that liars elsewhere do not count.
    All of this is post-processing of reports that are private already: their exact ε stays as it is.

    Guarantees
    ----------
    * Up to three tenths of the reports, or (g - 1) / 2 of them, cannot move a weight beyond the values that
      honest reports, or groups, have there:
      tests/federated/test_robust.py::test_few_liars_stay_within_what_honest_reports_say.
    * Neither is unbiased where the noise is asymmetric: a location inside it is then not its mean
      (tests/federated/test_robust.py::test_skewed_noise_makes_both_biased). Rotations, which the clients of
      ``sqsgd`` draw independently, make it nearly symmetric; the mean of a large group nearly always is.
    * A rejected report leaves it unchanged: tests/federated/test_robust.py::test_a_malformed_report_is_named.

    Memory: 4 bytes for each weight of each report (``trimmed``), 12 for each weight of each group.
    """

    scheme: Scheme
    kind: str
    reports: int
    """How many are expected: decides the number of groups."""
    count: int = 0
    _rows: list[Vector] = field(default_factory=list, repr=False)
    _groups: list[Aggregate] = field(default_factory=list, repr=False)
    _heard: list[Counts] = field(default_factory=list, repr=False)
    """Of each row or group: how many reports are about each weight, where they are about blocks."""

    def __post_init__(self) -> None:
        if self.kind == MEDIAN:
            self._groups = [Aggregate(self.scheme) for _ in range(groups_of(self.reports))]
            if self.scheme.sends_block:
                self._heard = [np.zeros(self.scheme.dim, np.int64) for _ in self._groups]

    def add_columns(self, task: Task, columns: Columns, weight: float = 1.0) -> None:
        """Add one report that ``Scheme.open`` has opened."""
        if weight != 1:
            raise ValueError(f"weight = {weight!r}: reports have equal weights in a robust aggregate")
        if self.kind == MEDIAN:
            place = self.count % len(self._groups)
            self._groups[place].add_columns(task, columns)
        else:
            place, alone = self.count, Aggregate(self.scheme)
            alone.add_columns(task, columns)
            self._rows.append(alone.mean().astype(np.float32))
            if self.scheme.sends_block:
                self._heard.append(np.zeros(self.scheme.dim, np.int64))
        if self.scheme.sends_block:
            self._heard[place][self.scheme.sent_coordinates(columns, task)] += 1
        self.count += 1

    def add_many(
        self, tasks: Tasks, messages: Bytes, weights: Weights | None = None, *, workers: int = 1
    ) -> Columns:
        """Add many reports, one row each, in order; returns their columns. One malformed: none is added."""
        if weights is not None:
            raise ValueError("reports have equal weights in a robust aggregate")
        columns = self.scheme.open_many(messages, tasks)
        if self.kind == TRIMMED or self.scheme.sends_block:
            for i, task in enumerate(tasks):
                self.add_columns(task, tuple(column[i] for column in columns))
            return columns
        place = (self.count + np.arange(len(tasks))) % len(self._groups)
        for number, group in enumerate(self._groups):
            mine = place == number
            if mine.any():
                group.add_many(Tasks(tasks.task, tasks.clients[mine]), messages[mine], workers=workers)
        self.count += len(tasks)
        return columns

    def mean(self) -> Estimate:
        """The location of the reports that were added so far."""
        if not self.count:
            raise ValueError("no reports have been added: there is no mean")
        rows: list[Vector] | list[Estimate] = self._rows
        sizes, cut = [1] * len(rows), three_tenths
        if self.kind == MEDIAN:
            filled = [group for group in self._groups if group.count]
            rows, sizes = [group.mean() for group in filled], [group.count for group in filled]
            cut = all_but_the_middle
        found = np.empty(self.scheme.dim)
        for start in range(0, self.scheme.dim, _PIECE):
            piece = slice(start, start + _PIECE)
            values = np.stack([row[piece] for row in rows]).astype(np.float64)
            if not self._heard:
                found[piece] = middle(values, cut)
                continue
            heard = np.stack([each[piece] for each in self._heard[: len(rows)]])
            with np.errstate(invalid="ignore"):
                values *= np.array(sizes)[:, None] / np.where(heard, heard, np.nan)
            found[piece] = middle(values, cut) * heard.sum(axis=0) / self.count
        return found


def three_tenths(count: Counts) -> Counts:
    """How many of so many values are trimmed at each end."""
    return count * 3 // 10


def all_but_the_middle(count: Counts) -> Counts:
    """The same for a median."""
    return (count - 1) // 2


def middle(rows: Vectors | Estimate, cut: Callable[[Counts], Counts]) -> Estimate:
    """At each column, the mean of the values without the ``cut`` lowest and highest; NaN: there is no value.

    >>> middle(np.array([[1.0, 5.0], [9.0, np.nan], [2.0, np.nan]]), all_but_the_middle)
    array([2., 5.])
    """
    ordered = np.sort(rows, axis=0)  # NaN last
    count = np.count_nonzero(~np.isnan(ordered), axis=0)
    ends = np.maximum(cut(count), 0)
    places = np.arange(len(ordered))[:, None]
    kept = (places >= ends) & (places < count - ends)
    found: Estimate = np.where(kept, ordered, 0.0).sum(axis=0) / np.maximum(1, count - 2 * ends)
    return found


def groups_of(reports: int) -> int:
    """The number of groups: odd, so that a median is one of the means.

    >>> [groups_of(reports) for reports in (3, 10, 100, 1500)]
    [3, 7, 11, 39]
    """
    most = max(min(reports, LEAST_GROUPS), math.isqrt(reports))
    return min(most | 1, max(1, reports - 1 + reports % 2))


def make_aggregate(kind: str, scheme: Scheme, reports: int) -> Aggregate | RobustAggregate:
    """An aggregate of this kind for so many reports."""
    return Aggregate(scheme) if kind == MEAN else RobustAggregate(scheme, kind, reports)


def check_kind(kind: str) -> None:
    """Raise ValueError unless there is an aggregate of this kind."""
    if kind not in AGGREGATES:
        raise ValueError(f"aggregate = {kind!r} must be one of {', '.join(map(repr, AGGREGATES))}")


def check_aggregate(kind: str, scheme: Scheme, reports: int) -> None:
    """Raise ValueError where an aggregate would mean nothing: too few reports about a weight, or alike.

    What a report says is found by making one, of a vector that is public.
    """
    check_kind(kind)
    if kind == MEAN:
        return
    wrong = f"aggregate = {kind!r} with scheme = {scheme.name!r}"
    if scheme.mechanism.chooses:
        raise ValueError(
            f"{wrong}: clients choose the weights that they report, so a liar chooses one about which it is "
            "alone; use aggregate = 'mean'"
        )
    task = Task(round=0, client=0, seed=0, dim=scheme.dim, bound=scheme.first_bound)
    x = np.sin(np.arange(1.0, scheme.dim + 1)) * scheme.first_bound / math.sqrt(scheme.dim)
    said = scheme.decode(scheme.encode(x.astype(np.float32), task, seeded_rng(0)), task)
    said = np.abs(said[said != 0])
    heard = reports * said.size / scheme.dim
    if heard < LEAST_HEARD:
        raise ValueError(
            f"{wrong}: of {reports} reports {heard:.1f} are about the same weight on average, and it takes "
            f"{LEAST_HEARD:g}: ask more clients per round, send more bytes, or use aggregate = 'mean'"
        )
    if kind == TRIMMED and reports * scheme.dim > _MOST_NUMBERS:
        raise ValueError(
            f"{wrong}: {reports:,} reports of {scheme.dim:,} weights would all be kept in memory until the "
            f"round ends; use {MEDIAN!r} or 'mean'"
        )
    if kind == TRIMMED and np.ptp(said) < 1e-5 * said.max():
        raise ValueError(
            f"{wrong}: all numbers in its reports have one size, and to trim them is to multiply their mean "
            f"by a constant; use {MEDIAN!r} or 'mean'"
        )
