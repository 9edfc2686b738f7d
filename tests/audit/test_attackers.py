"""Attackers who know the mechanism: none beats the bound, and one comes close."""

import functools
import itertools
import math

import numpy as np
import pytest

from sqsgd import PrivQuant, seeded_rng
from sqsgd._internal import exact
from sqsgd.privacy.reconstruction import reconstruction_bound
from sqsgd.schemes.privunit import SphereCap

REPORTS = 20_000


def directions(count, dim, seed=0):
    points = np.random.default_rng(seed).standard_normal((count, dim))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


# ---------------------------------------------------------------- PrivUnit: the report is the best guess


@pytest.fixture(scope="module", params=[(3, 2.0), (4, 5.0), (12, 3.0)], ids=str)
def attack(request):
    """Cosines between uniform directions and their reports, and the probability of the favoured cap.

    The cap is the one that an attacker would choose who wants a tenth of the guesses to be close.
    """
    dim, epsilon = request.param
    mechanism, rng = SphereCap(dim=dim, epsilon=epsilon), seeded_rng(5)
    edge = reconstruction_bound(epsilon, dim, 0.1)
    mechanism.__dict__["log_width"] = math.log1p(-edge * edge)
    truth = directions(REPORTS, dim)
    cosines = np.array([mechanism.draw(each, rng) @ each for each in truth])
    with exact.precision(128):
        favoured = float((mechanism.weights()[0] * mechanism.tail()).mid())
    assert 0.09 < favoured < 0.1
    return dim, epsilon, cosines, favoured


def success(cosines, bound):
    return float(np.mean(cosines >= bound))


def error(probability):
    return math.sqrt(probability * (1 - probability) / REPORTS)


def test_the_attacker_of_privunit_never_beats_it(attack):
    dim, epsilon, cosines, favoured = attack
    for probability in (0.02, 0.1, 0.3, favoured, 0.9 * favoured):
        bound = reconstruction_bound(epsilon, dim, probability)
        assert success(cosines, bound) <= probability + 4 * error(probability)


def test_the_attacker_of_privunit_beats_a_bound_for_less_epsilon(attack):
    """The bound is tight at the edge of the favoured cap: with ε lowered by 0.4 it fails."""
    dim, epsilon, cosines, favoured = attack
    probability = 0.85 * favoured
    too_low = reconstruction_bound(epsilon - 0.4, dim, probability)
    assert success(cosines, too_low) > probability + 4 * error(probability)


# ---------------------------------------------------------------- PrivQuant: by Bayes, over a fine grid


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
