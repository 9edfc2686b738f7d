"""The bound of reports in a secret order: against exact formulas, all outputs over all orders, and floats."""

import itertools
import math
import random
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import shuffling
from flint import arb, fmpq
from scipy import stats
from shuffling import blanket_share, divergence, formula, view

from sqsgd.numerics import exact
from sqsgd.privacy.blanket import TOLERANCE, BlanketBound, blanket_bound, generic_bound

GROWTHS = (Fraction(1), Fraction(21, 20), Fraction(13, 10), Fraction(2), Fraction(7, 2))
ONE_PART = {
    "a vertex": [(Fraction(5), 1, 6)],
    "half of them": [(Fraction(3), 2, 4)],
    "more than half": [(Fraction(4), 3, 4)],
    "rare": [(Fraction(200), 1, 400)],
}
PARTS = ONE_PART | {
    "code and symbol": [(Fraction(4), 1, 5), (Fraction(2), 1, 3)],
    "code and bit": [(Fraction(6), 3, 5), (Fraction(2), 1, 2)],
}


def densities(odds, near, outputs):
    high, low = shuffling.levels(odds, near, outputs)
    return lambda: (arb(fmpq(*high.as_integer_ratio())), arb(fmpq(*low.as_integer_ratio())))


def bound_of(parts, users, delta=1e-6):
    return blanket_bound(tuple(densities(*part) for part in parts), users, delta)


def at(growth):
    """An ε that is not above ln(growth), so that δ(ε) is not below the exact one."""
    return max(0.0, math.nextafter(math.log(growth), 0.0) * (1 - 1e-15))


# ---------------------------------------------------------------- against the formula, in fractions


def disagreements(make, users=(1, 2, 5)):
    """Cases where the bound is below the right side of Theorem H1, or 1 % (two parts: 5 %) above it."""
    found = []
    for (name, parts), count, growth in itertools.product(PARTS.items(), users, GROWTHS):
        exactly = float(formula(parts, blanket_share(parts), count, growth))
        stated = make(parts, count).spent(at(growth))
        if not (1 - 1e-12) * exactly <= stated <= (1.01 if len(parts) == 1 else 1.05) * exactly + 1e-9:
            found.append((name, count, growth, stated, exactly))
    return found


def test_the_bound_is_just_above_the_exact_sum():
    assert disagreements(bound_of) == []


def changed(parts, count, *, share=1.0, users=0, near=0, odds=1):
    """The bound with a planted error."""
    first = (parts[0][0] * odds, parts[0][1] + near, parts[0][2])
    right = bound_of([first, *parts[1:]], count + users)
    return BlanketBound(parts=right.parts, share=lambda: right.share() * share, users=right.users, delta=1e-6)


@pytest.mark.parametrize(
    "error", [{"share": 1.05}, {"users": 1}, {"odds": Fraction(19, 20)}, {"share": 0.9}], ids=str
)
def test_a_planted_error_in_the_formula_is_found(error):
    assert disagreements(lambda parts, count: changed(parts, count, **error))


# ---------------------------------------------------------------- against all outputs and orders


class Adaptive:
    """Near sets of each user in each slot after each history, drawn once; ``mixed`` ones are random."""

    def __init__(self, parts, seed, mixed=False):
        self.parts, self.rng, self.mixed, self.chosen = parts, random.Random(seed), mixed, {}

    def draw(self):
        return tuple(frozenset(self.rng.sample(range(outputs), near)) for _, near, outputs in self.parts)

    def near(self, data):
        def chosen(user, slot, earlier):
            key = (user, slot, earlier, data if user == 0 else None)
            if key not in self.chosen:
                third = Fraction(1, 3)
                mixture = [(third, self.draw()), (1 - third, self.draw())]
                self.chosen[key] = mixture if self.mixed and user == 0 else self.draw()
            return self.chosen[key]

        return chosen

    def divergence(self, users, growth):
        return divergence(*(view(users, self.parts, self.near(data)) for data in "xy"), growth)

    def climb(self, users, growth, steps):
        """The largest divergence that changing one near set after the other finds."""
        best = self.divergence(users, growth)
        for _ in range(steps):
            key = self.rng.choice(list(self.chosen))
            before, self.chosen[key] = self.chosen[key], self.draw()
            found = self.divergence(users, growth)
            if found >= best:
                best = found
            else:
                self.chosen[key] = before
        return best


