"""Reports of schemes without privacy: all possible ones, their probabilities and errors."""

import itertools
import math

import numpy as np
from cases import unit_vector
from reference import g_test

from sqsgd import Task, seeded_rng

X = np.array([0.6, -0.1, 0.35, 0.0], np.float32)


def all_reports(mechanism, x):
    """Every possible report of x: its scale is certain, its codes are not."""
    scale = mechanism.randomize(x, 1.0, seeded_rng(1))[0]
    alphabet = mechanism.layout[1].alphabet
    codes = itertools.product(range(alphabet), repeat=mechanism.dim)
    return [(scale, np.array(code, np.uint32)) for code in codes]


def chances(mechanism, x):
    return np.exp([mechanism.log_density(report, x, 1.0) for report in all_reports(mechanism, x)])


def exact_moments(mechanism, x):
    """By listing all reports: the mean of the estimates, and the variance of all coordinates together."""
    law = chances(mechanism, x)
    assert abs(law.sum() - 1) < 1e-12
    estimates = np.array([mechanism.estimate(report, 1.0) for report in all_reports(mechanism, x)])
    mean = law @ estimates
    return mean, float(law @ np.sum((estimates - mean) ** 2, axis=1))


def drawn(mechanism, x, trials):
    alphabet, rng, counts = mechanism.layout[1].alphabet, seeded_rng(5), {}
    for _ in range(trials):
        number = int("".join(map(str, mechanism.randomize(x, 1.0, rng)[1])), alphabet)
        counts[number] = counts.get(number, 0) + 1
    return np.array([counts.get(i, 0) for i in range(alphabet**mechanism.dim)])


def is_sent_with_its_density(mechanism, trials=20_000):
    """``randomize`` against ``log_density``, by a G-test."""
    return g_test(drawn(mechanism, X, trials), trials * chances(mechanism, X) + 1e-12) > 1e-6


def measured(scheme, reports):
    """|x̂ - x|² / |x|² of vectors of uniform direction: its mean and standard error."""
    rng, errors = seeded_rng(8), []
    for client in range(reports):
        x = unit_vector(scheme.dim, seed=client)
        t = Task(round=client, client=client, seed=3, dim=scheme.dim, bound=1.0)
        errors.append(np.sum((scheme.decode(scheme.encode(x, t, rng), t) - x) ** 2))
    return np.mean(errors), np.std(errors) / math.sqrt(reports)
