"""ScalarDP: exact privacy, unbiasedness, variance, the sampler against its law; shares of a budget."""

import math
from fractions import Fraction

import numpy as np
import pytest
from reference import g_test

from sqsgd import ScalarDP, seeded_rng
from sqsgd._internal.exact import total
from sqsgd.mechanisms.scalardp import equal_share


def law(s: ScalarDP, value: float) -> np.ndarray:
    return np.exp([s.log_density(symbol, value) for symbol in range(s.levels + 1)])


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("levels", [1, 2, 29, None])
def test_law_is_exactly_private_unbiased_and_has_the_closed_form_variance(epsilon, levels):
    s = ScalarDP(2.0, epsilon, levels)
    values = np.linspace(0, 2, 23)
    laws = np.array([law(s, value) for value in values])
    estimates = np.array([s.estimate(symbol) for symbol in range(s.levels + 1)])
    assert np.allclose(laws.sum(axis=1), 1.0)
    assert np.allclose(laws @ estimates, values, atol=1e-9 / epsilon)
    for value, p in zip(values, laws, strict=True):
        assert math.isclose(p @ estimates**2 - value**2, s.variance(value), rel_tol=1e-6)
    worst = np.log(laws.max(axis=0) / laws.min(axis=0)).max()
    assert worst <= epsilon * (1 + 1e-12)
    corners = np.array([law(s, 2.0 * k / s.levels) for k in range(s.levels + 1)])
    assert math.isclose(np.log(corners.max(axis=0) / corners.min(axis=0)).max(), epsilon, rel_tol=1e-9)
    wrong = corners + 0.02 * np.eye(s.levels + 1)  # keeps too often: must be caught
    assert np.log(wrong.max(axis=0) / wrong.min(axis=0)).max() > epsilon


@pytest.mark.parametrize(("epsilon", "levels"), [(1.0, 5), (3.0, None), (0.1, 1)])
@pytest.mark.parametrize("value", [-0.2, 0.0, 0.37, 1.0])
def test_many_symbols_have_the_law_of_single_ones(epsilon, levels, value):
    s, trials = ScalarDP(1.0, epsilon, levels), 100_000
    drawn = np.bincount(s.privatize_many(np.full(trials, value), seeded_rng(3)), minlength=s.levels + 1)
    assert g_test(drawn, trials * law(s, min(max(value, 0.0), 1.0))) > 1e-6


@pytest.mark.parametrize("epsilon", [400.0, 1e5])
def test_huge_budgets_do_not_overflow(epsilon):
    s, rng = ScalarDP(1.0, epsilon), seeded_rng(1)
    assert s.levels == 255
    assert abs(s.estimate(s.privatize(0.5, rng)) - 0.5) < 1 / 255
    assert 0 <= s.variance(0.5) < 1e-4
    assert math.isclose(s.log_density(0, 1.0), -epsilon, rel_tol=1e-9)
    assert s.log_density(255, 1.0) == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None])
def test_bad_values(value):
    with pytest.raises(ValueError, match="value"):
        ScalarDP(1.0, 1.0).privatize(value, seeded_rng(1))
    with pytest.raises(ValueError, match="symbol"):
        ScalarDP(1.0, 1.0).estimate(value)


@pytest.mark.parametrize(("epsilon", "parts"), [(400.0, 79), (0.1, 3), (1e5, 12345), (1.0, 10**6)])
def test_shares_never_add_up_to_more(epsilon, parts):
    share = equal_share(epsilon, parts)
    assert Fraction(share) * parts <= Fraction(epsilon)
    assert total(share, parts) <= epsilon
    assert share == pytest.approx(epsilon / parts, rel=1e-15)
