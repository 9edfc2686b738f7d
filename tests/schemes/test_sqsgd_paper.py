"""sqSGD as in the paper: levels over a range, and the largest magnitude for the next one."""

import numpy as np
import pytest

from sqsgd import make_scheme, seeded_rng
from sqsgd.mechanisms.privquant import PrivQuant


def paper(**options):
    return make_scheme("sqsgd-paper", **{"dim": 300, "epsilon": 100.0, "bytes": 64, **options})


def test_the_defaults_are_the_papers():
    """K = 16, the 0.9/0.1 split; of 300 coordinates a power of two: 128 codes of four bits."""
    scheme = paper()
    quantizer = scheme.mechanism.quantizer
    assert (quantizer.levels, quantizer.dim, scheme.residual) == (16, 128, True)
    same = PrivQuant(128, 16, 100.0, rule="paper")
    assert (quantizer.threshold, quantizer.keep) == (same.threshold, same.keep)
    assert paper(rule="optimal").nmse < scheme.nmse
    assert paper(bytes=512).residual is False
    assert all(transform.shared for transform in scheme.transforms[1:])


def test_an_adaptive_range_costs_its_share():
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
    found = [mechanism.magnitude(mechanism.randomize(x, 1.0, rng), 1.0) for _ in range(3000)]
    assert abs(np.mean(found) - reported) < 4 * np.std(found) / 3000**0.5
    plain = paper().mechanism
    assert plain.magnitude(plain.randomize(x, 1.0, rng), 1.0) is None
