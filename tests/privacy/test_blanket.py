"""The bound of reports in a secret order: exact formulas, all outputs over all orders, real densities."""

import itertools
import math
import random
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import shuffling
from flint import arb, fmpq
from shuffling import blanket_share, divergence, formula, view

from sqsgd import make_scheme
from sqsgd._internal import exact
from sqsgd.audit.subject import tight
from sqsgd.privacy.blanket import TOLERANCE, BlanketBound, blanket_bound, generic_bound
from sqsgd.schemes import SCHEMES

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


@pytest.mark.parametrize(
    "wrong",
    [
        lambda parts, users, growth: formula(parts, blanket_share(parts), users + 1, growth),
        lambda parts, users, growth: formula(parts, min(1, 2 * blanket_share(parts)), users, growth),
    ],
    ids=["a user too many", "too large a blanket"],
)
def test_adaptive_choices_exceed_wrong_bounds(wrong):
    assert max(ratios(wrong, [case for case in CASES if len(SMALL[case[0]][1]) == 1])) > 1


def test_the_generic_bound_holds_for_a_mechanism_without_two_densities():
    """Laws of ratios up to 4, chosen for each slot and history, for three users."""
    rng, odds, share = random.Random(3), Fraction(4), Fraction(1, 4)
    for trial in range(12):
        bases, rows = {}, {}

        def law(user, slot, earlier, data, bases=bases, rows=rows):
            key = (user, slot, earlier, data if user == 0 else None)
            if key not in rows:
                base = bases.setdefault((slot, earlier), rng.choice([(1, 2, 4), (1, 1, 4), (1, 4, 4)]))
                rows[key] = [Fraction(part, sum(base)) for part in rng.sample(base, 3)]
            return rows[key]

        orders = list(itertools.permutations(range(3)))
        views = [
            {
                z: sum(math.prod(law(user, s, z[:s], data)[z[s]] for s, user in enumerate(o)) for o in orders)
                / len(orders)
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


def test_the_least_epsilon_is_certified_and_nearly_the_least():
    for parts, users in itertools.product(ONE_PART.values(), (40, 2000)):
        bound = bound_of(parts, users, 1e-4)
        local = math.log(parts[0][0])
        found = bound.epsilon(local)
        assert found == local or bound.spent(found) <= 1e-4
        assert found == 0.0 or bound.spent(found * (1 - 4 * TOLERANCE)) > 1e-4
    assert bound_of(ONE_PART["a vertex"], 50, 0.5).epsilon(math.log(5)) == 0.0  # δ is the total variation


def test_counts_of_users_that_are_not_summed_count_as_lost():
    """Theorem H11: whatever the probability of fewer users than the first cell, it is added to delta."""
    bound = generic_bound(1.0, 1000, 1e-6)
    below, cells = bound._cells
    assert 0 < float(below) <= 1e-6 / 2**14
    before = bound.spent(0.3)
    bound.__dict__["_cells"] = below + arb(1) / 8, cells
    assert bound.spent(0.3) == pytest.approx(before + 0.125, rel=1e-12)


def test_what_is_not_a_number_is_refused():
    broken = BlanketBound(
        parts=(lambda: (arb("nan"), arb("0.5")),), share=lambda: arb("0.5"), users=5, delta=0.1
    )
    with pytest.raises((ArithmeticError, ValueError)), exact.precision(64):
        broken.spent(0.1)


TINY = [
    ("privunit-index", {"dim": 4, "nearest": 2}),
    ("sqsgd-stateless", {"dim": 4, "bytes": 1, "code": "sparse"}),
    ("sqsgd-stateless", {"dim": 4, "bytes": 1, "code": "sparse", "norm_epsilon": 0.5}),
    ("sqsgd-stateless", {"dim": 4, "bytes": 1, "code": "signs"}),
    ("sqsgd-stateless", {"dim": 4, "bytes": 2, "levels": 3, "reach": 1.0}),
    ("sqkr", {"dim": 4, "bytes": 1}),
    ("privunit-inf", {"dim": 4, "bytes": 1}),
]


def outputs(layout):
    return itertools.product(*(list(column.every()) for column in layout))


def levels_of(scheme, x):
    """The densities relative to the uniform law at all outputs, by how often, for an input without a coin."""
    mechanism = scheme.mechanism
    found = [math.exp(mechanism.log_density(each, x, 1.0)) for each in outputs(mechanism.layout)]
    return np.array(found) * len(found)


@pytest.mark.parametrize(("name", "options"), TINY, ids=str)
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_densities_are_those_of_the_mechanism(name, options, epsilon):
    """At an input that is not randomised before the private step: products of the parts, and their shares."""
    scheme = tight(make_scheme(name, epsilon=epsilon, **options), 1)
    x = np.array(
        [4.0, -4.0, 4.0, 4.0] if name in ("sqkr", "privunit-inf") else [4.0, -3.0, 2.0, 1.0], np.float32
    )
    if options.get("levels") == 3:
        x = np.array([4.0, -4.0, 4.0, -4.0], np.float32)
    density = levels_of(scheme, x[: scheme.mechanism.dim])
    assert density.mean() == pytest.approx(1.0)
    with exact.precision(128):
        parts = [tuple(map(float, part())) for part in scheme.mechanism.traits.blanket]
    expected: dict[float, float] = {1.0: 1.0}
    for high, low in parts:
        share = (1 - low) / (high - low)
        after: dict[float, float] = {}
        for (value, chance), (level, part) in itertools.product(
            expected.items(), ((high, share), (low, 1 - share))
        ):
            after[value * level] = after.get(value * level, 0.0) + chance * part
        expected = after
    for value in expected:
        chance = sum(chance for other, chance in expected.items() if math.isclose(other, value, rel_tol=1e-5))
        assert np.mean(np.isclose(density, value, rtol=1e-5)) == pytest.approx(chance, abs=1e-9)


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_what_is_stated_is_a_law_and_has_the_whole_epsilon(name):
    """A q in (0, 1), and odds that multiply to e^ε. Mechanisms of other kinds state nothing."""
    mechanism = make_scheme(name, dim=64, epsilon=20.0, bytes=32).mechanism
    with exact.precision(192):
        levels = [part() for part in mechanism.traits.blanket]
        assert all(high > 1 and 0 < low < 1 for high, low in levels)
        if levels:
            log_odds = sum(float((high / low).log()) for high, low in levels)
            assert log_odds == pytest.approx(mechanism.privacy.epsilon, rel=1e-6)
    stated = {"privunit", "privunit-g", "privunit-index", "privunit-inf", "sqkr", "sqsgd", "sqsgd-paper"}
    assert bool(levels) == (name in stated | {"sqsgd-stateless"})


SHORT = [np.array(x, np.float32) for x in ([0.3, -0.1, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0])]

LONG = [np.array(x, np.float32) for x in ([4, -3, 2, 1], [-4, 3, -2, -1], [1, 2, 3, 4], [-1, 3, -4, 2])]


def strongest(kernel, growth):
    """The largest divergence of two reports in a secret order, over all inputs, chosen adaptively.

    ``kernel`` has a row for each input. The target has row a or b, and the other user c, in the first slot;
    after each first report both choose again, and the best choices for different reports do not interact.
    """
    rows = range(len(kernel))
    target, other = kernel[:, None, :], kernel[None, :, :]
    best = 0.0
    for a, b, c in itertools.product(rows, repeat=3):
        total = 0.0
        for z in range(kernel.shape[1]):
            # P(z, .) for each (input of the target, input of the other) in the second slot, over both orders
            one, two = ((kernel[first, z] * other + kernel[c, z] * target) / 2 for first in (a, b))
            gaps = np.maximum(one[:, None] - growth * two[None, :], 0.0).sum(axis=-1)
            total += gaps.max()
        best = max(best, total)
    return best


@pytest.mark.parametrize(("name", "options"), TINY[:4], ids=str)
def test_real_reports_of_two_users_stay_below_the_bound(name, options):
    """With the densities of the mechanism itself: long and short vectors, zero, and the norm's symbol."""
    mechanism = tight(make_scheme(name, epsilon=1.5, **options), 1).mechanism
    columns = list(outputs(mechanism.layout))
    inputs = [x[: mechanism.dim] for x in (*LONG, *SHORT)]
    kernel = np.exp([[mechanism.log_density(each, x, 1.0) for each in columns] for x in inputs])
    for epsilon in (0.1, 0.7):
        true = strongest(kernel, math.exp(epsilon))
        assert true <= (1 + 1e-9) * blanket_bound(mechanism.traits.blanket, 2, 1e-6).spent(epsilon)
        assert true > 0.5 * blanket_bound(mechanism.traits.blanket, 2, 1e-6).spent(epsilon)