SMALL = [
    (2, [(Fraction(3), 1, 4)]),
    (3, [(Fraction(6), 1, 4)]),
    (3, [(Fraction(2), 2, 4)]),
    (2, [(Fraction(5), 3, 4)]),
    (2, [(Fraction(3), 1, 3), (Fraction(2), 1, 2)]),
    (3, [(Fraction(20), 1, 3)]),
]


@cache
def found_divergence(number, growth, seed):
    """What adaptive choices reach: as drawn, as mixtures, or after climbing."""
    users, parts = SMALL[number]
    adaptive = Adaptive(parts, seed, mixed=seed % 3 == 1)
    return adaptive.climb(users, growth, 12) if seed % 3 == 2 else adaptive.divergence(users, growth)


def ratios(limit, cases):
    """What adaptive choices reach, over the limit."""
    return [
        float(found_divergence(n, growth, seed) / limit(SMALL[n][1], SMALL[n][0], growth))
        for n, growth, seed in cases
    ]


CASES = list(itertools.product(range(len(SMALL)), (Fraction(21, 20), Fraction(3, 2)), range(6)))


def test_no_adaptive_choice_exceeds_the_bound():
    """The formula is compared in fractions, and the bound with the formula in the tests above."""
    found = ratios(lambda parts, users, growth: formula(parts, blanket_share(parts), users, growth), CASES)
    assert 0.95 < max(found) <= 1


@pytest.mark.parametrize(("odds", "outputs", "users"), [(5, 3, 2), (5, 4, 3), (20, 3, 4)])
def test_three_disjoint_near_sets_attain_the_bound(odds, outputs, users):
    """So no smaller number would be true: x, x' and the other users each have a near set of their own."""
    parts = [(Fraction(odds), 1, outputs)]
    views = [
        view(users, parts, lambda user, _slot, _earlier, own=own: (frozenset([2 if user else own]),))
        for own in (0, 1)
    ]
    for growth in (Fraction(1), Fraction(21, 20), Fraction(3, 2), Fraction(2)):
        assert divergence(*views, growth) == formula(parts, blanket_share(parts), users, growth)


def overlapping(parts, users, growth):
    """A formula for near sets that are independent of each other, not disjoint: smaller, and wrong."""
    (_, near, outputs), (high, low) = parts[0], shuffling.levels(*parts[0])
    q = Fraction(near, outputs)
    values = [
        (high - growth * low, q * (1 - q)),
        (low - growth * high, q * (1 - q)),
        (high - growth * high, q * q),
        (low - growth * low, (1 - q) ** 2),
    ]
    total = Fraction(0)
    for m in range(1, users + 1):
        weight = math.comb(users - 1, m - 1) * low ** (m - 1) * (1 - low) ** (users - m)
        law = shuffling.law_of_sum(values, m)
        total += weight * sum(max(value, 0) * chance for value, chance in law.items()) / m
    return total


@pytest.mark.parametrize(
    "wrong",
    [
        lambda parts, users, growth: formula(parts, blanket_share(parts), users + 1, growth),
        lambda parts, users, growth: formula(parts, min(1, 2 * blanket_share(parts)), users, growth),
        overlapping,
    ],
    ids=["a user too many", "too large a blanket", "overlapping near sets"],
)
def test_adaptive_choices_exceed_wrong_bounds(wrong):
    assert max(ratios(wrong, [case for case in CASES if len(SMALL[case[0]][1]) == 1])) > 1


def test_the_generic_bound_holds_for_a_mechanism_without_two_densities():
    """A kernel of four inputs with ratios up to 4, chosen per slot and history, for three users."""
    rng, odds, share = random.Random(3), Fraction(4), Fraction(1, 4)
    for trial in range(12):
        rows = {}

        def law(user, slot, earlier, data, rows=rows):
            key = (user, slot, earlier, data if user == 0 else None)
            if key not in rows:
                while True:
                    parts = [rng.choice((1, 2, 4)) for _ in range(3)]
                    row = [Fraction(part, sum(parts)) for part in parts]
                    known = rows.setdefault((slot, earlier), [])
                    if all(
                        a <= odds * b and b <= odds * a
                        for other in known
                        for a, b in zip(row, other, strict=True)
                    ):
                        break
                known.append(row)
                rows[key] = row
            return rows[key]

        views = [
            {
                z: sum(
                    math.prod(law(user, slot, z[:slot], data)[z[slot]] for slot, user in enumerate(order))
                    for order in itertools.permutations(range(3))
                )
                / 6
                for z in itertools.product(range(3), repeat=3)
            }
            for data in "xy"
        ]
        for growth in GROWTHS:
            # A fair bit with odds e^ε₀ is a part with one of two outputs near.
            limit = formula([(odds, 1, 2)], share, 3, growth)
            assert divergence(*views, growth) <= limit, trial
            stated = generic_bound(math.log(4), 3, 1e-6).spent(at(growth))
            assert (1 - 1e-9) * float(limit) <= stated <= 1.01 * float(limit) + 1e-9


