"""Averages over the coordinates of a rotated vector, which are close to Gaussian."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

_POINTS = 4096
_FIRST = 2048  # this many of the largest coordinates are summed one by one, the rest by their density
_NORMAL = NormalDist()


@lru_cache(maxsize=1)
def normal_points() -> npt.NDArray[np.float64]:
    """Midpoint quantiles of the standard normal, scaled to variance one."""
    points = np.array([_NORMAL.inv_cdf((i + 0.5) / _POINTS) for i in range(_POINTS)])
    points /= math.sqrt(float(np.mean(points**2)))
    points.flags.writeable = False
    return points


def kept_share(reach: float) -> float:
    """E[y clamp(y)] for y ~ N(0, 1) clamped to ± reach; by Stein's identity P(|y| < reach)."""
    return math.erf(reach / math.sqrt(2))


@lru_cache(maxsize=64)
def _tops(dim: int) -> npt.NDArray[np.float64]:
    """Expected sums of the largest 1, 2, ... magnitudes of ``dim`` standard normal numbers."""
    first = min(dim, _FIRST)
    chances = [(i + 0.625) / (dim + 0.25) for i in range(first)]  # Blom's plotting positions
    return np.cumsum([-_NORMAL.inv_cdf(chance / 2) for chance in chances])


def largest_sum(dim: int, count: int) -> float:
    """E of the sum of the ``count`` largest magnitudes of a uniform unit vector.

    Computed for normal numbers and divided by their mean length, which is independent of the direction.
    Beyond the first ones, magnitudes above t sum to dim · 2 φ(t).

    >>> round(largest_sum(4096, 4096) / (2 * 4096 / math.pi) ** 0.5, 3)
    1.0
    """
    tops = _tops(dim)
    total = float(tops[min(count, tops.size) - 1])
    if count > tops.size:
        total += 2 * dim * (_density(count / dim) - _density(tops.size / dim))
    length = math.sqrt(2) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2))
    return total / length


def _density(share: float) -> float:
    """φ at the point that this share of magnitudes exceeds."""
    return _NORMAL.pdf(-_NORMAL.inv_cdf(share / 2))
