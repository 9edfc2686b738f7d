"""Sums of epsilons are exact and rounded conservatively."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sqsgd._internal.exact import (
    add_up,
    cost,
    divided,
    from_units,
    limit,
    rounded_down,
    rounded_up,
    take_away,
    to_units,
    total,
)

POSITIVE = st.floats(min_value=5e-324, max_value=1e300)


@given(st.lists(POSITIVE, max_size=30))
def test_sums_are_exact(numbers):
    assert from_units(sum(map(to_units, numbers))) == sum(map(Fraction, numbers), Fraction(0))


@given(st.fractions(min_value=0, max_value=10**30))
def test_rounding_is_conservative_and_tight(number):
    up, down = rounded_up(number), rounded_down(number)
    assert Fraction(down) <= number <= Fraction(up)
    assert up == down or up == math.nextafter(down, math.inf)


@given(POSITIVE, st.integers(0, 10**9))
def test_totals_are_never_too_small(epsilon, reports):
    """They are the least such float; infinity stays infinity."""
    exact, least = Fraction(epsilon) * reports, total(epsilon, reports)
    assert least >= exact
    assert least == 0 or math.nextafter(least, 0.0) < exact
    assert total(math.inf, reports) == math.inf


def test_a_total_is_above_the_product_of_floats_where_that_is_rounded_down():
    """Many float products of 1 to 199 reports and these six epsilons are too small."""
    pairs = [(epsilon, reports) for epsilon in (0.1, 0.3, 1.1, 2.7, 5.6, 400.1) for reports in range(1, 200)]
    below = [pair for pair in pairs if pair[0] * pair[1] < Fraction(pair[0]) * pair[1]]
    assert len(below) > 400
    assert all(total(*pair) == math.nextafter(pair[0] * pair[1], math.inf) for pair in below)


@given(POSITIVE, POSITIVE, st.integers(1, 1000))
def test_sums_are_rounded_up_and_parts_down(one, other, parts):
    """The parts of a difference or a quotient never exceed the whole."""
    assert add_up(one, other) >= Fraction(one) + Fraction(other)
    assert Fraction(take_away(one + other, other)) <= Fraction(one + other) - Fraction(other)
    assert Fraction(divided(one, parts)) * parts <= Fraction(one)
    assert (add_up(394.0, 6.0), take_away(400.0, 6.0)) == (400.0, 394.0)


def test_inexact_integers_are_rounded_conservatively():
    big = 2**53 + 1
    assert cost("epsilon", big) == 2**53 + 2
    assert limit("max_epsilon", big) == 2**53
    assert cost("epsilon", np.float32(0.1)) == limit("max_epsilon", np.float32(0.1)) == float(np.float32(0.1))
