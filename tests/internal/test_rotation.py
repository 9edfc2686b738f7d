"""Rotations and sums equal their NumPy references and report non-finite values."""

import math

import numpy as np
import pytest
import reference
from random_words import NUMBERS, words

from sqsgd._internal.kernels.rotation import (
    add_scaled,
    narrow,
    rotate,
    rotate_rows,
    square_sum,
)


@pytest.mark.parametrize("exponent", [*range(15), 17])
def test_the_rounding_is_the_documented_one(exponent):
    """Scale, then strides 1, 2, 4, ..., each operation rounded to float32."""
    size = 1 << exponent
    x = (NUMBERS.standard_normal(size) * 10.0 ** NUMBERS.uniform(-42, 12, size)).astype(np.float32)
    signs, y = words(-(-size // 64), "u8"), np.empty(size, np.float32)
    assert rotate(x, signs, size**-0.5, y, 1e13)
    expected = x * np.float32(size**-0.5) * reference.signs_of(signs, size).astype(np.float32)
    for stride in (1 << power for power in range(exponent)):
        pairs = expected.reshape(-1, 2, stride)
        low, high = pairs[:, 0], pairs[:, 1]
        expected = np.stack([low + high, low - high], axis=1).reshape(-1)
    assert np.array_equal(y.view(np.uint32), expected.view(np.uint32))
    assert rotate(x, signs, size**-0.5, x, 1e13)  # in place
    assert np.array_equal(x, y)


@pytest.mark.parametrize("size", [2, 64, 1024, 32768])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, 2e13, -2e13])
def test_rotate_reports_what_is_not_finite_or_too_large(size, bad):
    signs, y = words(-(-size // 64), "u8"), np.empty(size, np.float32)
    for at in (0, size // 2, size - 1):
        x = np.full(size, 1e13, np.float32)
        assert rotate(x, signs, 1.0, y, 1e13)
        x[at] = bad
        assert not rotate(x, signs, 1.0, y, 1e13)


@pytest.mark.parametrize(
    ("width", "size"), [(1, 1), (20, 32), (64, 64), (100, 128), (3920, 4096), (5000, 8192)]
)
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_rows_are_rotated_like_single_vectors(width, size, rounds):
    rows, count, scale = 5, -(-size // 64), size**-0.5
    x = NUMBERS.standard_normal((rows, width)).astype(np.float32)
    x[3, width // 2] = np.nan
    signs = words(rounds * rows * count, "u8").reshape(rounds, rows, count)
    y, fine = np.empty((rows, size), np.float32), np.empty(rows, np.bool_)
    rotate_rows(x, signs, scale, y, 1e13, fine)
    assert fine.tolist() == [True, True, True, False, True]
    single = np.zeros((rows, size), np.float32)
    single[:, :width] = x
    for i, row in enumerate(single):
        for own in signs:
            rotate(row, own[i], scale, row, 1e13)
    assert np.array_equal(y, single, equal_nan=True)


@pytest.mark.parametrize("scale", [1e-300, 1e-50, 1.0, 1e60, 1e300])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_narrowing_keeps_every_range(size, scale):
    """Estimates far beyond float32 come back through it, and are added to what is there."""
    y, x, total = NUMBERS.standard_normal(size) * scale, np.empty(size, np.float32), np.full(size, scale)
    factor = narrow(y, y.view(np.int64), x)
    assert factor == np.abs(y).max()
    assert np.array_equal(x, (y / factor).astype(np.float32))
    add_scaled(x, factor, total)
    assert np.array_equal(total, scale + x.astype(np.float64) * factor)


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
