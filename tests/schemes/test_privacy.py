"""Privacy, from the density of reports, and that reports have that density."""

import itertools

import numpy as np
import pytest
import reference
from cases import PRIVATE
from reference import g_test

from sqsgd import make_scheme, seeded_rng

LISTED = [case for case in PRIVATE if case.tiny is not None]
TRIALS = 30_000


def joint_outputs(mechanism):
    """Every tuple of columns that a small mechanism can send."""
    columns = [reference.all_codes(column.count, column.alphabet) for column in mechanism.layout]
    return list(itertools.product(*columns))


def inputs_of(dim, bound):
    """Corners of the cube, ends of the axes, random vectors, zero."""
    corners = bound * (2.0 * reference.all_codes(dim, 2)[:16] - 1.0)
    axes = bound * np.concatenate([np.eye(dim), -np.eye(dim)])
    spread = np.random.default_rng(1).standard_normal((20, dim))
    return [x.astype(np.float32) for x in (*corners, *axes, *spread, np.zeros(dim))]


def likelihoods(mechanism, inputs, bound):
    """ln P(output | input), one row per output."""
    outputs = joint_outputs(mechanism)
    return np.array([[mechanism.log_density(columns, x, bound) for x in inputs] for columns in outputs])


@pytest.mark.parametrize("case", LISTED, ids=str)
def test_exact_privacy(case):
    """All outputs of a small mechanism: densities sum to one, and differ by at most ε between inputs."""
    scheme = case.make_tiny(epsilon=12.0)
    table = likelihoods(scheme.mechanism, inputs_of(scheme.mechanism.dim, 0.8), 0.8)
    assert np.allclose(np.exp(table).sum(axis=0), 1.0, rtol=1e-9)
    worst = (table.max(axis=1) - table.min(axis=1)).max()
    assert worst <= scheme.privacy.epsilon + 1e-9
    assert worst >= 0.9 * scheme.privacy.epsilon


def sampled(mechanism, x, bound):
    """How often each of the joint outputs is drawn."""
    numbers = {tuple(np.concatenate(c).tolist()): i for i, c in enumerate(joint_outputs(mechanism))}
    counts, rng = np.zeros(len(numbers)), seeded_rng(9)
    for _ in range(TRIALS):
        counts[numbers[tuple(np.concatenate(mechanism.randomize(x, bound, rng)).tolist())]] += 1
    return counts


def input_and_expectation(mechanism):
    x = np.linspace(-0.5, 0.4, mechanism.dim).astype(np.float32)
    return x, TRIALS * np.exp(likelihoods(mechanism, [x], 0.8)[:, 0])


@pytest.mark.parametrize("case", LISTED, ids=str)
def test_what_is_sent_has_the_density_that_privacy_is_proved_of(case):
    """``randomize`` against ``log_density``, all columns jointly: test_exact_privacy relies on it."""
    mechanism = case.make_tiny(epsilon=5.0).mechanism
    x, expected = input_and_expectation(mechanism)
    assert g_test(sampled(mechanism, x, 0.8), expected) > 1e-6


def test_a_norm_sent_without_randomised_response_is_caught(monkeypatch):
    mechanism = make_scheme("sqsgd", dim=3, epsilon=5.0, bits=9, norm_epsilon=1.0).mechanism
    x, expected = input_and_expectation(mechanism)
    levels = mechanism.norm.levels
    monkeypatch.setattr(
        type(mechanism.norm), "privatize", lambda _, value, rng: round(levels * min(value, 1.0))
    )
    assert g_test(sampled(mechanism, x, 0.8), expected) < 1e-6
