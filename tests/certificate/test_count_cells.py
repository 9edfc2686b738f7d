"""The number of users who hide the target: cells that cover the binomial law."""

from fractions import Fraction
from math import comb

import pytest
from flint import arb, fmpq
from scipy import stats

from sqsgd.numerics import exact
from sqsgd.privacy.blanket import count_cells


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


def test_a_hundred_million_users_need_few_cells():
    with exact.precision(192):
        below, cells = count_cells(10**8, arb(1) / 10, arb("1e-12"))
    law = stats.binom(10**8, 0.1)
    assert len(cells) < 10
    assert float(below) <= 1e-12
    assert law.cdf(cells[0][0] - 2) <= 1e-12
    assert float(sum((chance for _, chance in cells), arb(0))) == pytest.approx(1.0)
    assert cells[0][0] > 0.99 * 10**7
