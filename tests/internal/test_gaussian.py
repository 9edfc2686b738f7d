"""Averages over Gaussian coordinates, against quadrature and samples."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from sqsgd import PrivQuant, seeded_rng
from sqsgd._internal.geometry import clamped_square, kept_share, normal_points


@pytest.mark.parametrize("reach", [0.01, 0.5, 1.0, 2.5, 3.0, 3.5, 8.0])
def test_squares_are_those_of_the_normal_law_however_they_are_clamped(reach):
    points, tail = normal_points(), stats.norm.sf(reach)
    clamped = 1 - 2 * (reach * stats.norm.pdf(reach) + tail) + 2 * reach**2 * tail
    assert clamped_square(reach) == pytest.approx(clamped, rel=1e-9)
    assert np.mean(np.clip(points, -reach, reach) ** 2) == pytest.approx(clamped, abs=5e-5)
    assert np.mean(points**4) == pytest.approx(3.0, rel=0.01)
    assert np.allclose(points, -points[::-1], atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):  # the array is shared
        points[0] = 0.0


@pytest.mark.parametrize("reach", [0.01, 0.5, 1.0, 3.0, 8.0])
def test_the_kept_share_is_what_clamping_leaves(reach):
    def integrand(y):
        return y * np.clip(y, -reach, reach) * stats.norm.pdf(y)

    parts = [integrate.quad(integrand, *ends)[0] for ends in ((-12, -reach), (-reach, reach), (reach, 12))]
    assert kept_share(reach) == pytest.approx(sum(parts), rel=1e-8)


@pytest.mark.parametrize(
    ("levels", "epsilon", "reach"), [(2, 40.0, 0.05), (2, 5.0, 1.0), (3, 20.0, 1.5), (16, 400.0, 3.0)]
)
def test_the_energy_is_that_of_the_estimates(levels, epsilon, reach):
    """A few hundred samples of vectors and noise, clamped to ± reach and rounded."""
    dim = 512
    quantizer, rng, numbers = PrivQuant(dim, levels, epsilon), seeded_rng(3), np.random.default_rng(4)
    squares = []
    for _ in range(400):
        y = numbers.standard_normal(dim).astype(np.float32)
        squares.append(np.mean(quantizer.estimate(quantizer.randomize(y, reach, rng), reach) ** 2))
    expected = quantizer.gaussian_energy(reach)
    assert abs(np.mean(squares) - expected) < 4 * np.std(squares) / math.sqrt(len(squares)) + 1e-4 * expected
