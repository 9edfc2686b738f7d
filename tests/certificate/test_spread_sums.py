"""Sums on a grid: never below the exact ones, and close to them."""

import math
from fractions import Fraction

import pytest
from flint import arb, fmpq, fmpz, fmpz_poly
from shuffling import law_of_sum

from sqsgd.numerics import exact
from sqsgd.privacy import blanket as spread_sums
from sqsgd.privacy.blanket import GridLaw, SpreadSums

BITS, SPARE = 120, 60
CASES = {
    "rare": [(Fraction(1), Fraction(1, 50)), (Fraction(-7, 3), Fraction(1, 50))],
    "frequent": [(Fraction(1), Fraction(1, 2)), (Fraction(-11, 10), Fraction(1, 2))],
    "long falls": [(Fraction(1), Fraction(1, 10)), (Fraction(-900), Fraction(1, 10))],
    "two parts": [
        (Fraction(1), Fraction(1, 40)),
        (Fraction(2, 7), Fraction(1, 3)),
        (Fraction(-1, 3), Fraction(1, 3)),
        (Fraction(-9, 7), Fraction(1, 40)),
    ],
}


def ball(fraction):
    return arb(fmpq(fraction.numerator, fraction.denominator))


def sums(jumps, most):
    return SpreadSums(jumps=[(ball(s), ball(p)) for s, p in jumps], most=most, bits=BITS, spare=SPARE)


def exact_excess(jumps, count, threshold):
    still = (Fraction(0), 1 - sum(p for _, p in jumps))
    law = law_of_sum([*jumps, still], count)
    return sum(max(value - threshold, 0) * chance for value, chance in law.items())


def bounds(jumps, count):
    """(upper bound, exact) of E(W - t)₊ at thresholds from where it is likely to where it is rare."""
    found = []
    with exact.precision(BITS + 64):
        law = sums(jumps, count).of(count)
        for threshold in (Fraction(0), Fraction(1, 2), Fraction(3, 2), Fraction(count, 5), Fraction(3)):
            bound = law.excess(ball(threshold), BITS)
            found.append((bound, exact_excess(jumps, count, threshold)))
    return found


def too_small():
    """The cases in which the bound is below the exact value."""
    with exact.precision(BITS + 64):
        return [
            (name, count)
            for name, jumps in CASES.items()
            for count in (1, 2, 3, 5, 8)
            if not all(bound >= ball(exactly) for bound, exactly in bounds(jumps, count))
        ]


def test_the_excess_is_never_below_the_exact_one():
    assert too_small() == []


@pytest.mark.parametrize("fineness", [1, 4])
def test_it_is_not_below_on_coarse_grids_either(fineness, monkeypatch):
    """Then every sum is moved to coarser grids, and most jumps are split."""
    monkeypatch.setattr(spread_sums, "FINENESS", fineness)
    assert too_small() == []


def test_it_is_close_to_the_exact_one():
    for name, jumps in CASES.items():
        for count in (1, 5, 8):
            for bound, exactly in bounds(jumps, count):
                assert float(bound) <= (1.05 if name == "two parts" else 1.01) * float(exactly) + 1e-12


def lower_neighbour(law, exponent):
    """Like ``_coarser``, but odd points move down."""
    while law.exponent < exponent:
        points = {}
        for j, mass in enumerate(law.masses.coeffs()):
            points[(law.first + j) // 2] = points.get((law.first + j) // 2, fmpz(0)) + mass
        first = min(points)
        masses = fmpz_poly([points.get(first + j, fmpz(0)) for j in range(max(points) - first + 1)])
        law = GridLaw(exponent=law.exponent + 1, first=first, masses=masses, top=-(-law.top // 2))
    return law


def without_rest(self, threshold, bits):
    """Like ``excess``, but what is missing from the masses does not count."""
    whole = GridLaw(exponent=self.exponent, first=self.first, masses=self.masses, top=-(10**9))
    return EXCESS(whole, threshold, bits)


EXCESS = GridLaw.excess


def test_the_check_catches_steps_that_lose_something(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(spread_sums, "FINENESS", 1)
        patch.setattr(SpreadSums, "_coarser", staticmethod(lower_neighbour))
        assert too_small()
    with monkeypatch.context() as patch:
        patch.setattr(GridLaw, "excess", without_rest)
        assert too_small()
    with monkeypatch.context() as patch:
        patch.setattr(spread_sums, "_ceiling", lambda number: int(number.floor().unique_fmpz()) - 1)
        assert too_small()


def test_a_large_sum_is_that_of_the_normal_law():
    """10^6 jumps of ± 1: E(W - t)₊ = σ (φ(u) - u Φ(-u)), u = t / σ, up to 10^-3."""
    count, half = 10**6, Fraction(1, 2)
    with exact.precision(BITS + 64):
        law = sums([(Fraction(1), half), (Fraction(-1), half)], count).of(count)
        for u in (0.0, 1.0, 3.0, 5.0):
            normal = math.exp(-u * u / 2) / math.sqrt(2 * math.pi) - u * math.erfc(u / math.sqrt(2)) / 2
            found = float(law.excess(arb(1000 * u), BITS)) / 1000
            assert normal <= found * (1 + 1e-3), u  # the correction of the normal law is of order 1/n
            assert found <= 1.02 * normal, u
    assert law.masses.length() < 5000


def test_numbers_that_are_not_exact_are_refused():
    with exact.precision(64), pytest.raises(ArithmeticError, match="not exact"):
        spread_sums._ceiling(arb(1) / 3 * arb(2) ** 80)
