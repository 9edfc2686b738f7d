"""One number as a report, and the mean of many such numbers with an interval around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout
from sqsgd.core import Estimate, Mechanism, Privacy
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.randomness import Rng

CONFIDENCE = 0.95
_TWO_LEVELS_UNTIL = 2.5
"""Epsilon up to which a number is best rounded to one of the two ends of its range."""


@final
@dataclass(frozen=True, kw_only=True)
class OneNumber(Mechanism):
    """A vector of one number in [0, bound], by ScalarDP. Numbers outside are moved to the nearer end.

    Guarantees
    ----------
    * Exactly ``epsilon``-LDP, and unbiased, as ScalarDP:
      tests/mechanisms/test_one_number.py::test_the_law_is_exact.

    >>> round(OneNumber(epsilon=1.0).half_width(100, maximum=1.0), 3)  # around the mean of 100 numbers
    0.294
    """

    epsilon: float
    dim: int = 1

    def __post_init__(self) -> None:
        checks.real("epsilon", self.epsilon, 1e-6, 1e6)

    @cached_property
    def scalar(self) -> ScalarDP:
        """The number over its bound."""
        return ScalarDP(1.0, self.epsilon, 1 if self.epsilon < _TWO_LEVELS_UNTIL else None)

    @property
    def identity(self) -> str:
        return self.scalar.identity

    @property
    def layout(self) -> Layout:
        return (Column(1, self.scalar.levels + 1),)

    @property
    def privacy(self) -> Privacy:
        return Privacy(epsilon=self.scalar.epsilon, notion="local")

    @staticmethod
    def _share(x: Vector, bound: float) -> float:
        value = float(checks.vector("x", x, 1)[0])
        return min(max(value, 0.0), bound) / bound

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        return (np.array([self.scalar.privatize(self._share(x, bound), rng)], np.uint32),)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return np.array([bound * self.scalar.estimate(int(columns[0][0]))])

    def relative_error(self, share: float) -> float:
        return self.scalar.variance(share) / share**2

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        return self.scalar.log_density(int(columns[0][0]), self._share(x, bound))

    @cached_property
    def largest_variance(self) -> float:
        """The largest variance of an estimate, for numbers in [0, 1]. Between two levels it is concave."""
        levels, odds = self.scalar.levels, math.exp(-self.epsilon)
        gain, whole = -math.expm1(-self.epsilon), 1 + levels * odds
        shift = odds * levels * (levels + 1) / 2
        peaks = (min(max(((j + 0.5) * whole - shift) / gain, j), j + 1) for j in range(levels))
        return max(self.scalar.variance(peak / levels) for peak in peaks)

    def half_width(self, answers: int, maximum: float) -> float:
        """Half the width of an interval that holds the mean of the numbers with ``CONFIDENCE`` or more.

        It is the smaller of Hoeffding's for estimates within their range, and Chebyshev's for their largest
        variance. It depends on no answer, so that the smaller one may be chosen. docs/proofs/evaluation.md
        """
        miss = 1.0 - CONFIDENCE
        width = self.scalar.estimate(self.scalar.levels) - self.scalar.estimate(0)
        hoeffding = width * math.sqrt(math.log(2 / miss) / (2 * answers))
        chebyshev = math.sqrt(self.largest_variance / (answers * miss))
        return maximum * min(hoeffding, chebyshev)


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of estimates, and an interval for the mean of the numbers themselves.

    Guarantees
    ----------
    * The interval holds the mean of the numbers that were reported, with probability 0.95 or more, whatever
      they are, up to their rounding to float32:
      tests/mechanisms/test_one_number.py::test_the_interval_covers.
    """

    value: float
    """Unbiased. It may lie outside the range of the numbers; the interval does not."""
    low: float
    high: float
    half_width: float


def mean_of(mechanism: OneNumber, columns: Sequence[Columns], maximum: float) -> Mean:
    """The mean of at least one report of numbers in [0, maximum]."""
    value = math.fsum(float(mechanism.estimate(each, maximum)[0]) for each in columns) / len(columns)
    half = mechanism.half_width(len(columns), maximum)
    low, high = (min(max(end, 0.0), maximum) for end in (value - half, value + half))
    return Mean(value=value, low=low, high=high, half_width=half)
