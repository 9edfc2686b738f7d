"""The audit's statistics against a library, and that its lower bound is one."""

import math

import numpy as np
import pytest
import reference
from scipy import stats

from sqsgd.privacy.audit.distinguishing import Scores, lower_bound
from sqsgd.privacy.audit.everywhere import everywhere
from sqsgd.privacy.audit.statistics import (
    chance_of_mean,
    chi_square_tail,
    g_test,
    incomplete_beta,
    independence_test,
    largest_share,
    least_share,
    normal_tails,
)
from sqsgd.randomness import secure_rng, seeded_rng


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


@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 8), (500, 2), (40_000, 60_000)])
def test_incomplete_beta(a, b):
    for p in (0.0, 1e-9, 0.3, 0.399, 0.401, 0.9, 1.0):
        assert incomplete_beta(p, a, b) == pytest.approx(stats.beta.cdf(p, a, b), rel=1e-9, abs=1e-300)


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


def responses(epsilon, count, numbers):
    """Scores of randomised response over four codes, from inputs 0 and 1."""
    law = np.array([math.exp(epsilon), 1, 1, 1]) / (math.exp(epsilon) + 3)
    counts = [numbers.multinomial(count, np.roll(law, which)).astype(float) for which in (0, 1)]
    return Scores(values=np.array([epsilon, -epsilon, 0.0, 0.0]), first=counts[0], second=counts[1])


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_the_lower_bound_is_one_and_comes_near(epsilon):
    numbers = np.random.default_rng(3)
    bounds = np.array(
        [
            lower_bound(responses(epsilon, 2000, numbers), responses(epsilon, 2000, numbers), 0.025)
            for _ in range(200)
        ]
    )
    assert np.mean(bounds > epsilon) <= 0.05
    many = lower_bound(responses(epsilon, 10**6, numbers), responses(epsilon, 10**6, numbers), 1e-5)
    assert 0.95 * epsilon < many < epsilon


def test_the_lower_bound_with_delta_and_without_luck():
    numbers = np.random.default_rng(4)
    halves = [responses(4.0, 10**5, numbers) for _ in range(2)]
    assert lower_bound(*halves, 1e-5, delta=0.5) < lower_bound(*halves, 1e-5) - 0.5
    assert lower_bound(*halves, 1e-5, delta=0.99) < 0
    nothing = Scores(values=np.zeros(1), first=np.full(1, 9.0), second=np.full(1, 9.0))
    assert lower_bound(nothing, nothing, 1e-5, delta=0.9) == -math.inf


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_drawing_everywhere():
    drawn = everywhere(secure_rng, lambda rng, which: [rng.take(16).tobytes()])
    assert len(drawn.pieces) == len(set(drawn.pieces)) == 13
    assert drawn.refused == []
    refused = everywhere(lambda: seeded_rng(1), lambda rng, which: [rng.take(16).tobytes()])
    assert refused.refused == ["os.fork", "multiprocessing"]
    assert len(refused.pieces) - len(set(refused.pieces)) == 3
