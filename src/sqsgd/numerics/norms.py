"""The Euclidean norm of float32 vectors, and clipping to a radius."""

from __future__ import annotations

import math

import numpy as np

from sqsgd.checks import Vector

_PART = 1 << 13  # float64 numbers that stay in cache


def l2_norm(x: Vector) -> float:
    """The Euclidean norm, in float64 where float32 squares would underflow or overflow.

    Both are computed, so that the time does not tell whether a vector is zero.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        square, wide = float(np.dot(x, x)), 0.0
        for start in range(0, x.size, _PART):
            part = x[start : start + _PART].astype(np.float64)
            wide += float(np.dot(part, part))
    return math.sqrt((wide, square)[1e-30 < square < 1e37])


def clipped(x: Vector, radius: float | None) -> Vector:
    """x, scaled down to l2 norm ``radius`` (C_t) if x is longer; x itself without a radius."""
    if radius is None:
        return x
    norm = l2_norm(x)
    with np.errstate(invalid="ignore"):  # NaN and infinity become NaN, which the next check rejects
        return x * np.float32(1.0 if norm <= radius else radius / norm)
