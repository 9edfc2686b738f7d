"""The search for (s, t, τ): near the exhaustive best, monotone in the bits, and true to the exact law."""

import itertools
import math

import numpy as np
import pytest

from sqsgd.codec import SignedSubset
from sqsgd.mechanisms.sparse_law import SparseLaw
from sqsgd.numerics.gaussian import largest_sum
from sqsgd.schemes.privunit import sphere_cap
from sqsgd.schemes.sparse_choice import best_sparse, most_coordinates, of_counts


def log_masses(size, near, count):
    """ln of the share of codes with l matches, for every l: plain sums over the wrong signs."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1)))])

    def log_binomial(n, k):
        return factorials[n] - factorials[k] - factorials[n - k]

    hits = np.arange(max(0, near + count - size), min(near, count) + 1)
    codes = log_binomial(near, hits) + log_binomial(size - near, count - hits) - hits * math.log(2)
    codes -= log_binomial(size, count)
    rows = [(hits >= right, right) for right in range(min(near, count) + 1)]
    return np.array([np.logaddexp.reduce(codes[at] + log_binomial(hits[at], right)) for at, right in rows])


def slow_energy(size, near, count, epsilon):
    """The least energy over all thresholds, and the threshold."""
    masses = log_masses(size, near, count)
    high = np.logaddexp.accumulate(masses[::-1])[::-1]
    gain = epsilon + math.log(-math.expm1(-epsilon))
    matches = np.log(np.arange(1, masses.size)) + masses[1:] + gain - np.logaddexp(0.0, gain + high[1:])
    scale = math.exp(matches.max()) * largest_sum(size, near) / near
    return count / scale**2, matches


@pytest.mark.parametrize("epsilon", [0.3, 4.0, 30.0, 300.0])
@pytest.mark.parametrize("size", [5, 64, 700])
def test_the_threshold_is_the_best_of_all(size, epsilon):
    """Against every threshold, with masses that are sums: the recurrence and where it ends lose nothing."""
    numbers = np.random.default_rng(size)
    for _ in range(12):
        near, count = (int(numbers.integers(1, min(size, 200) + 1)) for _ in range(2))
        found = of_counts(size, near, count, epsilon)
        energy, matches = slow_energy(size, near, count, epsilon)
        assert math.isclose(found.energy, energy, rel_tol=1e-6)
        assert matches[found.threshold - 1] > matches.max() - 1e-6


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


@pytest.mark.parametrize(
    ("epsilon", "budgets"),
    [(8.0, range(16, 100, 5)), (100.0, range(16, 400, 12)), (400.0, range(600, 800, 5))],
)
@pytest.mark.parametrize("size", [1024, 4096])
def test_more_bits_never_hurt(size, epsilon, budgets):
    energies = [best_sparse(size, epsilon, bits).energy for bits in budgets]
    least = itertools.accumulate(energies, min)
    assert all(energy <= 1.001 * before for before, energy in zip(least, energies, strict=True))


@pytest.mark.parametrize(
    ("size", "near", "count"), [(4096, 64, 64), (131072, 160, 52), (64, 40, 30), (48, 48, 24), (50, 30, 25)]
)
@pytest.mark.parametrize("epsilon", [2.0, 40.0, 394.0])
def test_floats_agree_with_the_exact_law(size, near, count, epsilon):
    choice = of_counts(size, near, count, epsilon)
    law = SparseLaw(size=size, near=near, count=count, threshold=choice.threshold, epsilon=epsilon)
    scale = law.mean_matches * largest_sum(size, near) / near
    assert math.isclose(choice.energy, count / scale**2, rel_tol=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 50, 300])
def test_the_most_coordinates_are_those_that_fit(size):
    """Against asking for every number of coordinates; one more bit never allows fewer."""
    needed = [SignedSubset(count, size).bits for count in range(1, max(size // 2, 1) + 1)]
    for bits in range(needed[-1] + 3):
        assert most_coordinates(size, bits) == sum(each <= bits for each in needed)


def test_the_budget_of_bits_is_kept():
    for bits in (12, 13, 14, 40, 200, 1000):
        most = most_coordinates(4096, bits)
        assert most == 0 or SignedSubset(most, 4096).bits <= bits
        assert SignedSubset(most + 1, 4096).bits > bits
    assert best_sparse(4096, 8.0, 12) is None


def test_wrong_signs_count_in_dense_codes():
    """Half of 1,024 coordinates at ε = 400: matches alone promise 1.34 of the optimum; it is 1.55."""
    size, count, epsilon = 1024, 512, 400.0
    masses = log_masses(size, count, count)
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
