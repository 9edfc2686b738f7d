"""sqSGD as in the paper: levels over a range, and the largest magnitude for the next one."""

import numpy as np
import pytest
from cases import unit_vector

from sqsgd import make_scheme, seeded_rng
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.schemes.sqsgd_paper import BoundedRange


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
    assert paper(bytes=1 * 512).residual is False
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


def test_with_a_reach_the_bound_is_that_of_the_norm():
    """± reach times the root mean square coordinate of a vector as long as the bound."""
    quantizer = PrivQuant(64, 5, 60.0)
    by_norm, by_range = BoundedRange(quantizer=quantizer, reach=3.0), BoundedRange(quantizer=quantizer)
    assert by_norm.identity != by_range.identity
    x = unit_vector(64)
    sent = by_norm.randomize(x, 2.0, seeded_rng(1)), by_range.randomize(x, 3.0 * 2.0 / 8, seeded_rng(1))
    assert np.array_equal(sent[0][0], sent[1][0])
    assert np.array_equal(by_norm.estimate(sent[0], 2.0), by_range.estimate(sent[1], 0.75))
    assert by_norm.log_density(sent[0], x, 2.0) == by_range.log_density(sent[1], x, 0.75)


@pytest.mark.parametrize("share", [0.4, 1.0, 3.0])
def test_the_predicted_error(share):
    """Of Gaussian coordinates at a share of a bound of three deviations: clamped, rounded, privatised."""
    mechanism, rng, errors = paper(levels=4, epsilon=400.0).mechanism, seeded_rng(6), []
    dim, numbers = mechanism.dim, np.random.default_rng(7)
    for _ in range(1500):
        x = (share * numbers.standard_normal(dim)).astype(np.float32)
        estimate = mechanism.estimate(mechanism.randomize(x, 3.0, rng), 3.0)
        errors.append(np.sum((estimate - x) ** 2) / (dim * share**2))
    predicted = mechanism.relative_error(share)
    assert abs(np.mean(errors) - predicted) < 4 * np.std(errors) / 1500**0.5 + 0.005 * predicted
