"""Enclosures hold the true value; draws and sums of epsilons are exact, and rounded conservatively."""

import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
import reference
from flint import arb, fmpq
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedRng

from sqsgd._internal import checks, exact
from sqsgd.mechanisms.privquant import kept_law


def exact_cdf(dim, levels, threshold, keep):
    above, below = reference.densities(dim, levels, threshold, keep)
    total, cdf = Fraction(0), []
    for count in range(dim + 1):
        total += comb(dim, count) * (levels - 1) ** (dim - count) * (above if count >= threshold else below)
        cdf.append(total)
    assert total == 1
    return cdf


@pytest.mark.parametrize(
    ("dim", "levels", "threshold", "keep"),
    [
        (1, 2, 1, Fraction(3, 4)),  # the edge 1/4 is a multiple of 2^-64: no precision decides it
        (6, 3, 4, Fraction(9, 10)),
        (60, 2, 60, 1 - Fraction(1, 2**70)),  # the low side lies below the 64-bit grid
        (80, 2, 70, 1 - Fraction(1, 10**9)),
        (80, 5, 30, Fraction(2, 3)),
    ],
)
def test_draws_around_every_edge_are_those_of_the_exact_law(dim, levels, threshold, keep):
    cdf = exact_cdf(dim, levels, threshold, keep)
    sampler = kept_law(dim, levels, float("inf"), threshold, keep).sampler
    for edge in cdf[:-1]:
        first, rest = divmod(edge * 2**64, 1)
        second = int(rest * 2**64)
        for one in {max(int(first) - 1, 0), int(first), min(int(first) + 1, 2**64 - 1)}:
            for two in {max(second - 1, 0), second, min(second + 1, 2**64 - 1)}:
                rng = ScriptedRng(one, two, 2**63, 12345)
                low = sum(Fraction(word, 2 ** (64 * (i + 1))) for i, word in enumerate(rng.script))
                expected = next(count for count, value in enumerate(cdf) if low < value)
                assert sampler.draw(rng) == expected, (edge, one, two)


def test_an_undecidable_question_is_an_error(monkeypatch):
    monkeypatch.setattr(exact, "MOST_BITS", 512)
    with pytest.raises(ArithmeticError, match="undecided"):
        exact.settle(lambda: None)


@pytest.mark.parametrize("kept", [slice(None), slice(0, None, 2), slice(0)])
def test_draws_of_many_words_are_single_draws(kept):
    """Around every edge, with gaps in the table and without one; undecided words take further ones."""
    shares = [Fraction(1, 7), Fraction(1, 10**30), Fraction(2, 5), Fraction(1, 3)]
    edges = [sum(shares[: i + 1]) for i in range(4)]
    listed = [(i, fmpq(edge.numerator, edge.denominator)) for i, edge in enumerate(edges)]
    with exact.precision(192):
        sampler = exact.InverseCdf(4, lambda v: arb(([*listed, (4, fmpq(1))])[v][1]), [
            (v, arb(edge)) for v, edge in listed[kept]
        ])  # fmt: skip
    places = [int(edge * 2**64) for edge in edges] + [0, 2**64 - 1, 2**63]
    words = np.array([min(max(p + step, 0), 2**64 - 1) for p in places for step in range(-3, 4)], np.uint64)
    for further in (0, 2**63, 2**64 - 1):
        rng = ScriptedRng(*words.tolist(), *[further] * (3 * words.size))
        values = sampler.draw_many(words.size, rng)
        alone = [ScriptedRng(word, *[further] * 3) for word in words.tolist()]
        assert values.tolist() == [sampler.draw(each) for each in alone]
        assert rng.used == sum(each.used for each in alone) > words.size


# ---------------------------------------------------------------- sums of epsilons


POSITIVE = st.floats(min_value=5e-324, max_value=1e300)


@given(st.lists(POSITIVE, max_size=30))
def test_sums_are_exact(numbers):
    assert exact.from_units(sum(map(exact.to_units, numbers))) == sum(map(Fraction, numbers), Fraction(0))


@given(st.fractions(min_value=0, max_value=10**30))
def test_rounding_is_conservative_and_tight(number):
    up, down = exact.rounded_up(number), exact.rounded_down(number)
    assert Fraction(down) <= number <= Fraction(up)
    assert up == down or up == math.nextafter(down, math.inf)


@given(POSITIVE, st.integers(0, 10**9))
def test_totals_are_never_too_small(epsilon, reports):
    """They are the least such float; infinity stays infinity."""
    product, least = Fraction(epsilon) * reports, exact.total(epsilon, reports)
    assert least >= product
    assert least == 0 or math.nextafter(least, 0.0) < product
    assert exact.total(math.inf, reports) == math.inf


@given(POSITIVE, POSITIVE, st.integers(1, 1000))
def test_sums_are_rounded_up_and_parts_down(one, other, parts):
    """The parts of a difference or a quotient never exceed the whole."""
    assert exact.add_up(one, other) >= Fraction(one) + Fraction(other)
    assert Fraction(exact.take_away(one + other, other)) <= Fraction(one + other) - Fraction(other)
    assert Fraction(exact.divided(one, parts)) * parts <= Fraction(one)
    assert (exact.add_up(394.0, 6.0), exact.take_away(400.0, 6.0)) == (400.0, 394.0)


def test_inexact_integers_are_rounded_conservatively():
    big = 2**53 + 1
    assert exact.cost("epsilon", big) == 2**53 + 2
    assert checks.positive("max_epsilon", big) == 2**53
    narrow = np.float32(0.1)
    assert exact.cost("epsilon", narrow) == checks.positive("max_epsilon", narrow) == float(narrow)
