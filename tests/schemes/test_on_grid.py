"""PrivUnit and PrivUnitG within a budget: the grid, the choice of levels, the error."""

import math

import numpy as np
import pytest
from cases import unit_vector
from scipy import stats

from sqsgd import Task, make_scheme, seeded_rng
from sqsgd.codec import Column
from sqsgd.schemes._on_grid import Grid, OnGrid, best_grid


def grid_sees_only_what_is_private(mechanism):
    """Codes and symbol are those of the private columns, drawn by the same generator."""
    for seed in range(20):
        x = unit_vector(mechanism.dim, seed=seed)
        codes, symbol = mechanism.randomize(x, 1.2, seeded_rng(seed))
        noisy, same = mechanism.inner.randomize(x, 1.2, seeded_rng(seed))
        step = mechanism.inner.cap.size / math.sqrt(mechanism.dim)
        if not (np.array_equal(codes, mechanism.grid.codes(noisy / np.float32(step))) and symbol == same):
            return False
    return True


@pytest.mark.parametrize("name", ["privunit", "privunit-g"])
def test_the_grid_sees_only_what_is_private(name, monkeypatch):
    mechanism = make_scheme(name, dim=300, epsilon=20.0, bytes=64).mechanism
    assert grid_sees_only_what_is_private(mechanism)

    def leaking(self, x, bound, rng):
        noisy, symbol = self.inner.randomize(x, bound, rng)
        return self.grid.codes(np.where(np.abs(x) < 1e-3, x, noisy) * math.sqrt(self.dim)), symbol

    monkeypatch.setattr(OnGrid, "randomize", leaking)
    assert not grid_sees_only_what_is_private(mechanism)


@pytest.mark.parametrize(
    ("levels", "loss"), [(2, 0.3634), (3, 0.1902), (4, 0.1188), (8, 0.03744), (16, 0.01154)]
)
def test_the_loss_of_the_grid_is_that_of_maxs_table(levels, loss):
    """J. Max, Quantizing for minimum distortion (1960), table 2: uniform quantisers of a Gaussian."""
    assert abs(1 - 1 / best_grid(levels).cost - loss) < 0.0003


@pytest.mark.parametrize(
    "grid", [Grid(levels=2, reach=0.3), Grid(levels=5, reach=1.2), Grid(levels=16, reach=4.0)]
)
def test_the_grids_closed_forms(grid):
    y = stats.norm.ppf((np.arange(400_000) + 0.5) / 400_000)
    q = grid.values(grid.codes(y))
    assert np.max(np.abs(q - np.clip(y, -grid.reach, grid.reach))) <= grid.step / 2 + 1e-9 or grid.levels == 2
    assert abs(np.mean(q * y) / grid.kept_share - 1) < 1e-4
    assert abs(np.mean(q * q) / np.mean(q * y) ** 2 / grid.cost - 1) < 2e-4


def predicted(scheme, share):
    error = scheme.mechanism.relative_error(share)
    for i, transform in reversed(list(enumerate(scheme.transforms))):
        error = transform.error_before(error, scheme._dims[i])
    return error


@pytest.mark.parametrize("name", ["privunit", "privunit-g"])
@pytest.mark.parametrize(
    ("budget", "model"),
    [({"dim": 200, "epsilon": 20.0}, 0.0), ({"dim": 1, "epsilon": 3.0}, 0.0)]
    + [({"dim": 1000, "epsilon": 60.0, "bits": bits}, 0.02) for bits in (256, 1500, 9000)],
)
def test_predicted_error(name, budget, model):
    """Exact for every vector as float32; on the grid, rotated coordinates are Gaussian within 2 %."""
    scheme, rng, errors = make_scheme(name, **budget), seeded_rng(6), []
    for client in range(2500):
        x = unit_vector(scheme.dim, seed=client % 40)
        task = Task(round=0, client=client, seed=5, dim=scheme.dim, bound=1 / 0.7)
        errors.append(np.sum((scheme.decode(scheme.encode(x, task, rng), task) - x) ** 2))
    expected = predicted(scheme, 0.7)
    assert abs(np.mean(errors) - expected) < model * expected + 3 * np.std(errors) / len(errors) ** 0.5


@pytest.mark.parametrize("name", ["privunit", "privunit-g"])
@pytest.mark.parametrize("bits", [40, 300, 2000, 5000])
def test_the_levels_are_well_chosen(name, bits):
    made = [make_scheme(name, dim=900, epsilon=70.0, bits=bits)]
    made += [
        make_scheme(name, dim=900, epsilon=70.0, bits=bits, levels=levels)
        for levels in range(2, 40)
        if Column(min(64, bits), levels).bits <= bits
    ]
    assert made[0].nmse <= 1.01 * min(scheme.nmse for scheme in made)


def test_invalid_option_combinations_are_refused():
    with pytest.raises(ValueError, match=r"levels = 4 .* need a budget"):
        make_scheme("privunit", dim=9, epsilon=1.0, levels=4)
    with pytest.raises(ValueError, match="bits = 1 cannot hold one code of levels = 3"):
        make_scheme("privunit", dim=9, epsilon=1.0, bytes=1, levels=3)
    mechanism = make_scheme("privunit-g", dim=9, epsilon=1.0, bytes=2).mechanism
    with pytest.raises(NotImplementedError, match="inner"):
        mechanism.log_density((np.zeros(9), np.zeros(1)), np.zeros(9), 1.0)
