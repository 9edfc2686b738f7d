"""PrivUnitG: the best edge of the Gaussian cap, its error, and the unnormalised length."""

import math

import numpy as np
import pytest
from caps import BUDGETS, errors_at
from cases import unit_vector
from scipy import stats

from sqsgd import seeded_rng
from sqsgd.schemes.privunit_g import GaussianCap


@pytest.mark.parametrize(("dim", "epsilon", "error"), [(119850, 400.0, 154.0), (1722224, 2000.0, 433.4)])
def test_errors_agree_with_independent_computations(dim, epsilon, error):
    assert abs(GaussianCap(dim=dim, epsilon=epsilon).error - error) <= 0.05


@pytest.mark.parametrize(("dim", "epsilon"), [*BUDGETS, (4, 40.0), (1000, 3.0)])
def test_no_other_edge_is_better(dim, epsilon):
    deviations = np.linspace(1e-3, math.sqrt(2 * epsilon) + 3, 20_000)
    tail, moment = stats.norm.sf(deviations), stats.norm.pdf(deviations) / math.sqrt(dim)
    least = errors_at(epsilon, tail, moment, edges=deviations / math.sqrt(dim)).min()
    found = GaussianCap(dim=dim, epsilon=epsilon).error
    assert found * (1 - 1e-9) - 1e-12 <= least <= found * 1.001 + 1e-6


@pytest.mark.parametrize(("dim", "epsilon"), [(2, 0.5), (20, 3.0), (200, 60.0)])
def test_the_mean_and_the_length_are_the_closed_forms(dim, epsilon):
    """E<v, u> = m, and E|v|² = 1 + g m: the orthogonal part is not normalised."""
    cap, rng, u = GaussianCap(dim=dim, epsilon=epsilon), seeded_rng(3), unit_vector(dim).astype(float)
    u /= np.linalg.norm(u)
    drawn = np.array([cap.draw(u, rng) for _ in range(4000)])
    for values, expected in ((drawn @ u, cap.scale), ((drawn**2).sum(axis=1), cap.size**2)):
        assert abs(values.mean() - expected) < 4.5 * values.std() / math.sqrt(values.size)
    assert cap.size**2 == pytest.approx(1 + cap.edge * cap.scale, rel=1e-12)
