"""Goodness-of-fit tests, and the exact laws of codes that reports are compared with."""

import math

import numpy as np
import pytest
import reference
from subjects import subject

from sqsgd import seeded_rng
from sqsgd.audit.goodness_of_fit import (
    chance_of_mean,
    g_test,
    known_codes,
    match_probabilities,
    pair_probabilities,
)
from sqsgd.audit.subject import forward
from sqsgd.mechanisms.sparse import SparseLaw


def test_g_test():
    numbers = np.random.default_rng(1)
    law = numbers.dirichlet(np.full(30, 5.0))
    for _ in range(20):
        counts = numbers.multinomial(3000, law)
        assert g_test(counts, 3000 * law)[0] == pytest.approx(reference.g_test(counts, 3000 * law), rel=1e-9)
    assert g_test([90, 10], [50, 50])[0] < 1e-12
    assert g_test([99, 1], [100, 0])[0] == g_test([0, 0, 50], [25.0, 25.0, 0.0])[0] == 0.0
    assert g_test([999, 1], [1000, 1e-9])[0] == pytest.approx(2e-9)


def test_the_chance_of_a_mean_is_never_too_small():
    numbers = np.random.default_rng(2)
    means = (5.0 * (numbers.random((4000, 200)) < 0.2)).mean(axis=1)
    chances = np.array([chance_of_mean(mean, 5.0, 200) for mean in means])
    for level in (0.3, 0.1, 0.01):
        assert np.mean(chances <= level) <= level
    assert chance_of_mean(6.0, 5.0, 10) == 0.0


def test_a_position_that_always_matches_survives_rounding():
    """96 of 96 matches at one position, m / (137 * 96) on average: the quotients may round above one."""
    for matches in range(1, 96 * 137 + 1, 7):
        usual = matches / 137 / 96
        chance = chance_of_mean(96 / (96 * usual), 1 / usual, 96)
        assert chance == pytest.approx(min(1.0, 2 * usual**96), rel=1e-6, abs=1e-300), matches


@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-paper"])
def test_known_codes_are_those_that_are_rounded_to(name):
    case = subject(name)
    mechanism = case.scheme.mechanism
    for task, x, codes, _ in known_codes(case):
        image, half_range, _ = mechanism.prepared(forward(case.scheme, x, task), task.bound)
        assert np.array_equal(mechanism.quantizer.quantize(image, half_range, seeded_rng(1)), codes)
    assert match_probabilities(mechanism.quantizer).sum() == pytest.approx(1.0, abs=1e-9)


# ---------------------------------------------------------------- sparse codes


def test_pairs_have_the_probabilities_of_the_density():
    law = SparseLaw(size=64, near=24, count=12, threshold=8, epsilon=6.4)
    found = pair_probabilities(law)
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    high, low = law.log_densities
    for (right, wrong), chance in found.items():
        hits = right + wrong
        ways = math.comb(24, hits) * math.comb(hits, right) * math.comb(40, 12 - hits) * 2 ** (12 - hits)
        assert chance == pytest.approx(ways * math.exp(high if right >= 8 else low), rel=1e-9)
