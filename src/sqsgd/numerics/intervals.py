"""The mean of a few repetitions and its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from flint import arb

from sqsgd.numerics.exact import START_BITS, precision

FEWEST = 3
"""The fewest values with an interval: the one of two values is so wide (t = 12.7) that it misleads."""


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the half-width of its 95 % Student t interval (NaN for fewer than ``FEWEST`` values).

    >>> mean_interval([1.0, 2.0, 3.0])
    (2.0, 2.484...)
    """
    count = len(values)
    if count == 0:
        return math.nan, math.nan
    mean = math.fsum(values) / count
    if count < FEWEST:
        return mean, math.nan
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, t_quantile(0.975, count - 1) * deviation / math.sqrt(count)


@lru_cache
def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t for a probability above one half, by bisection.

    >>> round(t_quantile(0.975, 2), 4), round(t_quantile(0.975, 30), 4)
    (4.3027, 2.0423)
    """
    low, high = 0.0, 1.0
    while _t_below(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, freedom) < probability else (low, middle)
    return high


def _t_below(point: float, freedom: float) -> float:
    """P(T <= point) for point >= 0: 1 - I_x(freedom / 2, 1/2) / 2 with x = freedom / (freedom + point²)."""
    with precision(START_BITS):
        x = 1 / (1 + arb(point) ** 2 / freedom)
        return float(1 - x.beta_lower(arb(freedom) / 2, arb(1) / 2, regularized=1) / 2)
