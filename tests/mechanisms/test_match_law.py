"""Table 1, the optimal threshold against brute force, and the sampler's table against exact sums."""

import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from flint import arb

from sqsgd import PrivQuant
from sqsgd._internal import exact
from sqsgd.mechanisms.privquant import best_threshold, boundary_law

# n, K, ε, τ*, 1-p*, m*, MSE* at 0 and U, m by the paper's rule, its MSE at 0 and U (as printed)
TABLE_1 = [
    (512, 2, 400, 512, "2.6e-20", "1.0000", "1.00", "0", "1.0000", "1.00", "0"),
    (512, 3, 400, 471, "2.3e-03", "0.8780", "0.106", "0.245", "0.8449", "0.145", "0.328"),
    (512, 8, 400, 335, "1.3e-03", "0.6043", "0.498", "1.12", "0.5739", "0.590", "1.30"),
    (512, 16, 400, 263, "2.1e-03", "0.4804", "0.860", "1.93", "0.4543", "1.009", "2.20"),
    (512, 16, 390, 259, "7.8e-04", "0.4727", "0.901", "2.01", "0.4481", "1.048", "2.27"),
    (512, 32, 400, 210, "2.7e-03", "0.3902", "1.42", "2.98", "0.3670", "1.67", "3.39"),
    (512, 128, 400, 142, "7.5e-04", "0.2715", "3.35", "6.03", "0.2540", "3.92", "6.85"),
    (8192, 2, 2000, 6827, "3.4e-04", "0.6666", "2.25", "1.25", "0.6365", "2.47", "1.47"),
    (8192, 3, 2000, 5529, "4.2e-04", "0.5122", "1.24", "2.19", "0.4870", "1.44", "2.50"),
    (8192, 16, 2000, 2352, "1.3e-04", "0.2396", "5.02", "8.18", "0.2254", "5.78", "9.19"),
    (8192, 128, 2000, 1041, "3.0e-04", "0.1202", "20.6", "27.9", "0.1120", "24.0", "31.9"),
]


def printed(value: float, like: str) -> str:
    """The value with as many decimals as a printed one."""
    if "e" in like:
        return f"{value:.1e}"
    return f"{value:.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: "-".join(map(str, row[:3])))
def test_table_1_to_its_printed_digits(row):
    dim, levels, epsilon, threshold, drop, *numbers = row
    best, paper = PrivQuant(dim, levels, epsilon), PrivQuant(dim, levels, epsilon, rule="paper")
    zero, edge = np.zeros(dim), np.ones(dim)
    got = []
    for q in (best, paper):
        got += [q.scale, q.variance(zero, 1.0)[0], q.variance(edge, 1.0)[0]]
    assert best.threshold == threshold
    assert printed(best.drop, drop) == drop
    assert [printed(value, like) for value, like in zip(got, numbers, strict=True)] == numbers


def brute_force_scale(dim: int, levels: int, epsilon: float, threshold: int) -> Fraction:
    """m on the boundary, with e^ε as a rational to fifty digits."""
    with exact.precision(400):
        power = Fraction(int((arb(epsilon).exp() * arb(2) ** 200).floor().unique_fmpz()), 2**200)
    weights = [comb(dim, count) * (levels - 1) ** (dim - count) for count in range(dim + 1)]
    high, low = sum(weights[threshold:]), sum(weights[:threshold])
    edge = comb(dim - 1, threshold - 1) * (levels - 1) ** (dim - threshold)
    return edge * (power - 1) / (low + power * high)


@pytest.mark.parametrize("dim", [1, 2, 3, 6, 11, 30])
@pytest.mark.parametrize("levels", [2, 3, 5, 16])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 10.0, 60.0])
def test_the_threshold_is_the_best_of_all(dim, levels, epsilon):
    scales = [brute_force_scale(dim, levels, epsilon, tau) for tau in range(1, dim + 1)]
    law = boundary_law(dim, levels, epsilon)
    assert law.threshold == best_threshold(dim, levels, epsilon) == 1 + scales.index(max(scales))
    assert math.isclose(law.scale, float(max(scales)), rel_tol=1e-12)
    assert math.isclose(law.loss, float(1 - max(scales)), rel_tol=1e-12)
