"""How FedSel spends a budget: ranks of Gaussian coordinates, what fits, and the least predicted error."""

import math

import numpy as np
import pytest

from sqsgd import seeded_rng
from sqsgd.mechanisms.piecewise_grid import PiecewiseGrid
from sqsgd.schemes.fedsel import Budget, clamped, rank_groups

GIVEN = {
    "dim": 300,
    "epsilon": 40.0,
    "bytes": 25,
    "ranked": False,
    "reach": 2.5,
    "picks": None,
    "top": None,
    "parts": (0.2, 0.5, 0.8),
    "alphabets": (2, 4, 16),
}


@pytest.mark.parametrize(("dim", "cut"), [(1, 1), (150, 37), (3000, 1), (3000, 777), (10**6, 4321)])
def test_groups_cover_all_ranks_with_gaussian_magnitudes(dim, cut):
    ranks, counts, sizes = rank_groups(dim, cut)
    assert counts.sum() == dim
    assert counts @ sizes**2 == pytest.approx(dim, rel=1e-12)
    assert cut in np.cumsum(counts)
    assert (np.diff(sizes) < 0).all()
    assert np.allclose(ranks, np.cumsum(counts) - (counts + 1) / 2)
    if dim == 3000:
        drawn = np.sort(np.abs(np.random.default_rng(1).standard_normal((400, dim))), axis=1)[:, ::-1]
        expected = drawn.mean(axis=0)[np.rint(ranks).astype(int)]
        assert np.allclose(sizes[5:150], expected[5:150], rtol=0.03)


@pytest.mark.parametrize("reach", [1.0, 2.5])
def test_values_are_clamped_and_as_noisy_as_predicted(reach):
    channel, rng, sizes = PiecewiseGrid(8, 3.0), seeded_rng(5), np.array([0.0, 0.4, 1.9])
    for size, kept, noise in zip(sizes, *clamped(sizes, channel, reach), strict=True):
        assert kept == min(size, reach)
        estimates = reach * channel.estimate(
            channel.randomize(np.full(40_000, 0.5 + kept / (2 * reach)), rng)
        )
        assert noise == pytest.approx(estimates.var(), rel=0.05)
        assert abs(estimates.mean() - kept) < 5 * estimates.std() / 200


@pytest.mark.parametrize(
    "changes", [{}, {"ranked": True}, {"bits": None}, {"picks": 5}, {"top": 30}, {"dim": 1}]
)
def test_plans_keep_the_budget_and_the_best_is_one_of_them(changes):
    budget = Budget(**{**GIVEN, **changes})
    plans = [*budget.plans()]
    for plan in plans:
        assert plan.picks * (plan.choice + plan.channel.epsilon) <= budget.epsilon * (1 + 1e-12)
        assert budget.bits is None or budget.bits_of(plan.picks, plan.channel.alphabet) <= budget.bits
        assert plan.picks == (changes.get("picks") or plan.picks)
        assert plan.top == (0 if budget.ranked or budget.dim == 1 else changes.get("top") or plan.top)
    assert len({(plan.picks, plan.channel.alphabet) for plan in plans}) > 1
    assert budget.best().error == min(plan.error for plan in plans)
    assert budget.best().error < 0  # better than sending nothing


def test_no_other_top_set_predicts_less():
    plan = Budget(**GIVEN).best()
    same = {
        "picks": plan.picks,
        "parts": (plan.choice * plan.picks / 40.0,),
        "alphabets": (plan.channel.alphabet,),
    }
    others = [Budget(**{**GIVEN, **same, "top": top}).best().error for top in range(1, 300)]
    assert plan.error == pytest.approx(min(others), rel=0.005)


def test_the_most_picks_that_fit_are_tried():
    """With 2,048 bits, 24 numbers of picks up to the most; only one pick where there is no choice."""
    budget = Budget(**{**GIVEN, "bytes": 256, "epsilon": 1e5})
    for alphabet in (2, 16, 64):
        counts = budget.counts(alphabet)
        assert counts[0] == 1
        assert budget.bits_of(counts[-1], alphabet) <= 2048 < budget.bits_of(counts[-1] + 1, alphabet)
    assert Budget(**{**GIVEN, "dim": 1}).counts(4) == [1]
    assert Budget(**{**GIVEN, "bits": None, "epsilon": 1.0}).counts(4)[-1] == math.ceil(4 * 1.0)
    assert Budget(**{**GIVEN, "picks": 100}).counts(2) == []
