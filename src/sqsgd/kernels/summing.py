"""Sums over a vector, in float64."""

from __future__ import annotations

import numpy as np

from sqsgd.kernels.compiling import compiled


@compiled
def square_sum(x):
    """Σ x², as 64 interleaved sums: a single one cannot be vectorised, because additions do not commute."""
    sums = np.zeros(64)
    whole = x.size - x.size % 64
    for start in range(0, whole, 64):
        for i in range(64):
            value = np.float64(x[start + i])
            sums[i] += value * value
    for i in range(whole, x.size):
        value = np.float64(x[i])
        sums[i - whole] += value * value
    return sums.sum()


@compiled
def square_sums(x, sums):
    """``square_sum`` of each row."""
    for i in range(x.shape[0]):
        sums[i] = square_sum(x[i])
