"""SQKR and PrivUnit_∞, both special cases of PrivQuant with two levels."""

import math

import numpy as np
import pytest
from cases import unit_vector

from sqsgd import PrivQuant, Task, make_scheme, seeded_rng
from sqsgd.schemes.sqkr import best_size

LARGE = [(119850, 400.0, 2048, 567), (1722224, 2000.0, 57344, 2873)]


@pytest.mark.parametrize(("dim", "epsilon", "bits", "size"), LARGE)
@pytest.mark.parametrize("index", [0, 1])
def test_errors_agree_with_independent_computations(dim, epsilon, bits, size, index):
    """Both are for the padded dimension D; the error on the padding is cut off, which leaves d / D of it."""
    padded = 1 << (dim - 1).bit_length()
    if index == 0:
        scheme = make_scheme("sqkr", dim=dim, epsilon=epsilon, bits=bits)
        # error_before counts clamping as noise: (D / k) (2 - 2 erf(3 / √2)) too much.
        clamped = 2 * math.erfc(3 / math.sqrt(2)) * padded / size
        error = scheme.nmse * padded / dim - clamped
    else:  # signs with all of ε and a known norm
        scale = PrivQuant(size, 2, epsilon, threshold=size).scale
        error = math.pi / 2 * padded / size / scale**2 - 1
    assert abs(error - {400.0: (2083, 363), 2000.0: (6571, 1146)}[epsilon][index]) < 1


@pytest.mark.parametrize("epsilon", [0.02, 0.7, 1.0, 3.0, 10.0, 77.7, 400.0])
@pytest.mark.parametrize("most", [1, 2, 17, 700])
def test_the_best_size_is_the_best(epsilon, most):
    sizes = np.arange(1, most + 1)
    log_inflation = np.logaddexp(0, sizes * math.log(2) + np.log1p(-(0.5**sizes)) - epsilon)
    assert best_size(epsilon, most) == sizes[np.argmin(2 * log_inflation - np.log(sizes))]


@pytest.mark.parametrize(("size", "epsilon"), [(1, 0.3), (5, 2.0), (60, 40.0)])
def test_it_is_randomised_response_over_all_codes(size, epsilon):
    high, low = PrivQuant(size, 2, epsilon, threshold=size).law.log_densities
    whole = np.logaddexp(epsilon, math.log(2**size - 1))
    assert abs(high - (epsilon - whole)) < 1e-12
    assert abs(low + whole) < 1e-12


def test_without_a_budget():
    whole = make_scheme("privunit-inf", dim=300, epsilon=9.0)
    assert (whole.mechanism.dim, whole.mechanism.quantizer.levels, whole.privacy.epsilon) == (512, 2, 9.0)
    assert make_scheme("sqkr", dim=5000, epsilon=9.0).mechanism.dim == best_size(9.0, 8192)


@pytest.mark.parametrize(
    ("name", "options"),
    [("sqkr", {}), ("sqkr", {"size": 40}), ("sqkr", {"signs": True}), ("privunit-inf", {})],
)
def test_predicted_error(name, options):
    """Within 2 % for the model of Gaussian coordinates: clamping, and the sent block's varying norm."""
    scheme, rng, errors = make_scheme(name, dim=1000, epsilon=60.0, bytes=32, **options), seeded_rng(6), []
    expected = scheme.mechanism.relative_error(0.7)
    for i, transform in reversed(list(enumerate(scheme.transforms))):
        expected = transform.error_before(expected, scheme._dims[i])
    for client in range(2500):
        x = unit_vector(1000, seed=client % 40)
        task = Task(round=0, client=client, seed=5, dim=1000, bound=1 / 0.7)
        errors.append(np.sum((scheme.decode(scheme.encode(x, task, rng), task) - x) ** 2))
    assert abs(np.mean(errors) - expected) < 0.02 * expected + 3 * np.std(errors) / len(errors) ** 0.5


def test_invalid_option_combinations_are_refused():
    with pytest.raises(ValueError, match=r"size = 9 must be .* from 1 to 8"):
        make_scheme("sqkr", dim=300, epsilon=1.0, bytes=1, size=9)
    with pytest.raises(ValueError, match=r"norm_epsilon = 1\.0 is for signs"):
        make_scheme("sqkr", dim=300, epsilon=2.0, bytes=1, norm_epsilon=1.0)
