"""Shares of a budget never add up to more than it."""

from fractions import Fraction

import pytest

from sqsgd.mechanisms.budget_split import add_up, equal_share, take_away
from sqsgd.numerics.epsilon_sums import multiplied


@pytest.mark.parametrize(("epsilon", "parts"), [(400.0, 79), (0.1, 3), (1e5, 12345), (1.0, 10**6)])
def test_shares_never_add_up_to_more(epsilon, parts):
    share = equal_share(epsilon, parts)
    assert Fraction(share) * parts <= Fraction(epsilon)
    assert multiplied(share, parts) <= epsilon
    assert share == pytest.approx(epsilon / parts, rel=1e-15)


def test_sums_are_rounded_up_and_differences_down():
    """Against exact fractions: 0.1 + 0.2 is above the float 0.3, and 0.3 - 0.1 below what is left."""
    assert Fraction(add_up(0.1, 0.2)) >= Fraction(0.1) + Fraction(0.2)
    assert Fraction(take_away(0.3, 0.1)) <= Fraction(0.3) - Fraction(0.1)
    assert add_up(394.0, 6.0) == 400.0
    assert take_away(400.0, 6.0) == 394.0
