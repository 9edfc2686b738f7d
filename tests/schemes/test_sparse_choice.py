"""The search for (s, t, τ): near the exhaustive best, monotone in the bits, and true to the exact law."""

import itertools
import math

import pytest

from sqsgd.codec import SignedSubset
from sqsgd.mechanisms.sparse_law import SparseLaw
from sqsgd.numerics.gaussian import largest_sum
from sqsgd.schemes._sparse_choice import best_sparse, most_coordinates, of_counts


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
    """Half of 1,024 coordinates at ε = 400: without the wrong signs the error would seem a tenth smaller."""
    exact = of_counts(1024, 512, 512, 400.0)
    law = SparseLaw(size=1024, near=512, count=512, threshold=exact.threshold, epsilon=400.0)
    assert math.isclose(
        exact.energy, 512 / (law.mean_matches * largest_sum(1024, 512) / 512) ** 2, rel_tol=1e-6
    )
    assert best_sparse(1024, 400.0, 10_000).energy < exact.energy
