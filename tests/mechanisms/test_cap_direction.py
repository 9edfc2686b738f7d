"""Directions from a cap: the density, the sampler, and that broken ones are caught."""

import math

import numpy as np
import pytest
from cases import unit_vector
from scipy import stats
from test_privunit import BUDGETS

from sqsgd import seeded_rng
from sqsgd._internal import exact
from sqsgd.mechanisms.cap_direction import Cap, CapDirection, normals
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.schemes.privunit import GaussianCap, SphereCap

CAPS = (SphereCap, GaussianCap)


@pytest.mark.parametrize("make", CAPS)
@pytest.mark.parametrize("epsilon", [0.005, 0.5, 30.0, 400.0, 1e5])
@pytest.mark.parametrize("dim", [1, 2, 3, 777, 2**24])
def test_any_epsilon_and_any_dimension(make, dim, epsilon):
    cap = make(dim=dim, epsilon=epsilon)
    high, low = cap.log_densities
    assert 0 < cap.scale < math.inf
    assert 0 <= cap.error < math.inf
    assert epsilon * (1 - 1e-12) - 1e-12 < high - low <= epsilon
    with exact.precision(256):  # densities of both sides add up to one
        above, below = cap.weights()
        assert abs(above * cap.tail() + below * (1 - cap.tail()) - 1) < 1e-20
    if dim < 2**24:
        direction = unit_vector(dim).astype(np.float64)
        direction /= np.linalg.norm(direction)
        for seed in range(5):
            drawn = cap.draw(direction, seeded_rng(seed))
            assert np.isfinite(drawn).all()
            assert make is GaussianCap or abs(np.linalg.norm(drawn) - 1) < 1e-12


def worst_ratio(mechanism, pairs=300):
    """The largest |ln density - ln density| between one vector and others, over reports of the first."""
    rng, worst, bound = seeded_rng(4), 0.0, 1.0
    for seed in range(pairs):
        x, other = (unit_vector(mechanism.dim, seed=2 * seed + i) * (0.3 + 0.7 * i) for i in (0, 1))
        columns = mechanism.randomize(x, bound, rng)
        seen = [mechanism.log_density(columns, y, bound) for y in (x, other, -x, 0 * x)]
        worst = max(worst, max(seen) - min(seen))
    return worst


@pytest.mark.parametrize("make", CAPS)
@pytest.mark.parametrize(("dim", "epsilon"), BUDGETS)
def test_density_ratio(make, dim, epsilon):
    """Bounded by ε and, as there are only two densities and a bounded norm, close to it."""
    mechanism = CapDirection(cap=make(dim=dim, epsilon=epsilon), norm=ScalarDP(1.0, epsilon / 4))
    assert mechanism.privacy.epsilon == pytest.approx(1.25 * epsilon, rel=1e-15)
    assert 0.9 * mechanism.privacy.epsilon < worst_ratio(mechanism) <= mechanism.privacy.epsilon + 1e-9


@pytest.mark.parametrize("make", CAPS)
def test_a_density_of_twice_the_budget_is_caught(make, monkeypatch):
    weights = Cap.weights
    monkeypatch.setattr(Cap, "weights", lambda cap: weights(make(dim=cap.dim, epsilon=2 * cap.epsilon)))
    mechanism = CapDirection(cap=make(dim=10, epsilon=6.0), norm=ScalarDP(1.0, 1.0))
    assert worst_ratio(mechanism) > mechanism.privacy.epsilon + 1e-9


def parts_of_draws(cap, trials=4000):
    """<v, u> of many draws, and v's component along a fixed vector orthogonal to u."""
    rng, u = seeded_rng(8), unit_vector(cap.dim).astype(np.float64)
    u /= np.linalg.norm(u)
    side = np.roll(u, 1) - (np.roll(u, 1) @ u) * u
    side /= np.linalg.norm(side)
    draws = np.array([cap.draw(u, rng) for _ in range(trials)])
    return draws @ u, draws @ side


def p_value(cap, along):
    """A Kolmogorov-Smirnov test against P(T > t) under the law whose privacy is proved."""
    a = (cap.dim - 1) / 2
    if isinstance(cap, SphereCap):
        beyond = np.where(along > 0, 1, -1) * stats.beta.sf(along**2, 0.5, a) / 2 + (along <= 0)
    else:
        beyond = stats.norm.sf(along * math.sqrt(cap.dim))
    high, low = cap.log_densities
    tail = float(cap.tail())
    inside = np.exp(high + np.log(np.maximum(beyond, 1e-300)))
    upper = np.where(
        along >= cap.edge, inside, math.exp(high + math.log(tail)) + math.exp(low) * (beyond - tail)
    )
    return stats.kstest(upper, "uniform").pvalue


@pytest.mark.parametrize("make", CAPS)
@pytest.mark.parametrize(("dim", "epsilon"), BUDGETS)
def test_the_sampler_has_the_density(make, dim, epsilon):
    """Along u the law is that of the density; orthogonal to it, all directions are alike."""
    cap = make(dim=dim, epsilon=epsilon)
    along, aside = parts_of_draws(cap)
    assert p_value(cap, along) > 1e-6
    if make is GaussianCap:
        assert stats.kstest(aside * math.sqrt(dim), "norm").pvalue > 1e-6
    elif dim > 2:
        share = aside**2 / (1 - along**2)
        assert stats.kstest(share, "beta", (0.5, (dim - 2) / 2)).pvalue > 1e-6
    assert abs(np.mean(aside > 0) - 0.5) < 5 * 0.5 / along.size**0.5


def sphere_power(cap, across, rng):
    rest = (1 - cap.edge**2) * (1 - rng.uniform()) ** (2 / (cap.dim - 1))
    return math.sqrt(1 - rest), math.sqrt(rest)


def gaussian_power(cap, across, rng):
    along = math.sqrt(cap.deviations**2 - 2 * math.log(1 - rng.uniform()))
    return along / math.sqrt(cap.dim), across / math.sqrt(cap.dim)


FAR_WITHOUT_REJECTION = {SphereCap: sphere_power, GaussianCap: gaussian_power}


@pytest.mark.parametrize("make", CAPS)
@pytest.mark.parametrize("broken", ["always inside", "without rejection"])
def test_broken_samplers_are_caught(make, broken, monkeypatch):
    """p = sigmoid(...) is 1.0 in floats at large ε; a power instead of a beta is wrong near the middle."""
    cap = make(dim=10, epsilon=4.0)
    assert cap.dim * cap.edge**2 > 1
    if broken == "always inside":
        vars(cap)["_side"] = type("Always", (), {"draw": lambda self, rng: 1})()
    else:
        monkeypatch.setattr(make, "far", FAR_WITHOUT_REJECTION[make])
    assert p_value(cap, parts_of_draws(cap, trials=20_000)[0]) < 1e-6


def test_normals_are_normal():
    assert stats.kstest(normals(100_001, seeded_rng(5)), "norm").pvalue > 1e-6
