"""Several passes in independent secret orders: all outputs over all orders, dp-accounting, planted errors."""

import itertools
import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from flint import fmpz_poly
from shuffling import divergence, orders_of_passes, view
from test_blanket import Adaptive, bound_of

from sqsgd import Pass, central_guarantee, composed_guarantee, make_scheme
from sqsgd.privacy import passes as composing
from sqsgd.privacy.blanket import blanket_bound, generic_bound
from sqsgd.privacy.passes import Profile, Table, negligible, table


def index(epsilon, **options):
    return make_scheme("privunit-index", dim=3920, epsilon=epsilon, **options)


# ---------------------------------------------------------------- small cases, exactly


SMALL = [
    (2, [(Fraction(3), 1, 4)]),
    (2, [(Fraction(6), 2, 4)]),
    (2, [(Fraction(3), 1, 2), (Fraction(2), 1, 2)]),
    (3, [(Fraction(4), 1, 2)]),
]
GROWTHS = (Fraction(21, 20), Fraction(3, 2), Fraction(5, 2))


def local_of(parts):
    return math.log(math.prod(odds for odds, _, _ in parts))


def composed(parts, users, delta, reports=2):
    """The certified ε at δ, below the local total or None."""
    spent = bound_of(parts, users, negligible(delta, reports)).spent
    return table([Profile(spent=spent, local=local_of(parts), reports=reports)], delta).epsilon(delta)


class AdaptivePasses(Adaptive):
    """Near sets of each user in each slot of two passes after each history."""

    def __init__(self, users, parts, seed, kind):
        super().__init__(parts, seed)
        self.orders = orders_of_passes(users, 2, kind)

    def divergence(self, users, growth):
        laws = [view(users, self.parts, self.near(data), self.orders) for data in "xy"]
        return divergence(*laws, growth)


@cache
def reached(number, seed, kind="apart"):
    """What adaptive choices reach for each growth: as drawn, or after climbing at the second growth."""
    users, parts = SMALL[number]
    adaptive = AdaptivePasses(users, parts, seed, kind)
    if seed % 2 and users == 2:
        adaptive.climb(users, GROWTHS[1], 8)
    return [adaptive.divergence(users, growth) for growth in GROWTHS]


def disjoint(number, kind="apart"):
    """x, x' and the other users have near sets of their own, alike in all slots."""
    users, parts = SMALL[number]
    near = [tuple(frozenset([place % outputs]) for _, _, outputs in parts) for place in range(3)]
    laws = [
        view(
            users,
            parts,
            lambda user, *_, own=own: near[2 if user else own],
            orders_of_passes(users, 2, kind),
        )
        for own in (0, 1)
    ]
    return [divergence(*laws, growth) for growth in GROWTHS]


def excesses(found, number, bound=composed):
    """ln(growth) over the certified ε at the divergence that was reached there: more than 1 is an error."""
    users, parts = SMALL[number]
    pairs = [(growth, float(delta)) for growth, delta in zip(GROWTHS, found, strict=True) if delta]
    certified = [bound(parts, users, delta * (1 - 1e-12)) for _, delta in pairs]
    return [
        math.log(growth) / max(epsilon, 1e-300)
        for (growth, _), epsilon in zip(pairs, certified, strict=True)
        if epsilon is not None
    ]


CASES = list(itertools.product(range(len(SMALL)), range(4)))


def test_no_adaptive_passes_exceed_the_bound():
    """The second pass knows all reports of the first one."""
    found = [ratio for number, seed in CASES for ratio in excesses(reached(number, seed), number)]
    assert 0.7 < max(found) <= 1


def test_nor_do_passes_whose_slots_alternate():
    """Each report of either pass may depend on all reports before it, of both."""
    cases = itertools.product((0, 2), range(4))
    found = [
        ratio for number, seed in cases for ratio in excesses(reached(number, seed, "alternating"), number)
    ]
    assert 0.5 < max(found) <= 1


