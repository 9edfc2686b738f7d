"""Attackers who know the mechanism and guess by Bayes, over a fine grid: none beats the bound."""

import functools
import itertools
import math

import numpy as np
import pytest

from sqsgd import PrivQuant
from sqsgd.privacy.reconstruction import reconstruction_bound


def directions(count, dim, seed=0):
    points = np.random.default_rng(seed).standard_normal((count, dim))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def grid(dim, count=1500):
    """Evenly spaced directions: on the circle, or on a spiral around the sphere."""
    steps = np.arange(count) + 0.5
    if dim == 2:
        angle = 2 * math.pi * steps / count
        return np.stack([np.cos(angle), np.sin(angle)], axis=1)
    height, angle = 1 - 2 * steps / count, math.pi * (1 + math.sqrt(5)) * steps
    radius = np.sqrt(1 - height**2)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle), height], axis=1)


@functools.cache
def likelihoods(dim, levels, epsilon):
    """P(report | direction) for every report (rows) and every direction of the grid."""
    mechanism = PrivQuant(dim=dim, levels=levels, epsilon=epsilon)
    truth = grid(dim).astype(np.float32)
    reports = [np.array(report) for report in itertools.product(range(levels), repeat=dim)]
    return np.exp([[mechanism.log_density(report, each, 1.0) for each in truth] for report in reports])


def best_success(dim, levels, epsilon, probability, tilt=0.0, less=0.0):
    """The largest posterior mass of a cap around any of many guesses, over all reports.

    The attacker believes in one half sphere e^tilt times as much as in the other.
    """
    belief = np.exp(tilt * (grid(dim)[:, 0] > 0))
    prior = math.log(belief.max() / belief.mean())
    within = directions(400, dim, 2) @ grid(dim).T >= reconstruction_bound(
        epsilon - less, dim, probability, prior
    )
    posterior = belief * likelihoods(dim, levels, epsilon)
    return float((posterior / posterior.sum(axis=1, keepdims=True) @ within.T).max())


@pytest.mark.parametrize(
    ("dim", "levels", "epsilon", "tilt"),
    [(3, 2, 1.0, 0.0), (3, 2, 3.0, 0.0), (2, 3, 2.0, 0.0), (3, 2, 3.0, 1.5), (2, 3, 2.0, 4.0)],
)
@pytest.mark.parametrize("probability", [0.05, 0.3, 0.6])
def test_the_bayesian_attacker_of_privquant_never_beats_it(dim, levels, epsilon, tilt, probability):
    """The grid's share of a cap is accurate to a few thousandths."""
    assert best_success(dim, levels, epsilon, probability, tilt) <= probability + 0.01


def test_the_bayesian_attacker_of_privquant_beats_a_bound_without_epsilon():
    assert best_success(3, 2, 3.0, 0.3, less=3.0) > 0.4
    assert best_success(2, 3, 2.0, 0.3, tilt=4.0, less=2.0) > 0.4
