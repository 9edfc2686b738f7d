"""LDP-Fed: the ordinal mechanism's share of the budget, and its levels."""

import numpy as np
import pytest

from sqsgd import make_scheme


@pytest.mark.parametrize(
    ("dim", "epsilon", "bits", "tried"), [(1 << 17, 400.0, 2048, 5571), (1 << 21, 2000.0, 57344, 18207)]
)
def test_ldp_fed_is_a_little_better_than_independent_trials(dim, epsilon, bits, tried):
    scheme = make_scheme("ldp-fed", dim=dim, epsilon=epsilon, bits=bits)
    assert 0.94 * tried < scheme.nmse < tried
    assert scheme.code_bits <= 1400


def test_all_of_the_budget_goes_to_the_coordinates_in_equal_parts():
    """α is twice the paper's: a level costs ε / (k L), and the two ends cost a whole share."""
    scheme = make_scheme("ldp-fed", dim=300, epsilon=24.0, bytes=64, coordinates=8, levels=5)
    channel = scheme.mechanism.channel
    assert (scheme.mechanism.dim, channel.alphabet, channel.epsilon) == (8, 5, 3.0)
    chances = [channel.log_probability(np.array([0]), np.array([place]))[0] for place in (0.0, 0.25, 1.0)]
    assert chances[0] - chances[2] == pytest.approx(3.0, abs=1e-9)
    kernel = channel.log_kernel
    assert kernel[2, 2] - kernel[2, 3] == pytest.approx(3.0 / 4, abs=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"levels": 1}, "levels = 1"),
        ({"levels": 10**6}, "levels = 1000000"),
        ({"reach": 0.0}, r"reach = 0\.0"),
        ({"coordinates": 300}, "coordinates = 300"),
        ({"bytes": 1, "levels": 16}, "bits = 2"),
    ],
)
def test_mistakes_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        make_scheme("ldp-fed", **{"dim": 300, "epsilon": 24.0, "bytes": 8, **options})
