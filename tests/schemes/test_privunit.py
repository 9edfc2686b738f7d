"""PrivUnit, PrivUnitG, PrivUnit as an index and vqSGD: the best parameters, their errors, the grid."""

import math

import numpy as np
import pytest
from cases import unit_vector
from scipy import stats

from sqsgd import make_scheme, seeded_rng
from sqsgd.core.codec import Column
from sqsgd.mechanisms.cap_direction import CapDirection
from sqsgd.schemes.privunit import Grid, OnGrid
from sqsgd.schemes.privunit_index import NearestVertices, best_nearest, largest_sum
from sqsgd.schemes.vqsgd import best_repeats

BUDGETS = [(2, 0.5), (3, 5.0), (10, 1.0), (50, 0.1), (200, 60.0), (1000, 400.0)]


def grid_sees_only_what_is_private(mechanism):
    """Codes and symbol are those of the private columns, drawn by the same generator."""
    for seed in range(20):
        x = unit_vector(mechanism.dim, seed=seed)
        codes, symbol = mechanism.randomize(x, 1.2, seeded_rng(seed))
        noisy, same = CapDirection.randomize(mechanism, x, 1.2, seeded_rng(seed))
        step = mechanism.cap.size / math.sqrt(mechanism.dim)
        if not (np.array_equal(codes, mechanism.grid.codes(noisy / np.float32(step))) and symbol == same):
            return False
    return True


@pytest.mark.parametrize("name", ["privunit", "privunit-g"])
def test_the_grid_sees_only_what_is_private(name, monkeypatch):
    mechanism = make_scheme(name, dim=300, epsilon=20.0, bytes=64).mechanism
    assert grid_sees_only_what_is_private(mechanism)

    def leaking(self, x, bound, rng):
        noisy, symbol = CapDirection.randomize(self, x, bound, rng)
        return self.grid.codes(np.where(np.abs(x) < 1e-3, x, noisy) * math.sqrt(self.dim)), symbol

    monkeypatch.setattr(OnGrid, "randomize", leaking)
    assert not grid_sees_only_what_is_private(mechanism)


@pytest.mark.parametrize(
    "grid", [Grid(levels=2, reach=0.3), Grid(levels=5, reach=1.2), Grid(levels=16, reach=4.0)]
)
def test_the_grids_closed_forms(grid):
    y = stats.norm.ppf((np.arange(400_000) + 0.5) / 400_000)
    q = grid.values(grid.codes(y))
    assert np.max(np.abs(q - np.clip(y, -grid.reach, grid.reach))) <= grid.step / 2 + 1e-9 or grid.levels == 2
    assert abs(np.mean(q * y) / grid.kept_share - 1) < 1e-4
    assert abs(np.mean(q * q) / np.mean(q * y) ** 2 / grid.cost - 1) < 2e-4


@pytest.mark.parametrize("name", ["privunit", "privunit-g"])
@pytest.mark.parametrize("size", [5, 38, 250, 625])
def test_the_levels_are_well_chosen(name, size):
    made = [make_scheme(name, dim=900, epsilon=70.0, bytes=size)]
    made += [
        make_scheme(name, dim=900, epsilon=70.0, bytes=size, levels=levels)
        for levels in range(2, 40)
        if Column(min(64, 8 * size), levels).bits <= 8 * size
    ]
    assert made[0].nmse <= 1.01 * min(scheme.nmse for scheme in made)


@pytest.mark.parametrize(("dim", "count"), [(64, 1), (64, 10), (64, 64), (1024, 30), (4096, 4000)])
def test_the_largest_coordinates_add_up_as_expected(dim, count):
    vectors = np.random.default_rng(1).standard_normal((2000, dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sums = np.sort(np.abs(vectors), axis=1)[:, dim - count :].sum(axis=1)
    assert (
        abs(np.mean(sums) / largest_sum(dim, count) - 1)
        < 0.006 + 4 * np.std(sums) / np.mean(sums) / 2000**0.5
    )


@pytest.mark.parametrize("epsilon", [0.1, 3.0, 8.0, 30.0])
def test_no_other_number_of_vertices_is_better(epsilon):
    best = NearestVertices(dim=256, epsilon=epsilon, nearest=best_nearest(256, epsilon)).scale
    for count in range(1, 257):
        assert NearestVertices(dim=256, epsilon=epsilon, nearest=count).scale < 1.002 * best


@pytest.mark.parametrize("dim", [1, 2, 50, 10**6, 2**31])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0, 5.0, 40.0, 1000.0])
def test_the_best_repeats_are_the_best(dim, epsilon):
    repeats = np.arange(1, 2001)
    each = epsilon / repeats
    inflation = (1 + (2 * dim - 1) * np.exp(-each)) / -np.expm1(-each)
    for most in (1, 7, 2000):
        assert best_repeats(dim, epsilon, most) == repeats[np.argmin((inflation**2 / repeats)[:most])]
