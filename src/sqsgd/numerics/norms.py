"""The Euclidean norm of float32 vectors, and clipping to a radius."""

from __future__ import annotations

import math

import numpy as np

from sqsgd.checks import Vector


def l2_norm(x: Vector) -> float:
    """The Euclidean norm, in float64 where float32 squares would underflow or overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(x, x))
    if 1e-30 < square < 1e37:
        return math.sqrt(square)
    return float(np.linalg.norm(x.astype(np.float64)))


def clipped(x: Vector, radius: float | None) -> Vector:
    """x, scaled down to l2 norm ``radius`` (C_t) if x is longer. May return x itself."""
    if radius is None:
        return x
    norm = l2_norm(x)
    with np.errstate(invalid="ignore"):  # NaN and infinity become NaN, which the next check rejects
        return x if norm <= radius else x * np.float32(radius / norm)
