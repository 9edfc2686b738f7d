"""PrivUnit_∞: the number of coordinates and their range."""

import numpy as np
import pytest
from cases import unit_vector

from sqsgd import PrivQuant, make_scheme, seeded_rng


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 1.5, 3.0, 4.6, 4.8, 8.0, 20.0, 400.0])
@pytest.mark.parametrize("most", [1, 5, 90, 4096])
def test_no_other_number_of_coordinates_is_better(epsilon, most):
    """Except for the parity of n: 3 % between neighbours, because thresholds are whole numbers."""
    scheme = make_scheme("privunit-inf", dim=4096, epsilon=epsilon, bits=most)
    sizes = [size for size in [*range(1, 91), 200, 511, 1024, 2047, 4096] if size <= most]
    best = min(1 / (size * PrivQuant(size, 2, epsilon).scale ** 2) for size in sizes)
    assert 1 / (scheme.mechanism.dim * scheme.mechanism.quantizer.scale**2) <= 1.03 * best


def test_coordinates_beyond_the_range_are_clamped():
    """± reach times the root mean square of a vector as long as the bound; the estimate is as wide."""
    near, far = (
        make_scheme("privunit-inf", dim=256, epsilon=80.0, bytes=32, reach=reach).mechanism
        for reach in (2.0, 4.0)
    )
    end = np.float32(4.0 / 16)
    x = np.where(unit_vector(256) > 0, end, -end)
    sent = [far.randomize(scale * x, 1.0, seeded_rng(1)) for scale in (1, 1000)]
    assert np.array_equal(sent[0][0], sent[1][0])
    assert np.count_nonzero((sent[0][0] == 1) == (x > 0)) >= far.quantizer.threshold
    assert np.allclose(far.estimate(sent[0], 1.0), 2 * near.estimate(sent[0], 1.0))
    with pytest.raises(ValueError, match=r"reach = 21\.0"):
        make_scheme("privunit-inf", dim=256, epsilon=80.0, bytes=32, reach=21.0)