def test_disjoint_near_sets_attain_the_bound():
    assert 0.99 < max(excesses(disjoint(0), 0)) <= 1


def test_one_order_in_two_passes_exceeds_the_bound():
    """So an order that is used twice must not be counted as two."""
    assert max(excesses(disjoint(0, "shared"), 0)) > 1.05


def linked(parts, users, delta):
    bound = generic_bound(2 * local_of(parts), users, delta)
    return bound.epsilon(2 * local_of(parts))


def test_linked_reports_keep_the_generic_bound_of_their_total():
    found = [
        ratio for number, seed in CASES for ratio in excesses(reached(number, seed, "shared"), number, linked)
    ]
    assert max(found) <= 1
    assert max(excesses(disjoint(0, "shared"), 0, linked)) <= 1


# ---------------------------------------------------------------- planted errors


def lost_tail(dots, step, bits):
    """The divergence ends at the last dot: what is left there is forgotten."""
    whole = right(dots, step, bits)
    missing = (1 << bits) - whole.masses(1)
    return composing.Losses(first=whole.first, masses=whole.masses + missing)


def wrong_sign(dots, step, bits):
    """The losses under the second law."""
    whole = right(dots, step, bits)
    masses = fmpz_poly(whole.masses.coeffs()[::-1])
    return composing.Losses(first=1 - whole.first - whole.masses.length(), masses=masses)


