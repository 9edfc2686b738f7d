"""The lower bound on epsilon is valid and nearly tight."""

import math

import numpy as np
import pytest

from sqsgd.audit.distinguishing import Scores, lower_bound


def responses(epsilon, count, numbers):
    """Scores of randomised response over four codes, from inputs 0 and 1."""
    law = np.array([math.exp(epsilon), 1, 1, 1]) / (math.exp(epsilon) + 3)
    counts = [numbers.multinomial(count, np.roll(law, which)).astype(float) for which in (0, 1)]
    return Scores(values=np.array([epsilon, -epsilon, 0.0, 0.0]), first=counts[0], second=counts[1])


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_the_lower_bound_is_valid_and_nearly_tight(epsilon):
    numbers = np.random.default_rng(3)
    bounds = np.array(
        [
            lower_bound(responses(epsilon, 2000, numbers), responses(epsilon, 2000, numbers), 0.025)
            for _ in range(200)
        ]
    )
    assert np.mean(bounds > epsilon) <= 0.05
    many = lower_bound(responses(epsilon, 10**6, numbers), responses(epsilon, 10**6, numbers), 1e-5)
    assert 0.95 * epsilon < many < epsilon


def test_the_lower_bound_with_delta_and_without_luck():
    numbers = np.random.default_rng(4)
    halves = [responses(4.0, 10**5, numbers) for _ in range(2)]
    assert lower_bound(*halves, 1e-5, delta=0.5) < lower_bound(*halves, 1e-5) - 0.5
    assert lower_bound(*halves, 1e-5, delta=0.99) < 0
    nothing = Scores(values=np.zeros(1), first=np.full(1, 9.0), second=np.full(1, 9.0))
    assert lower_bound(nothing, nothing, 1e-5, delta=0.9) == -math.inf
