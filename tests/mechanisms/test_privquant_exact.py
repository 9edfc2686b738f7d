"""Exhaustive checks in rational arithmetic of exact ε and unbiasedness, which fail on broken mechanisms."""

import math
from fractions import Fraction

import numpy as np
import pytest
import reference

from sqsgd import PrivQuant

SMALL = [(1, 2), (1, 5), (2, 2), (2, 4), (3, 2), (3, 3), (4, 2), (4, 3), (5, 2), (3, 5)]


def check_mechanism(dim, levels, densities, threshold, scale, epsilon):
    """Check an (A, B) mechanism that claims a scale and an ε exactly, over all inputs and outputs."""
    above, below = densities
    codes = reference.all_codes(dim, levels)
    values = [Fraction(2 * k, levels - 1) - 1 for k in range(levels)]
    for u in codes:
        matches = (codes == u).sum(axis=1)
        density = [above if count >= threshold else below for count in matches]
        assert sum(density) == 1, "densities do not sum to one"
        for j in range(dim):
            mean = sum(p * values[v[j]] for p, v in zip(density, codes, strict=True))
            assert mean == scale * values[u[j]], "the estimate is biased"
    ratio = max(above, below) / min(above, below)
    assert math.log(ratio) <= epsilon * (1 + 1e-12), "a likelihood ratio exceeds e^epsilon"
    assert math.log(ratio) >= epsilon * (1 - 1e-12), "epsilon is not attained"


@pytest.mark.parametrize(("dim", "levels"), SMALL)
def test_every_threshold_is_exactly_private_and_unbiased(dim, levels):
    for threshold in range(1, dim + 1):
        for keep in (Fraction(1, 2), Fraction(9, 10), Fraction(999, 1000)):
            above, below = reference.densities(dim, levels, threshold, keep)
            if above <= below:
                with pytest.raises(ValueError, match="no better than chance"):
                    PrivQuant(dim, levels, threshold=threshold, keep=keep)
                continue
            q = PrivQuant(dim, levels, threshold=threshold, keep=keep)
            weight = math.comb(dim - 1, threshold - 1) * (levels - 1) ** (dim - threshold)
            scale = weight * (above - below)
            check_mechanism(dim, levels, (above, below), threshold, scale, q.epsilon)
            assert math.isclose(q.scale, float(scale), rel_tol=1e-14)
            assert np.allclose(q.law.log_densities, [math.log(above), math.log(below)], rtol=1e-13)


@pytest.mark.parametrize("broken", ["p", "tau", "scale", "epsilon"])
def test_the_check_catches_a_broken_mechanism(broken):
    dim, levels, threshold, keep = 4, 3, 3, Fraction(9, 10)
    q = PrivQuant(dim, levels, threshold=threshold, keep=keep)
    above, below = reference.densities(dim, levels, threshold, keep)
    scale = math.comb(dim - 1, threshold - 1) * (levels - 1) ** (dim - threshold) * (above - below)
    epsilon = q.epsilon
    if broken == "p":
        above, below = reference.densities(dim, levels, threshold, Fraction(95, 100))
    elif broken == "tau":
        threshold -= 1
    elif broken == "scale":
        scale *= Fraction(101, 100)
    else:
        epsilon *= 0.99
    with pytest.raises(AssertionError):
        check_mechanism(dim, levels, (above, below), threshold, scale, epsilon)


@pytest.mark.parametrize(("dim", "levels"), SMALL)
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0, 40.0])
def test_log_density_sums_to_one_and_respects_epsilon(dim, levels, epsilon):
    q = PrivQuant(dim, levels, epsilon)
    codes = reference.all_codes(dim, levels)
    table = np.array([[q.log_density(v, u) for v in codes] for u in codes])
    assert np.allclose(np.exp(table).sum(axis=1), 1.0, rtol=1e-12)
    gaps = table.max(axis=0) - table.min(axis=0)
    assert gaps.max() <= q.epsilon == epsilon
    assert gaps.max() >= epsilon * (1 - 1e-12) - 1e-12


@pytest.mark.parametrize(("dim", "levels"), [(1, 2), (3, 2), (3, 3), (2, 4)])
def test_log_likelihood_averages_over_rounding(dim, levels):
    q, bound = PrivQuant(dim, levels, 2.0), 0.5
    codes = reference.all_codes(dim, levels)
    for x in ([0.1, -0.3, 0.5], [0.0, 0.0, 0.0], [9.0, -9.0, 0.26]):
        x = np.array(x[:dim])
        position = (np.clip(x, -bound, bound) + bound) * (levels - 1) / (2 * bound)
        chance = np.maximum(0, 1 - np.abs(position - codes)).prod(axis=1)
        for out in codes:
            density = sum(p * math.exp(q.log_density(out, u)) for p, u in zip(chance, codes, strict=True))
            assert math.isclose(q.log_likelihood(out, x, bound), math.log(density), rel_tol=1e-6)
