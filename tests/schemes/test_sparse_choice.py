"""The search for (s, t, τ): near the exhaustive best, monotone in the bits, and true to the exact law."""

import itertools
import math

import numpy as np
import pytest

from sqsgd.codec import SignedSubset
from sqsgd.mechanisms.sparse_law import SparseLaw
from sqsgd.numerics.gaussian import largest_sum
from sqsgd.schemes._sparse_choice import _log_masses, best_sparse, most_coordinates, of_counts
from sqsgd.schemes.privunit import sphere_cap


@pytest.mark.parametrize("epsilon", [1.0, 5.0, 20.0, 60.0])
@pytest.mark.parametrize("size", [32, 96])
def test_the_search_is_near_the_exhaustive_best(size, epsilon):
    every = [
        of_counts(size, near, count, epsilon)
        for count in range(1, size // 2 + 1)
        for near in range(1, size + 1)
    ]
    found, best = best_sparse(size, epsilon, 10_000), min(every, key=lambda choice: choice.energy)
    assert found.energy <= 1.01 * best.energy


@pytest.mark.parametrize("epsilon", [8.0, 100.0])
def test_more_bits_never_hurt(epsilon):
    energies = [best_sparse(4096, epsilon, bits).energy for bits in range(16, 400, 16)]
    assert all(after <= 1.002 * before for before, after in itertools.pairwise(energies))


@pytest.mark.parametrize(
    ("size", "near", "count"), [(4096, 64, 64), (131072, 160, 52), (64, 40, 30), (48, 48, 24), (50, 30, 25)]
)
@pytest.mark.parametrize("epsilon", [2.0, 40.0, 394.0])
def test_floats_agree_with_the_exact_law(size, near, count, epsilon):
    choice = of_counts(size, near, count, epsilon)
    law = SparseLaw(size=size, near=near, count=count, threshold=choice.threshold, epsilon=epsilon)
    scale = law.mean_matches * largest_sum(size, near) / near
    assert math.isclose(choice.energy, count / scale**2, rel_tol=1e-9)


def test_the_budget_of_bits_is_kept():
    for bits in (12, 13, 14, 40, 200, 1000):
        most = most_coordinates(4096, bits)
        assert most == 0 or SignedSubset(most, 4096).bits <= bits
        assert SignedSubset(most + 1, 4096).bits > bits
    assert best_sparse(4096, 8.0, 12) is None


def test_wrong_signs_count_in_dense_codes():
    """Half of 1,024 coordinates at ε = 400: matches alone promise 1.34 of the optimum; it is 1.55."""
    size, count, epsilon = 1024, 512, 400.0
    masses = _log_masses(size, count, count)
    matches = np.log(np.maximum(np.arange(masses.size), 1e-300)) + masses
    high, hits = (np.logaddexp.accumulate(each[::-1])[::-1] for each in (masses, matches))
    alone = np.exp(epsilon + hits - np.logaddexp(0.0, epsilon + high))[1:].max()
    found, optimum = of_counts(size, count, count, epsilon), sphere_cap(size, epsilon).error
    law = SparseLaw(size=size, near=count, count=count, threshold=found.threshold, epsilon=epsilon)

    def ratio(mean):
        return (count / (mean * largest_sum(size, count) / count) ** 2 - 1) / optimum

    assert ratio(alone) == pytest.approx(1.343, abs=0.001)
    assert ratio(law.mean_matches) == pytest.approx(1.551, abs=0.001)
    assert (best_sparse(size, epsilon, 10_000).energy - 1) / optimum < 1.48
