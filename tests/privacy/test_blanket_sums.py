"""Sums on a grid are never below the exact ones; cells cover the law of the users who hide the target."""

from fractions import Fraction
from math import comb

import pytest
from flint import arb, fmpq, fmpz, fmpz_poly
from shuffling import law_of_sum

from sqsgd._internal import exact
from sqsgd.privacy import blanket
from sqsgd.privacy.blanket import GridLaw, SpreadSums, count_cells

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


@pytest.mark.parametrize("fineness", [blanket.FINENESS, 1, 4])
def test_the_excess_is_never_below_the_exact_one(fineness, monkeypatch):
    """On coarse grids every sum is moved to coarser ones, and most jumps are split."""
    monkeypatch.setattr(blanket, "FINENESS", fineness)
    assert too_small() == []


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
        patch.setattr(blanket, "FINENESS", 1)
        patch.setattr(SpreadSums, "_coarser", staticmethod(lower_neighbour))
        assert too_small()
    with monkeypatch.context() as patch:
        patch.setattr(GridLaw, "excess", without_rest)
        assert too_small()
    with monkeypatch.context() as patch:
        patch.setattr(blanket, "_ceiling", lambda number: int(number.floor().unique_fmpz()) - 1)
        assert too_small()


def uncovered(trials, share, negligible, cells):
    """The cells whose stated probability is below the exact one."""
    below, found = cells
    starts = [m for m, _ in found]

    def chance(first, last):
        terms = (comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(first - 1, last - 1))
        total = sum(terms, Fraction(0))
        return arb(fmpq(total.numerator, total.denominator))

    ends = [*starts[1:], trials + 2]
    wrong = [m for (m, stated), end in zip(found, ends, strict=True) if not stated.upper() >= chance(m, end)]
    return wrong + ([0] if not below >= chance(1, starts[0]) or not below <= negligible else [])


@pytest.mark.parametrize(
    ("trials", "share"), [(0, (1, 2)), (1, (9, 10)), (30, (1, 7)), (400, (1, 3)), (300, (1, 150))]
)
def test_cells_cover_the_law(trials, share):
    with exact.precision(192):
        for negligible in (arb("1e-3"), arb("1e-12")):
            cells = count_cells(trials, arb(fmpq(*share)), negligible)
            assert uncovered(trials, Fraction(*share), negligible, cells) == []
            assert cells[1][0][0] >= 1
            more = count_cells(trials, arb(fmpq(*share)) * 1.01, negligible)
            assert trials == 0 or uncovered(trials, Fraction(*share), negligible, more)
