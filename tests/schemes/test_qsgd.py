"""QSGD: unbiased rounding to fractions of the norm, with the closed-form variance."""

import numpy as np
import pytest
from clear import X, exact_moments

from sqsgd import make_scheme
from sqsgd.schemes.qsgd import ShareOfNorm

ROUNDED = [ShareOfNorm(dim=4, levels=1), ShareOfNorm(dim=4, levels=3)]


@pytest.mark.parametrize("mechanism", ROUNDED, ids=lambda m: m.identity)
def test_the_variance_is_the_closed_form(mechanism):
    """Over all reports, probabilities sum to one, the mean is x, and the variance is the closed form."""
    norm, levels = np.linalg.norm(X), mechanism.levels
    part = levels * np.abs(X.astype(float)) / norm % 1
    expected = np.sum((norm / levels) ** 2 * part * (1 - part))
    assert expected <= min(4 / levels**2, 2 / levels) * norm**2
    mean, variance = exact_moments(mechanism, X)
    assert np.allclose(mean, X, atol=1e-7)
    assert variance == pytest.approx(expected, abs=1e-6)


def test_no_other_number_of_levels_predicts_less():
    for dim, bits in ((300, 512), (119850, 2048), (64, 512)):
        best = make_scheme("qsgd", dim=dim, bits=bits).nmse
        others = [make_scheme("qsgd", dim=dim, bits=bits, levels=levels).nmse for levels in range(1, 120)]
        assert best <= 1.01 * min(others)
