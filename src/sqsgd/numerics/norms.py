"""The Euclidean norm of float32 vectors, and clipping to a radius."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sqsgd import checks
from sqsgd.checks import Vector

Vectors = npt.NDArray[np.float32]
Norms = npt.NDArray[np.float64]


def l2_norm(x: Vector) -> float:
    """The Euclidean norm, in float64: no square underflows or overflows, and all vectors take as long."""
    from sqsgd.kernels.rotation import square_sum

    return math.sqrt(square_sum(checks.shaped("x", x, x.size)))


def row_norms(x: Vectors) -> Norms:
    """``l2_norm`` of each row, to the last bit; a contiguous float32 matrix."""
    from sqsgd.kernels.rotation import square_sums

    sums = np.empty(len(x))
    square_sums(x, sums)
    return np.sqrt(sums)


def clipped(x: Vector, radius: float | None) -> Vector:
    """x, scaled down to l2 norm ``radius`` (C_t) if x is longer; x itself without a radius."""
    if radius is None:
        return x
    norm = l2_norm(x)
    with np.errstate(invalid="ignore"):  # NaN and infinity become NaN, which the next check rejects
        return x * np.float32(1.0 if norm <= radius else radius / norm)
