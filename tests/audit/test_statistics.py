"""The audit's statistics against SciPy."""

import math

import numpy as np
import pytest
import reference
from scipy import stats

from sqsgd.audit._statistics import (
    chance_of_mean,
    chi_square_tail,
    g_test,
    independence_test,
    largest_share,
    least_share,
    normal_tails,
    share_limits,
)


@pytest.mark.parametrize("trials", [1, 40, 10_000, 1_000_000])
@pytest.mark.parametrize("level", [0.05, 1e-5])
def test_confidence_limits(trials, level):
    for successes in {0, 1, trials // 3, trials - 1, trials}:
        low, high = least_share(successes, trials, level), largest_share(successes, trials, level)
        due = stats.beta.ppf(level, successes, trials - successes + 1) if successes else 0.0
        assert low == pytest.approx(due, rel=1e-6)
        assert low <= due
        due = stats.beta.isf(level, successes + 1, trials - successes) if successes < trials else 1.0
        assert high == pytest.approx(due, rel=1e-6)
        assert high >= due


@pytest.mark.parametrize("trials", [1, 40, 2_000, 1_000_000])
@pytest.mark.parametrize("level", [0.05, 1e-8])
def test_many_limits_are_outside_the_exact_ones(trials, level):
    """Equal to Clopper and Pearson's where nothing or everything succeeded, and not much wider elsewhere."""
    successes = np.unique([0, 1, trials // 3, trials - 1, trials])
    low, high = share_limits(successes, trials, level)
    for at, below, above in zip(successes.tolist(), low, high, strict=True):
        exact = least_share(at, trials, level), largest_share(at, trials, level)
        assert below <= exact[0] + 1e-11  # the exact limits are rounded outwards themselves
        assert exact[1] <= above + 1e-11
        if at == 0:
            due = -math.expm1(math.log(level) / trials)
            assert due <= above == pytest.approx(due, rel=1e-8)
        elif at < trials:
            share = at / trials
            assert share - below <= 1.6 * (share - exact[0])
            assert above - share <= 1.6 * (exact[1] - share)


def test_tails():
    for statistic, freedom in ((3.0, 1), (2500.0, 2047), (80.0, 10)):
        assert chi_square_tail(statistic, freedom) == pytest.approx(
            stats.chi2.sf(statistic, freedom), rel=1e-9
        )
    assert chi_square_tail(0.0, 3) == chi_square_tail(9.0, 0) == 1.0
    assert chi_square_tail(math.inf, 3) == 0.0
    assert normal_tails(-2.0) == pytest.approx(2 * stats.norm.sf(2.0))


def test_g_test():
    numbers = np.random.default_rng(1)
    law = numbers.dirichlet(np.full(30, 5.0))
    for _ in range(20):
        counts = numbers.multinomial(3000, law)
        assert g_test(counts, 3000 * law)[0] == pytest.approx(reference.g_test(counts, 3000 * law), rel=1e-9)
    assert g_test([90, 10], [50, 50])[0] < 1e-12
    assert g_test([99, 1], [100, 0])[0] == g_test([0, 0, 50], [25.0, 25.0, 0.0])[0] == 0.0
    assert g_test([999, 1], [1000, 1e-9])[0] == pytest.approx(2e-9)


def test_independence():
    assert independence_test([[500, 100], [100, 500]])[0] < 1e-12
    assert independence_test([[500, 500, 1], [510, 490, 0]])[0] > 0.1
    assert independence_test([[5, 0], [9, 0]]) == (1.0, 0)


def test_the_chance_of_a_mean_is_never_too_small():
    numbers = np.random.default_rng(2)
    means = (5.0 * (numbers.random((4000, 200)) < 0.2)).mean(axis=1)
    chances = np.array([chance_of_mean(mean, 5.0, 200) for mean in means])
    for level in (0.3, 0.1, 0.01):
        assert np.mean(chances <= level) <= level
    assert chance_of_mean(6.0, 5.0, 10) == 0.0


def test_a_position_that_always_matches_survives_rounding():
    """96 of 96 matches at one position, m / (137 * 96) on average: the quotients may round above one."""
    for matches in range(1, 96 * 137 + 1):
        usual = matches / 137 / 96
        chance = chance_of_mean(96 / (96 * usual), 1 / usual, 96)
        assert chance == pytest.approx(min(1.0, 2 * usual**96), rel=1e-6, abs=1e-300), matches