# ---------------------------------------------------------------- against floats, for many users


def in_floats(odds, q, gamma, users, growth):
    """The bound in double precision, by the number J of unequal pairs and binomial tails."""
    low = 1 / (1 + (odds - 1) * q) if gamma is None else 2 / (odds + 1)
    high, share = odds * low, low if gamma is None else gamma
    law, total = stats.binom(users - 1, share), 0.0
    ms = 1 + np.unique(np.linspace(law.ppf(1e-13), law.isf(1e-13), 400).astype(np.int64))
    weights = np.diff(np.concatenate([[0.0], law.cdf(ms - 1)]))
    for m, weight in zip(ms.tolist(), weights.tolist(), strict=True):
        unequal = stats.binom(m, 2 * q)
        js = np.arange(unequal.ppf(1e-14), unequal.isf(1e-14) + 1)
        stay = low * (1 - growth)
        up, down = high - growth * low - stay, low - growth * high - stay
        first = np.maximum(np.ceil((-m * stay - js * down) / (up - down)), 0.0)
        tail, mean = stats.binom.sf(first - 1, js, 0.5), js / 2 * stats.binom.sf(first - 2, js - 1, 0.5)
        mean = np.where(js > 0, mean, 0.0)
        total += weight / m * float(unequal.pmf(js) @ (tail * (js * down + m * stay) + mean * (up - down)))
    return total


@pytest.mark.parametrize(
    ("local", "near", "users", "epsilon"),
    [(8.0, 25 / 8192, 1500, 4.83), (4.0, 0.0625, 6000, 0.478), (2.0, 0.21, 60000, 0.0375),
     (8.0, None, 60000, 7.9), (2.0, None, 60000, 0.0594), (1.0, 0.3, 300, 0.2), (6.0, 2.0**-6, 10**6, 0.095)],
)  # fmt: skip
def test_the_bound_agrees_with_an_independent_calculation_in_floats(local, near, users, epsilon):
    def part():
        low = 1 / (1 + arb(local).expm1() * arb(near))
        return arb(local).exp() * low, low

    bound = generic_bound(local, users, 1e-6) if near is None else blanket_bound((part,), users, 1e-6)
    gamma = math.exp(-local) if near is None else None
    floats = in_floats(math.exp(local), near or 0.5, gamma, users, math.exp(epsilon))
    assert 0.99 * floats <= bound.spent(epsilon) <= 1.06 * floats  # the numbers m are in 400 cells here


# ---------------------------------------------------------------- the least ε


def test_the_least_epsilon_is_certified_and_nearly_the_least():
    for parts, users in itertools.product(ONE_PART.values(), (40, 2000)):
        bound = bound_of(parts, users, 1e-4)
        local = math.log(parts[0][0])
        found = bound.epsilon(local)
        assert found == local or bound.spent(found) <= 1e-4
        assert found == 0.0 or bound.spent(found * (1 - 4 * TOLERANCE)) > 1e-4


def test_where_nothing_is_certified_it_is_the_local_one():
    assert bound_of(ONE_PART["a vertex"], 2, 1e-9).epsilon(math.log(5)) == math.log(5)


def test_where_delta_is_the_total_variation_it_is_zero():
    parts = ONE_PART["a vertex"]
    bound = bound_of(parts, 50, 0.5)
    assert bound.epsilon(math.log(5)) == 0.0
    assert bound.holds(1.0)
    assert not bound_of(parts, 50, 1e-9).holds(0.01)


def test_what_is_not_a_number_is_refused():
    broken = BlanketBound(
        parts=(lambda: (arb("nan"), arb("0.5")),), share=lambda: arb("0.5"), users=5, delta=0.1
    )
    with pytest.raises((ArithmeticError, ValueError)), exact.precision(64):
        broken.spent(0.1)
