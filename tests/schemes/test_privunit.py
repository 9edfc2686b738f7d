"""PrivUnit and PrivUnitG: the best cap, its error, and the grid of a budget."""

import math

import numpy as np
import pytest
from cases import unit_vector
from reference import g_test
from scipy import stats

from sqsgd import make_scheme, seeded_rng
from sqsgd.core.codec import Column
from sqsgd.schemes.privunit import GaussianCap, Grid, OnGrid, SphereCap, best_grid

BUDGETS = [(2, 0.5), (3, 5.0), (10, 1.0), (50, 0.1), (200, 60.0), (1000, 400.0)]


def errors_at(epsilon, tail, moment, edges=0.0):
    """E|v / m - u|² at other edges, from the probability and moment of the cap; E|v|² is 1 + g m."""
    mean = math.expm1(epsilon) * moment / (1 + math.expm1(epsilon) * tail)
    return (1 + edges * mean) / mean**2 - 1


def test_one_coordinate_is_randomised_response():
    cap = SphereCap(dim=1, epsilon=1.0)
    kept = sum(cap.draw(np.array([-1.0]), seeded_rng(seed))[0] == -1.0 for seed in range(2000))
    share = math.e / (1 + math.e)
    assert g_test([kept, 2000 - kept], [2000 * share, 2000 * (1 - share)]) > 1e-6


@pytest.mark.parametrize(("dim", "epsilon"), [(2, 0.5), (20, 3.0), (200, 60.0)])
def test_the_mean_and_the_length_are_the_closed_forms(dim, epsilon):
    """E<v, u> = m, and E|v|² = 1 + g m: the orthogonal part is not normalised."""
    cap, rng, u = GaussianCap(dim=dim, epsilon=epsilon), seeded_rng(3), unit_vector(dim).astype(float)
    u /= np.linalg.norm(u)
    drawn = np.array([cap.draw(u, rng) for _ in range(4000)])
    for values, expected in ((drawn @ u, cap.scale), ((drawn**2).sum(axis=1), cap.size**2)):
        assert abs(values.mean() - expected) < 4.5 * values.std() / math.sqrt(values.size)
    assert cap.size**2 == pytest.approx(1 + cap.edge * cap.scale, rel=1e-12)


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


@pytest.mark.parametrize(
    ("dim", "epsilon", "errors"), [(119850, 400.0, (153.5, 154.0)), (1722224, 2000.0, (432.9, 433.4))]
)
def test_errors_agree_with_independent_computations(dim, epsilon, errors):
    for cap, error in zip((SphereCap, GaussianCap), errors, strict=True):
        assert abs(cap(dim=dim, epsilon=epsilon).error - error) <= 0.05


def sphere_errors(dim, epsilon):
    a = (dim - 1) / 2
    edges = np.sqrt(-np.expm1(-np.linspace(1e-6, (epsilon + 5) / a, 20_000)))
    tail = stats.beta.sf(edges**2, 0.5, a) / 2
    moment = np.exp(a * np.log1p(-(edges**2))) / (2 * a * np.exp(-math.lgamma(a + 0.5) + math.lgamma(a)))
    return errors_at(epsilon, tail, moment / math.sqrt(math.pi))


def gaussian_errors(dim, epsilon):
    deviations = np.linspace(1e-3, math.sqrt(2 * epsilon) + 3, 20_000)
    tail, moment = stats.norm.sf(deviations), stats.norm.pdf(deviations) / math.sqrt(dim)
    return errors_at(epsilon, tail, moment, edges=deviations / math.sqrt(dim))


@pytest.mark.parametrize(("dim", "epsilon"), [*BUDGETS, (4, 40.0), (1000, 3.0)])
@pytest.mark.parametrize(("cap", "errors"), [(SphereCap, sphere_errors), (GaussianCap, gaussian_errors)])
def test_no_other_edge_is_better(cap, errors, dim, epsilon):
    found = cap(dim=dim, epsilon=epsilon).error
    assert found * (1 - 1e-9) - 1e-12 <= errors(dim, epsilon).min() <= found * 1.001 + 1e-6
