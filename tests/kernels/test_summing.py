"""Sums over a vector, against exact ones."""

import math

import numpy as np
import pytest

from sqsgd.kernels.summing import square_sum, square_sums


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e38])
def test_squares_neither_underflow_nor_overflow(size, scale):
    x = (np.random.default_rng(size).uniform(-1, 1, size) * scale).astype(np.float32)
    assert math.isclose(square_sum(x), math.fsum(float(value) ** 2 for value in x), rel_tol=1e-13)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 64, 69])
def test_what_is_not_finite_is_not_lost(wrong, place):
    x = np.ones(70, np.float32)
    x[place] = wrong
    assert not math.isfinite(square_sum(x))


def test_rows_are_summed_as_single_vectors():
    x = np.random.default_rng(5).standard_normal((7, 100)).astype(np.float32)
    sums = np.empty(7)
    square_sums(x, sums)
    assert sums.tolist() == [square_sum(row) for row in x]
