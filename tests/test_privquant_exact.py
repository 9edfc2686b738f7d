"""Exhaustive checks in rational arithmetic: privacy, its attainment, unbiasedness; and that they can fail."""

import math
from fractions import Fraction

import numpy as np
import pytest
import reference

from sqsgd import PrivQuant

SMALL = [(1, 2), (1, 5), (2, 2), (2, 4), (3, 2), (3, 3), (4, 2), (4, 3), (5, 2), (3, 5)]


def check_mechanism(dim, levels, densities, threshold, scale, epsilon):
    """What must hold of an (A, B) mechanism that claims a scale and an ε: exact, all inputs and outputs."""
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


@pytest.mark.parametrize("epsilon", [390.0, 400.0, 2000.0])
def test_keep_is_never_one_and_drop_keeps_its_digits(epsilon):
    for rule in ("optimal", "paper"):
        q = PrivQuant(512, 2, epsilon, rule=rule)
        assert 0.0 < q.keep < 1.0
        assert q.drop < 1e-15
        assert -epsilon < q.log_drop < -34
        assert math.isclose(q.drop, math.exp(q.log_drop), rel_tol=1e-12)
        assert q.epsilon <= epsilon
    paper = PrivQuant(512, 2, 390.0, rule="paper")
    assert math.isclose(paper.drop, math.exp(-39) / (1 + math.exp(-39)), rel_tol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 17, 512, 5000, 1 << 20, 1 << 24])
@pytest.mark.parametrize("levels", [2, 3, 256])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 400.0, 1e5])
def test_the_whole_range_of_parameters(dim, levels, epsilon):
    q = PrivQuant(dim, levels, epsilon)
    assert q.epsilon == epsilon
    assert 1 <= q.threshold <= dim
    assert 0.0 < q.keep < 1.0
    assert 0.0 < q.scale <= 1.0
    high, low = q.law.log_densities
    assert 0.0 < high - low <= epsilon
    assert high - low >= epsilon - 1e-9 * (epsilon + dim)


def test_overrides():
    free = PrivQuant(64, 4, 20.0)
    assert PrivQuant(64, 4, 20.0, threshold=free.threshold).scale == free.scale
    fixed = PrivQuant(64, 4, threshold=free.threshold, keep=free.keep)
    assert math.isclose(fixed.epsilon, 20.0, rel_tol=1e-9)
    assert fixed.epsilon <= 20.0
    kept = PrivQuant(64, 4, 20.0, keep=0.9)
    assert kept.epsilon <= 20.0 < PrivQuant(64, 4, threshold=kept.threshold + 1, keep=0.9).epsilon
    with pytest.raises(ValueError, match="above epsilon = 19"):
        PrivQuant(64, 4, 19.0, threshold=free.threshold, keep=free.keep)


def test_the_papers_rule_is_the_corrected_one():
    q = PrivQuant(512, 16, 400.0, rule="paper")
    assert math.isclose(math.log(q.keep / q.drop), 40.0, rel_tol=1e-12)
    high, low = reference.side_sizes(512, 16, q.threshold)
    next_high, next_low = reference.side_sizes(512, 16, q.threshold + 1)
    assert math.log(low / high) <= 360.0 < math.log(next_low / next_high)
    with pytest.raises(ValueError, match="no threshold from 1 to 1"):
        PrivQuant(1, 16, 1.0, rule="paper")
