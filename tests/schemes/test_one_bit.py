"""SQKR and PrivUnit_∞, both special cases of PrivQuant with two levels."""

import math

import numpy as np
import pytest

from sqsgd import PrivQuant, make_scheme
from sqsgd.schemes.one_bit import best_size

LARGE = [(119850, 400.0, 256, 567), (1722224, 2000.0, 7168, 2873)]


@pytest.mark.parametrize(("dim", "epsilon", "budget", "size"), LARGE)
@pytest.mark.parametrize("index", [0, 1])
def test_errors_agree_with_independent_computations(dim, epsilon, budget, size, index):
    """Both are for the padded dimension D; the error on the padding is cut off, which leaves d / D of it."""
    padded = 1 << (dim - 1).bit_length()
    if index == 0:
        scheme = make_scheme("sqkr", dim=dim, epsilon=epsilon, bytes=budget)
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


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 1.5, 3.0, 4.6, 4.8, 8.0, 20.0, 400.0])
@pytest.mark.parametrize("most", [1, 11, 512])
def test_no_other_number_of_coordinates_is_better(epsilon, most):
    """Except for the parity of n: 3 % between neighbours, because thresholds are whole numbers."""
    scheme = make_scheme("privunit-inf", dim=4096, epsilon=epsilon, bytes=most)
    sizes = [size for size in [*range(1, 91), 200, 511, 1024, 2047, 4096] if size <= 8 * most]
    best = min(1 / (size * PrivQuant(size, 2, epsilon).scale ** 2) for size in sizes)
    assert 1 / (scheme.mechanism.dim * scheme.mechanism.quantizer.scale**2) <= 1.03 * best
