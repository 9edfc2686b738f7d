"""Shares of a budget never add up to more than the budget."""

from fractions import Fraction

import pytest

from sqsgd._internal.exact import total
from sqsgd.mechanisms.scalardp import equal_share


@pytest.mark.parametrize(("epsilon", "parts"), [(400.0, 79), (0.1, 3), (1e5, 12345), (1.0, 10**6)])
def test_shares_never_add_up_to_more(epsilon, parts):
    share = equal_share(epsilon, parts)
    assert Fraction(share) * parts <= Fraction(epsilon)
    assert total(share, parts) <= epsilon
    assert share == pytest.approx(epsilon / parts, rel=1e-15)
