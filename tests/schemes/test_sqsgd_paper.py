"""PrivQuant over a public range: sqSGD as in the paper, SQKR and PrivUnit_∞."""

import math

import numpy as np
import pytest

from sqsgd import PrivQuant, make_scheme, seeded_rng
from sqsgd.schemes.sqsgd_paper import best_size


def paper(**options):
    return make_scheme("sqsgd-paper", **{"dim": 300, "epsilon": 100.0, "bytes": 64, **options})


def test_an_adaptive_range_costs_its_share():
    assert (paper().keeps_state, paper(bytes=512).keeps_state) == (True, False)
    scheme = paper(adaptive=True, norm_epsilon=4.0)
    assert scheme.mechanism.largest.epsilon == 4.0
    assert scheme.mechanism.quantizer.epsilon <= 96.0
    assert scheme.privacy.epsilon <= 100.0
    assert (scheme.code_bits, scheme.bits) == (paper().code_bits, paper().bits + 8)
    for wrong in (0.05, 99.95):
        with pytest.raises(ValueError, match=f"norm_epsilon = {wrong}"):
            paper(adaptive=True, norm_epsilon=wrong)


@pytest.mark.parametrize(("largest", "reported"), [(0.3, 0.3), (1.5, 1.5), (7.0, 2.0)])
def test_the_largest_magnitude_is_that_before_privacy_up_to_twice_the_bound(largest, reported):
    """So the bound can move both ways; after privatisation the largest magnitude is the range's end."""
    mechanism, rng = paper(adaptive=True, norm_epsilon=2.0).mechanism, seeded_rng(4)
    x = np.full(128, 0.01, np.float32)
    x[5] = -largest
    found = [mechanism.magnitude(mechanism.randomize(x, 1.0, rng), 1.0) for _ in range(1200)]
    assert abs(np.mean(found) - reported) < 4 * np.std(found) / 1200**0.5
    plain = paper().mechanism
    assert plain.magnitude(plain.randomize(x, 1.0, rng), 1.0) is None


# ---------------------------------------------------------------- SQKR and PrivUnit_∞


@pytest.mark.parametrize("epsilon", [0.02, 0.7, 1.0, 3.0, 10.0, 77.7, 400.0])
@pytest.mark.parametrize("most", [1, 2, 17, 700])
def test_the_best_size_is_the_best(epsilon, most):
    sizes = np.arange(1, most + 1)
    log_inflation = np.logaddexp(0, sizes * math.log(2) + np.log1p(-(0.5**sizes)) - epsilon)
    assert best_size(epsilon, most) == sizes[np.argmin(2 * log_inflation - np.log(sizes))]


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 1.5, 3.0, 4.6, 4.8, 8.0, 20.0, 400.0])
@pytest.mark.parametrize("most", [1, 11, 512])
def test_no_other_number_of_coordinates_is_better(epsilon, most):
    """Except for the parity of n: 3 % between neighbours, because thresholds are whole numbers."""
    scheme = make_scheme("privunit-inf", dim=4096, epsilon=epsilon, bytes=most)
    sizes = [size for size in [*range(1, 91), 200, 511, 1024, 2047, 4096] if size <= 8 * most]
    best = min(1 / (size * PrivQuant(size, 2, epsilon).scale ** 2) for size in sizes)
    assert 1 / (scheme.mechanism.dim * scheme.mechanism.quantizer.scale**2) <= 1.03 * best
