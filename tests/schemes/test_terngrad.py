"""TernGrad: unbiased signs and zeros, with the closed-form variance."""

import numpy as np
import pytest
from clear import X, exact_moments, measured

from sqsgd import make_scheme
from sqsgd.schemes.terngrad import Ternary

ROUNDED = [Ternary(dim=4), Ternary(dim=4, clip=1.2)]


@pytest.mark.parametrize("mechanism", ROUNDED, ids=lambda m: m.identity)
def test_the_variance_is_the_closed_form(mechanism):
    """Over all reports, probabilities sum to one, and mean (clamped) and variance are the closed forms."""
    limit = np.inf if mechanism.clip is None else np.float32(mechanism.clip * np.linalg.norm(X) / 2)
    x = np.clip(X.astype(float), -limit, limit)
    expected = np.sum(np.abs(x) * (np.abs(x).max() - np.abs(x)))
    mean, variance = exact_moments(mechanism, X)
    assert np.allclose(mean, x, atol=1e-7)
    assert variance == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("dim", "bits", "model"), [(5000, None, 0.01), (1000, 200, 0.05)])
def test_the_error_with_clipping_is_about_the_predicted_one(dim, bits, model):
    """The prediction for a sample counts clamping as noise: (2 - 2 erf(c/√2)) (dim / size - 1) too much."""
    scheme = make_scheme("terngrad", dim=dim, bits=bits, clip=2.5)
    mean, deviation = measured(scheme, 1500)
    assert abs(mean - scheme.nmse) < 3 * deviation + model * scheme.nmse
    assert scheme.nmse < make_scheme("terngrad", dim=dim, bits=bits).nmse
