"""Stochastic rounding: unbiased, monotone, and with the stated probabilities."""

import math

import numpy as np
import pytest
from scipy import stats

from sqsgd import seeded_rng
from sqsgd._internal.geometry import log_rounding_chance, round_unbiased, rounding_chance


@pytest.mark.parametrize("position", [-1.75, 0.0, 0.2, 3.5, 7.999])
def test_each_neighbour_has_its_chance(position):
    codes = round_unbiased(np.full(40_000, position), seeded_rng(1))
    below = math.floor(position)
    assert set(codes.tolist()) <= {below, below + 1}
    above = float(rounding_chance(np.array([position]), [below + 1])[0])
    assert above == pytest.approx(position - below)
    assert stats.binomtest(int((codes > below).sum()), codes.size, above).pvalue > 1e-6


def test_under_the_same_numbers_positions_stay_in_order_and_near():
    """The basis of cpSGD's sensitivities: two positions at distance d end at most ceil(d) apart."""
    lower = np.random.default_rng(1).uniform(-4, 4, 20_000)
    for apart in (0.0, 0.3, 1.0, 2.5):
        ends = [round_unbiased(lower + shift, seeded_rng(2)) for shift in (0.0, apart)]
        gap = ends[1] - ends[0]
        assert 0 <= gap.min() <= gap.max() <= math.ceil(apart + 1e-9)


def test_the_chance_of_all_together():
    position = np.array([0.25, 1.5])
    assert log_rounding_chance(position, [0, 2]) == pytest.approx(math.log(0.75 * 0.5))
    assert log_rounding_chance(position, [2, 2]) == -math.inf
