"""The reconstruction bounds: independently computed numbers, rigour, statements."""

import itertools
import json
import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsgd.privacy.reconstruction import reconstruction_bound, reconstruction_statements

EPSILON = st.floats(0.0, 1e9) | st.floats(0.0, 50.0)

DIMENSIONS = st.integers(2, 10**12) | st.integers(2, 300)

PROBABILITY = st.floats(1e-300, 1.0) | st.floats(1e-6, 0.6)

ANY = settings(max_examples=60, deadline=None)


def cap(dimensions, cosine):
    """Cap_r(a) in 60 digits: by 2F1 of -(1-a²)/a² far out, by what lies below the edge near the middle."""
    half = mpmath.mpf(1) / 2
    a, edge = mpmath.mpf(dimensions - 1) / 2, mpmath.mpf(cosine)
    rest = (1 - edge) * (1 + edge)
    moment = rest**a / (2 * a * mpmath.beta(a, half))
    if edge**2 * dimensions > 4:
        return moment / edge * mpmath.hyp2f1(1, half, a + 1, -rest / edge**2)
    return half - 2 * a * edge * moment * mpmath.hyp2f1(1, a + half, 3 * half, edge**2)


@pytest.mark.parametrize(
    ("epsilon", "dimensions", "cosine", "unit"),
    [
        (400.0, 512, 0.894, 1e-3),
        (2000.0, 8192, 0.623, 1e-3),
        (400.0, 119850, 0.0825, 1e-4),
        (2000.0, 1722224, 0.0483, 1e-4),
    ],
)
def test_the_numbers_of_the_papers_settings(epsilon, dimensions, cosine, unit):
    assert abs(reconstruction_bound(epsilon, dimensions) - cosine) <= unit / 2


@pytest.mark.parametrize("probability", [1e-300, 1e-6, 0.05, 0.4])
@pytest.mark.parametrize(
    ("epsilon", "dimensions"),
    [(0.0, 2), (2.0, 2), (0.0, 3), (7.0, 5), (400.0, 512), (1.0, 1000), (400.0, 119850), (3.0, 2**24)],
)
def test_it_holds_at_the_result_and_fails_just_below(epsilon, dimensions, probability):
    bound = reconstruction_bound(epsilon, dimensions, probability)
    with mpmath.workdps(60):
        share = mpmath.mpf(probability) / mpmath.exp(mpmath.mpf(epsilon))
        if bound < 1.0:
            assert cap(dimensions, bound) <= share
        below = bound
        for _ in range(10):
            below = math.nextafter(below, 0.0)
        assert bound == 0.0 or cap(dimensions, below) > share


@ANY
@given(EPSILON, EPSILON, DIMENSIONS, DIMENSIONS, PROBABILITY, PROBABILITY)
def test_more_epsilon_fewer_dimensions_less_probability(epsilon, more, dimensions, fewer, probability, less):
    epsilon, more = sorted((epsilon, more))
    fewer, dimensions = sorted((fewer, dimensions))
    less, probability = sorted((less, probability))
    slack = 1 + 1e-14  # each is rounded up separately
    value = reconstruction_bound(epsilon, dimensions, probability)
    assert value <= reconstruction_bound(more, dimensions, probability) * slack
    assert value <= reconstruction_bound(epsilon, fewer, probability) * slack
    assert value <= reconstruction_bound(epsilon, dimensions, less) * slack
    assert value <= reconstruction_bound(epsilon, dimensions, probability, prior=more - epsilon) * slack


def test_half_the_sphere():
    assert reconstruction_bound(0.0, 2, 0.5) == 0.0
    assert 0.0 < reconstruction_bound(5e-324, 2, 0.5) < 1e-40
    assert reconstruction_bound(math.log(2) - 1e-9, 9, 1.0) == 0.0
    assert 0.0 < reconstruction_bound(math.log(2) + 1e-9, 9, 1.0) < 1e-8


@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 15.0, 16.0, 1e9, 1e308, math.inf])
def test_the_extremes(epsilon):
    for dimensions, probability in itertools.product((2, 3, 10**12), (5e-324, 1e-6, 0.5 - 2**-54, 1.0)):
        assert 0.0 <= reconstruction_bound(epsilon, dimensions, probability) <= 1.0


def test_a_direction_of_one_dimension_is_a_sign():
    """A sign is guessed right at least half the time: the bound is 1 unless ``probability`` covers it."""
    assert reconstruction_bound(0.5, 1) == reconstruction_bound(0.0, 1, 0.49) == 1.0
    assert reconstruction_bound(0.0, 1, 0.5) == 0.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((math.nan, 9), "epsilon = nan"),
        ((1.0, 0), "dimensions = 0"),
        ((1.0, 10**12 + 1), "dimensions = 1000000000001"),
        ((1.0, 9, 0.0), "probability = 0.0"),
        ((1.0, 9, 1.1), "probability = 1.1"),
        ((1.0, 9, 0.1, -0.1), "prior = -0.1"),
    ],
)
def test_invalid_arguments_of_the_bound(arguments, words):
    with pytest.raises(ValueError, match=words):
        reconstruction_bound(*arguments)


def test_statements_are_about_block_and_vector_after_one_and_all_rounds():
    found = reconstruction_statements(400.0, 512, 119850, 188)
    assert [each.scope for each in found] == ["block", "full", "block", "full"]
    assert [each.rounds for each in found] == [1, 1, 188, 188]
    assert "a cosine of 0.0826 (85 degrees)" in found[1].sentence  # rounded up, and degrees down
    with pytest.raises(ValueError, match="probability = 1 makes the bound vacuous"):
        reconstruction_statements(1.0, 9, 9, 1, probability=1.0)
    for each in found:
        assert json.loads(json.dumps(each.to_dict(), allow_nan=False))["sentence"] == each.sentence
        assert each.cosine == reconstruction_bound(400.0 * each.rounds, each.dimensions)
