"""Norms and clipping, stochastic rounding, averages over Gaussian coordinates, spherical caps."""

import math

import mpmath
import numpy as np
import pytest
from cases import CASES, task, unit_vector
from scipy import stats

from sqsgd import seeded_rng
from sqsgd._internal import exact
from sqsgd._internal.geometry import (
    chance,
    clamped_square,
    clipped,
    normal_points,
    round_unbiased,
    rounding_chance,
)


@pytest.mark.parametrize("case", [case for case in CASES if case.notion != "record"], ids=str)
def test_every_scheme_clips_to_the_task(case):
    """A long vector with a clip gives the same message as the vector clipped by hand.

    Not where single weights or records are protected: clipping is refused there (test_coordinatewise.py).
    """
    scheme, x = case.make(), 50 * unit_vector(300)
    with_clip, without = task(scheme, clip=0.01), task(scheme)
    columns = [
        scheme.open(scheme.encode(vector, t, seeded_rng(1)), t)
        for vector, t in ((x, with_clip), (clipped(x, 0.01), without))
    ]
    for one, other in zip(*columns, strict=True):
        assert np.array_equal(one, other)


# ---------------------------------------------------------------- rounding


@pytest.mark.parametrize("position", [-1.75, 0.0, 0.2, 3.5, 7.999])
def test_each_neighbour_has_its_chance(position):
    codes = round_unbiased(np.full(40_000, position), seeded_rng(1))
    below = math.floor(position)
    assert set(codes.tolist()) <= {below, below + 1}
    above = float(rounding_chance(np.array([position]), [below + 1])[0])
    assert above == pytest.approx(position - below)
    assert stats.binomtest(int((codes > below).sum()), codes.size, above).pvalue > 1e-6


# ---------------------------------------------------------------- Gaussian coordinates


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


# ---------------------------------------------------------------- spherical caps


@pytest.mark.parametrize(
    ("dim", "log_width"),
    [
        *[(2, -1e-6), (2, -0.9), (2, -80.0), (3, -0.1), (40, -0.02), (40, -3.0), (1000, -1e-3)],
        *[(119850, -0.006), (2**24, -1e-12), (2**24, -1.7e-6), (2**24, -2e-6), (2**24, -1e-4)],
    ],
)
def test_chance_agrees_with_mpmath(dim, log_width):
    with mpmath.workdps(300 if log_width < -50 else 60), exact.precision(128):
        rest, half = mpmath.exp(mpmath.mpf(log_width)), mpmath.mpf(1) / 2
        edge, a = mpmath.sqrt(1 - rest), mpmath.mpf(dim - 1) / 2
        # P(t >= g) by 2F1(1, 1/2; a+1; -s/g²), or where that is slow, by what lies below the edge.
        moment = rest**a / (2 * a * mpmath.beta(a, half))
        if edge**2 * dim > 4:
            tail = moment / edge * mpmath.hyp2f1(1, half, a + 1, -rest / edge**2)
        else:
            tail = half - 2 * a * edge * moment * mpmath.hyp2f1(1, a + half, 3 * half, edge**2)
        for ours, theirs in zip(chance(dim, log_width), (tail, moment, moment - edge * tail), strict=True):
            assert ours.rel_accuracy_bits() > 60
            assert abs(mpmath.mpf(ours.str(40, radius=False)) / theirs - 1) < 1e-18
