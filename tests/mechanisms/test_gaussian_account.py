"""What Gaussian reports cost: against dp-accounting, published values, and bounds that must hold."""

from fractions import Fraction

import pytest

from sqsgd import make_scheme
from sqsgd.mechanisms.gaussian_account import (
    Uses,
    concentrated_epsilon,
    covers,
    epsilon_of,
    gaussian_epsilon,
    most_rho,
    pure_rho,
    rho_for,
    spent,
)

dp_accounting = pytest.importorskip("dp_accounting", reason="needs pip install 'sqsgd[train]'")
pld = pytest.importorskip("dp_accounting.pld")


def theirs(rho, count, rate, delta):
    event = dp_accounting.GaussianDpEvent((2 * float(rho)) ** -0.5)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = pld.PLDAccountant(relation, value_discretization_interval=1e-4)
    return accountant.compose(dp_accounting.SelfComposedDpEvent(event, count)).get_epsilon(delta)


@pytest.mark.parametrize(
    ("rho", "count", "rate"),
    [(0.062, 200, 0.05), (0.3, 1, 0.01), (0.02, 40, 0.5), (0.05, 1, 1.0), (0.0002, 150, 1.0), (1.0, 3, 1.0)],
)
def test_reports_agree_with_dp_accounting(rho, count, rate):
    precise = theirs(rho, count, rate, 1e-5)
    ours = epsilon_of([Uses(rho=Fraction(rho), count=count, rate=rate)], 1e-5)
    assert precise * (1 - 2e-4) <= ours <= precise * 1.002
    assert rate == 1.0 or ours < gaussian_epsilon(Fraction(rho) * count, 1e-5)


def test_the_analytic_gaussian_mechanism():
    """σ = 3.7306 for (1, 1e-5): Balle and Wang 2018."""
    rho = most_rho(1.0, 1e-5)
    assert (2 * float(rho)) ** -0.5 == pytest.approx(3.730632, rel=1e-6)
    assert covers(rho, 1.0, 1e-5)
    assert not covers(rho * (1 + Fraction(1, 10**6)), 1.0, 1e-5)
    assert gaussian_epsilon(rho, 1e-5) <= 1.0


def test_zcdp_of_any_kind_costs_more_than_gaussians():
    rho = Fraction(1, 50)
    assert gaussian_epsilon(rho, 1e-5) < concentrated_epsilon(rho, 1e-5)
    assert concentrated_epsilon(rho, 1e-5) < float(rho) + 2 * (float(rho) * 11.513) ** 0.5  # the usual bound
    assert pure_rho(0.1) <= Fraction(1, 200)
    assert float(pure_rho(10.0)) == pytest.approx(9.99909, rel=1e-5)


@pytest.mark.parametrize(("rate", "count"), [(1.0, 7), (0.2, 50), (0.01, 1000)])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_noise_for_a_budget_spends_it(rate, count, epsilon):
    uses = Uses(rho=rho_for(epsilon, 1e-5, count, rate), count=count, rate=rate)
    assert 0.995 * epsilon < epsilon_of([uses], 1e-5) <= epsilon


def test_mixed_reports_cost_at_most_the_sum():
    first, second = Uses(rho=Fraction(1, 100), count=3), Uses(rho=Fraction(1, 10), count=9, rate=0.1)
    parts = [epsilon_of([each], 1e-5) for each in (first, second)]
    assert max(parts) < epsilon_of([first, second], 1e-5) < sum(parts)


def test_spent_after_some_reports():
    scheme = make_scheme("sqsgd-record", dim=8, epsilon=1.0, reports=20, rate=0.1)
    after = [spent(scheme.privacy, count) for count in (1, 10, 20)]
    assert after == sorted(after)
    assert after[-1] == 1.0
    local = make_scheme("sqsgd", dim=8, epsilon=4.0, bytes=4)
    assert spent(local.privacy, 3) == 12.0


def test_a_delta_too_small_for_sampling_gains_nothing_from_it():
    """dp-accounting's floats would give noise 10^15 times too large, or an ε that is not certain."""
    with pytest.raises(ValueError, match=r"delta = 1e-13 must be at least 1e-12 for sampled batches"):
        rho_for(1.0, 1e-13, 200, 0.05)
    assert rho_for(1.0, 1e-12, 200, 0.05) > 0.01
    uses = Uses(rho=Fraction(1, 100), count=5, rate=0.1)
    assert epsilon_of([uses], 1e-13) == gaussian_epsilon(Fraction(1, 20), 1e-13)
    with pytest.raises(ValueError, match="of a report is too small: ask for fewer reports"):
        make_scheme("sqsgd-record", dim=8, epsilon=0.001, delta=1e-30, reports=10**7)


@pytest.mark.parametrize("rho", [0.5, 5.0, 500.0])
def test_no_sampling_needs_much_memory(rho):
    """A server chooses rate and noise; the grid is as wide as need be, which only raises ε."""
    import tracemalloc

    tracemalloc.start()
    found = epsilon_of([Uses(rho=Fraction(rho), rate=1e-6)], 1e-7)
    assert tracemalloc.get_traced_memory()[1] < 300e6
    tracemalloc.stop()
    assert 0 < found < gaussian_epsilon(Fraction(rho), 1e-7)
