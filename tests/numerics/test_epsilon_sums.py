"""Sums of epsilons are exact, and are rounded against the spender."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sqsgd.numerics.epsilon_sums import (
    cost,
    from_units,
    limit,
    multiplied,
    rounded_down,
    rounded_up,
    to_units,
)

POSITIVE = st.floats(min_value=5e-324, max_value=1e300)


@given(st.lists(POSITIVE, max_size=30))
def test_sums_are_exact(numbers):
    assert from_units(sum(map(to_units, numbers))) == sum(map(Fraction, numbers), Fraction(0))


@given(st.fractions(min_value=0, max_value=10**30), POSITIVE, st.integers(1, 10**9))
def test_rounding_goes_the_safe_way_and_no_further(number, epsilon, count):
    up, down = rounded_up(number), rounded_down(number)
    assert Fraction(down) <= number <= Fraction(up)
    assert up == down or up == math.nextafter(down, math.inf)
    assert multiplied(epsilon, count) >= Fraction(epsilon) * count


def test_numbers_that_are_no_floats_are_rounded_against_the_spender():
    big = 2**53 + 1
    assert cost("epsilon", big) == 2**53 + 2
    assert limit("max_epsilon", big) == 2**53
    assert cost("epsilon", np.float32(0.1)) == limit("max_epsilon", np.float32(0.1)) == float(np.float32(0.1))
