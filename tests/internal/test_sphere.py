"""Spherical caps against mpmath."""

import mpmath
import pytest

from sqsgd._internal import exact
from sqsgd._internal.geometry import chance as _chance


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
        for ours, theirs in zip(_chance(dim, log_width), (tail, moment, moment - edge * tail), strict=True):
            assert ours.rel_accuracy_bits() > 60
            assert abs(mpmath.mpf(ours.str(40, radius=False)) / theirs - 1) < 1e-18
