"""Averages over the coordinates of a rotated vector, which are close to Gaussian."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

_POINTS = 4096


@lru_cache(maxsize=1)
def normal_points() -> npt.NDArray[np.float64]:
    """Midpoint quantiles of the standard normal, scaled to variance one."""
    normal = NormalDist()
    points = np.array([normal.inv_cdf((i + 0.5) / _POINTS) for i in range(_POINTS)])
    points /= math.sqrt(float(np.mean(points**2)))
    points.flags.writeable = False
    return points


def kept_share(reach: float) -> float:
    """E[y clamp(y)] for y ~ N(0, 1) clamped to ± reach; by Stein's identity P(|y| < reach)."""
    return math.erf(reach / math.sqrt(2))