def only_positive(dots, step, bits):
    """The losses below zero are counted as zero masses, and the rest is scaled up."""
    whole = right(dots, step, bits)
    masses = whole.masses.right_shift(-whole.first)
    return composing.Losses(first=0, masses=masses * (1 << bits) // masses(1))


def low_dots(dots, step, bits):
    """Joined below: each dot counts for the whole interval before it."""
    return right(tuple(zip([p for p, _ in dots], [d for _, d in dots[1:]] + [0.0], strict=True)), step, bits)


right = composing.losses


def fewer_dots(kept):
    """Upper bounds at fewer points of the same profile: a certificate that is no smaller."""
    made = a_table(4.0, 60000, 8)
    dots, count = made.passes[0]
    return Table(step=made.step, passes=(((dots[0], *dots[kept]), count),))


@cache
def a_table(local, users, reports, delta=1e-6):
    parts = index(local).mechanism.traits.blanket
    spent = blanket_bound(parts, users, negligible(delta, reports)).spent
    return table([Profile(spent=spent, local=local, reports=reports)], delta)


def found_wrong():
    """Which of the checks find something wrong."""
    full = a_table(4.0, 60000, 8).epsilon(1e-6)
    subsets = [slice(2, None, 2), slice(5, None, 5), slice(8, 20, 9), slice(1, -8)]
    fewer = [fewer_dots(kept).epsilon(1e-6) for kept in subsets]
    return {
        "small cases": max(excesses(disjoint(0), 0)) > 1,
        "fewer dots": not all(epsilon is None or epsilon >= full * (1 - 1e-6) for epsilon in fewer),
        "dp-accounting": abs(full / theirs(4.0, 60000, 8) - 1) > 0.02,
    }


def theirs(local, users, reports, delta=1e-6):
    """dp-accounting's composition of the same profile, on a grid of its own."""
    pld_pmf = pytest.importorskip("dp_accounting.pld.pld_pmf", reason="needs pip install 'sqsgd[train]'")
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    parts = index(local).mechanism.traits.blanket
    bound, step = blanket_bound(parts, users, negligible(delta, reports)), a_table(local, users, reports).step
    step = 0.7 * step
    profile = []
    while not profile or profile[-1] > negligible(delta, reports):
        profile.append(bound.spent(len(profile) * step))
    places = np.arange(1 - len(profile), len(profile))
    below = [
        -math.expm1(-i * step) + math.exp(-i * step) * profile[i] for i in range(len(profile) - 1, 0, -1)
    ]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(step, places, np.array(below + profile))
    return PrivacyLossDistribution(pmf).self_compose(reports).get_epsilon_for_delta(delta)


def test_the_checks_find_nothing_wrong():
    assert not any(found_wrong().values())


@pytest.mark.parametrize(
    ("error", "check"),
    [
        (lost_tail, "fewer dots"),
        (wrong_sign, "small cases"),
        (wrong_sign, "dp-accounting"),
        (only_positive, "dp-accounting"),
        (low_dots, "small cases"),
        (low_dots, "dp-accounting"),
    ],
)
def test_a_planted_error_is_found(error, check, monkeypatch):
    monkeypatch.setattr(composing, "losses", error)
    assert found_wrong()[check]


# ---------------------------------------------------------------- values

TABLE = {  # in floats, by dp-accounting: users, local ε, and central ε for 1 to 32 reports
    (60000, 1.0): (0.0148, 0.021, 0.031, 0.045, 0.066, 0.096),
    (60000, 2.0): (0.0376, 0.055, 0.079, 0.115, 0.166, 0.241),
    (60000, 4.0): (0.138, 0.200, 0.289, 0.419, 0.607, 0.881),
    (60000, 6.0): (0.437, 0.63, 0.91, 1.32, 1.92, 2.81),
    (10000, 4.0): (0.363, 0.523, 0.757, 1.10, 1.60, 2.33),
    (10**6, 6.0): (0.0958, 0.139, 0.201, 0.291, 0.421, 0.611),
}


@pytest.mark.parametrize(("users", "local"), TABLE)
def test_the_table_of_values(users, local):
    for power, known in enumerate(TABLE[users, local]):
        if power in (1, 4):
            found = central_guarantee(index(local), users, 1e-6, reports=2**power)
            assert (found.bound, found.local_epsilon) == ("blanket", 2**power * local)
            assert found.epsilon == pytest.approx(known, rel=0.005, abs=0.0006)


def test_one_visit_counts_the_users_of_a_round():
    """12 reports of local 2 in one visit; one of 8, with the same error, costs 4.83."""
    found = central_guarantee(index(2.0), 1500, 1e-6, "round", reports=12)
    assert found.epsilon == pytest.approx(1.03, rel=0.01)
    assert found.order == "round"


RANGES = {"local": (0.1, 12.0), "users": (10, 10**5, 10**8), "reports": (1, 64, 10000)}
KINDS = {
    "blanket": lambda local: index(local, nearest=300),
    "generic": lambda local: make_scheme("vqsgd", dim=3920, epsilon=local, bytes=64),
    "codes and norm": lambda local: make_scheme(
        "sqsgd-stateless", dim=3920, epsilon=local, bytes=64, code="signs"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_range_is_monotone(kind):
    """It rises with the local ε and the reports, and falls with the users and δ, up to the grid.

    Monotone in the local ε only for one mechanism: codes of other budgets have other parameters.
    """
    grids, values = {**RANGES, **({} if kind == "blanket" else {"reports": (1,)})}, {}
    for local, users, reports in itertools.product(*grids.values()):
        made = central_guarantee(KINDS[kind](local), users, 1e-6, reports=reports)
        assert 0 < made.epsilon <= made.local_epsilon
        values[local, users, reports] = made.epsilon
    for (axis, grid), (point, value) in itertools.product(enumerate(grids.values()), values.items()):
        at = grid.index(point[axis])
        if at + 1 < len(grid):
            later = values[(*point[:axis], grid[at + 1], *point[axis + 1 :])]
            assert later <= 1.002 * value if axis == 1 else later >= 0.998 * value, (point, axis)
    for reports in grids["reports"][:2]:
        assert central_guarantee(KINDS[kind](2.0), 10**5, 1e-9, reports=reports).epsilon > (
            central_guarantee(KINDS[kind](2.0), 10**5, 1e-6, reports=reports).epsilon
        )


def test_composing_one_report_is_within_the_accuracy_of_the_grid():
    known = central_guarantee(index(4.0), 60000, 1e-6).epsilon
    assert known * 0.999 < a_table(4.0, 60000, 1).epsilon(1e-6) < known * 1.005


# ---------------------------------------------------------------- lists of passes


def test_passes_of_different_budgets_and_users():
    large, small = Pass(scheme=index(4.0), users=60000), Pass(scheme=index(2.0), users=10000, reports=3)
    mixed = composed_guarantee([large, small], 1e-6)
    assert (mixed.users, mixed.reports, mixed.local_epsilon, mixed.bound) == (10000, 4, 10.0, "blanket")
    assert mixed.epsilon == pytest.approx(composed_guarantee([small, large], 1e-6).epsilon, rel=1e-3)
    alone = central_guarantee(index(2.0), 10000, 1e-6, reports=3).epsilon
    assert alone < mixed.epsilon < alone + central_guarantee(index(4.0), 60000, 1e-6).epsilon


def test_the_same_passes_in_a_list_are_the_repeated_pass():
    one = Pass(scheme=index(2.0), users=5000, dropouts=500, colluding=10)
    listed = composed_guarantee([one] * 5, 1e-6)
    repeated = central_guarantee(index(2.0), 5000, 1e-6, reports=5, dropouts=500, colluding=10)
    assert listed.epsilon == pytest.approx(repeated.epsilon, rel=1e-6)
    assert (listed.users, listed.assumptions) == (4490, repeated.assumptions)


def test_many_small_passes_beside_a_large_one():
    """The grid is fine enough for losses that are much smaller than those of the largest pass."""
    large = Pass(scheme=index(4.0), users=5000)
    small = Pass(scheme=index(1.0), users=10**8, reports=500)
    alone = composed_guarantee([large], 1e-6).epsilon
    assert alone < composed_guarantee([large, small], 1e-6).epsilon < 1.01 * alone
    lonely = Pass(scheme=index(0.5), users=1)
    assert 0.5 < composed_guarantee([lonely, Pass(scheme=index(4.0), users=60000)], 1e-6).epsilon < 0.7


@pytest.mark.parametrize("reports", [1, 2, 10])
def test_where_nothing_is_certified_it_is_the_local_total(reports):
    for users, delta in ((1, 1e-9), (2, 1e-12), (60000, 1e-200)):
        found = central_guarantee(index(4.0), users, delta, reports=reports)
        assert (found.epsilon, found.bound) == (4.0 * reports, "local")


def test_linked_passes_of_different_users_add_up():
    passes = [Pass(scheme=index(0.5), users=60000), Pass(scheme=index(0.5), users=50000)]
    assert composed_guarantee(passes, 1e-6, linked="tickets").epsilon == 1.0
    assert composed_guarantee([passes[0]] * 2, 1e-6, linked="tickets").epsilon < 0.1


def test_no_pass_or_too_many_reports_are_refused():
    with pytest.raises(ValueError, match="passes"):
        composed_guarantee([], 1e-6)
    with pytest.raises(ValueError, match="reports of all passes = 120000"):
        composed_guarantee([Pass(scheme=index(0.5), users=100, reports=60000)] * 2, 1e-6)
    with pytest.raises(ValueError, match="reports = 0"):
        Pass(scheme=index(0.5), users=100, reports=0)


@pytest.mark.parametrize(("local", "gain"), [(1.0, 0.16), (2.0, 0.09), (4.0, 0.05), (6.0, 0.04)])
def test_fewer_near_vertices_have_less_error_at_the_same_central_epsilon(local, gain):
    """Errors of n R reports are as 1/R, and central ε nearly as √R."""

    def cost(**options):
        scheme = index(local, **options)
        return scheme.nmse * central_guarantee(scheme, 60000, 1e-6).epsilon ** 2

    assert cost(nearest="central") < (1 - gain) * cost()
    near = index(local, nearest="central").mechanism.nearest
    assert cost(nearest="central") < 1.02 * min(cost(nearest=near * 4 // 5), cost(nearest=near * 5 // 4))
