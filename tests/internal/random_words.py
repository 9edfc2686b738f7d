"""Random inputs for the kernels' tests: vectors, and words of every width."""

import numpy as np

NUMBERS = np.random.default_rng(20260101)


def words(count, kind):
    return NUMBERS.integers(0, 2 ** (8 * np.dtype(kind).itemsize), count, dtype=kind)
