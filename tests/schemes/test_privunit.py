"""PrivUnit: the best edge of the sphere's cap, and its error."""

import math

import numpy as np
import pytest
from caps import BUDGETS, errors_at
from reference import g_test
from scipy import stats

from sqsgd import seeded_rng
from sqsgd.schemes.privunit import SphereCap


@pytest.mark.parametrize(("dim", "epsilon", "error"), [(119850, 400.0, 153.5), (1722224, 2000.0, 432.9)])
def test_errors_agree_with_independent_computations(dim, epsilon, error):
    assert abs(SphereCap(dim=dim, epsilon=epsilon).error - error) <= 0.05


@pytest.mark.parametrize(("dim", "epsilon"), [*BUDGETS, (4, 40.0), (1000, 3.0)])
def test_no_other_edge_is_better(dim, epsilon):
    a = (dim - 1) / 2
    edges = np.sqrt(-np.expm1(-np.linspace(1e-6, (epsilon + 5) / a, 20_000)))
    tail = stats.beta.sf(edges**2, 0.5, a) / 2
    moment = np.exp(a * np.log1p(-(edges**2))) / (2 * a * np.exp(-math.lgamma(a + 0.5) + math.lgamma(a)))
    least = errors_at(epsilon, tail, moment / math.sqrt(math.pi)).min()
    found = SphereCap(dim=dim, epsilon=epsilon).error
    assert found * (1 - 1e-9) - 1e-12 <= least <= found * 1.001 + 1e-6


def test_one_coordinate_is_randomised_response():
    cap = SphereCap(dim=1, epsilon=1.0)
    kept = sum(cap.draw(np.array([-1.0]), seeded_rng(seed))[0] == -1.0 for seed in range(2000))
    share = math.e / (1 + math.e)
    assert g_test([kept, 2000 - kept], [2000 * share, 2000 * (1 - share)]) > 1e-6
