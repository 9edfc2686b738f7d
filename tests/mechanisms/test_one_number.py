"""One private number: its exact law, and the exact coverage of the interval around the mean of many."""

import itertools
import math

import numpy as np
import pytest

from sqsgd import ScalarDP, seeded_rng
from sqsgd.mechanisms.one_number import CONFIDENCE, OneNumber, mean_of

EPSILONS = (0.1, 1.0, 2.0, 2.5, 4.0, 10.0)


def law(mechanism, value, bound):
    symbols = range(mechanism.scalar.levels + 1)
    x = np.array([value], np.float32)
    return np.exp([mechanism.log_density((np.array([each]),), x, bound) for each in symbols])


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_law_is_exact(epsilon):
    """The ratio is at most e^ε and attained; the estimate is unbiased; other values are moved to an end."""
    mechanism, bound = OneNumber(epsilon=epsilon), 5.0
    values = [*np.linspace(0, bound, 23), -7.0, 1e12]
    laws = np.array([law(mechanism, value, bound) for value in values])
    assert math.isclose(np.log(laws.max(axis=0) / laws.min(axis=0)).max(), epsilon, rel_tol=1e-9)
    estimates = [
        mechanism.estimate((np.array([each]),), bound)[0] for each in range(mechanism.scalar.levels + 1)
    ]
    inside = np.clip(np.float32(values), 0, bound)
    assert np.allclose(laws @ estimates, inside, atol=1e-6 / epsilon)
    assert (mechanism.privacy.epsilon, mechanism.privacy.notion, mechanism.privacy.arithmetic) == (
        epsilon, "local", "exact",
    )  # fmt: skip
    laws[0] = np.eye(len(estimates))[0]  # zero is never perturbed
    with pytest.raises(AssertionError), np.errstate(divide="ignore"):
        assert np.log(laws.max(axis=0) / laws.min(axis=0)).max() <= epsilon


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_what_is_drawn_has_that_law(epsilon):
    mechanism, rng, trials, x = OneNumber(epsilon=epsilon), seeded_rng(3), 4000, np.array([1.9], np.float32)
    drawn = [int(mechanism.randomize(x, 5.0, rng)[0][0]) for _ in range(trials)]
    counts, expected = np.bincount(drawn, minlength=mechanism.scalar.levels + 1), law(mechanism, 1.9, 5.0)
    deviations = (counts - trials * expected) / np.sqrt(trials * expected * (1 - expected))
    assert np.abs(deviations).max() < 5


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_refused(wrong):
    with pytest.raises(ValueError, match="x"):
        OneNumber(epsilon=1.0).randomize(np.array([wrong], np.float32), 1.0, seeded_rng(1))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_largest_variance_is_the_largest(epsilon):
    mechanism = OneNumber(epsilon=epsilon)
    found = max(mechanism.scalar.variance(value) for value in np.linspace(0, 1, 5001))
    assert found <= mechanism.largest_variance * (1 + 1e-12)
    assert math.isclose(found, mechanism.largest_variance, rel_tol=1e-5)
    assert math.isclose(mechanism.relative_error(0.5), 4 * mechanism.scalar.variance(0.5))


def coverage(mechanism, values, width=1.0):
    """The probability that the interval, ``width`` times as wide, holds the mean of the values: exactly.

    An estimate is a linear function of its symbol, so the mean depends on the sum of symbols alone, and the
    law of that sum is the convolution of theirs.
    """
    sums = np.ones(1)
    for value in values:
        sums = np.convolve(sums, law(mechanism, value, 1.0))
    first, last = (mechanism.scalar.estimate(each) for each in (0, mechanism.scalar.levels))
    slope, n = (last - first) / mechanism.scalar.levels, len(values)
    means = first + slope * np.arange(sums.size) / n
    half = width * mechanism.half_width(n, 1.0)
    return sums[np.abs(means - np.mean(values, dtype=np.float64)) <= half + 1e-12].sum()


def cohorts(n):
    """Equal values and unequal ones, at the ends and between levels."""
    yield from ([value] * n for value in (0.0, 0.013, 0.1, 0.25, 0.5, 0.9, 0.98, 1.0))
    yield [0.0] * (n // 2) + [1.0] * (n - n // 2)
    yield np.random.default_rng(n).uniform(size=n).round(3).tolist()


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_interval_covers(epsilon):
    mechanism = OneNumber(epsilon=epsilon)
    for n in (1, 2, 3, 10, 40):
        for values in cohorts(n):
            assert coverage(mechanism, values) >= CONFIDENCE, (n, values)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_an_interval_that_is_too_narrow_is_found(epsilon):
    """Hoeffding's and Chebyshev's give away a factor, but not more than three."""
    mechanism = OneNumber(epsilon=epsilon)
    cases = itertools.chain.from_iterable(cohorts(n) for n in (3, 10, 40))
    assert min(coverage(mechanism, values, width=0.3) for values in cases) < CONFIDENCE


def test_the_mean_is_unclamped_and_its_interval_within_the_range():
    mechanism = OneNumber(epsilon=1.0)
    ones = [(np.array([1]),)] * 400
    found = mean_of(mechanism, ones, 2.0)
    assert math.isclose(found.value, 2 * math.e / (math.e - 1))
    assert (found.low, found.high) == (2.0, 2.0)
    found = mean_of(mechanism, ones[:200] + [(np.array([0]),)] * 200, 2.0)
    assert math.isclose(found.value, 1.0)
    assert math.isclose(found.low, 1 - found.half_width)
    assert math.isclose(found.high, 1 + found.half_width)
    assert found.half_width == mechanism.half_width(400, 2.0) == 2 * mechanism.half_width(400, 1.0)


@pytest.mark.parametrize(("epsilon", "levels"), [(0.5, 2), (1.0, 2), (2.0, 2), (3.0, 1), (4.0, 1), (10.0, 1)])
def test_the_levels_are_well_chosen(epsilon, levels):
    """Two ends for a small budget, as many as ScalarDP has for a larger one: the intervals are narrower."""
    mechanism, other = OneNumber(epsilon=epsilon), OneNumber(epsilon=epsilon)
    other.__dict__["scalar"] = ScalarDP(1.0, epsilon, levels)
    assert (mechanism.scalar.levels == 1) == (levels != 1)
    for n in (3, 10, 100, 1000):
        assert mechanism.half_width(n, 1.0) < other.half_width(n, 1.0)
