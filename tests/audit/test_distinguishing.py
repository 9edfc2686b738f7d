"""Worst pairs, lower bounds on epsilon and the tally: valid, nearly tight, and over every input and event."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from subjects import LOCAL, subject

from sqsgd import secure_rng
from sqsgd.audit import distinguishing
from sqsgd.audit.distinguishing import (
    Events,
    Scores,
    closest_pair,
    counted,
    lower_bound,
    lower_bounds,
    share_limits,
    tallies,
    worst_of,
)


@pytest.mark.parametrize("trials", [1, 10_000])
@pytest.mark.parametrize("level", [0.05, 1e-8])
def test_confidence_limits_are_those_of_clopper_and_pearson(trials, level):
    successes = np.unique([0, 1, trials // 3, trials - 1, trials])
    low, high = share_limits(successes, trials, level)
    assert (low[0], high[-1]) == (0.0, 1.0)
    np.testing.assert_allclose(stats.binom.sf(successes[1:] - 1, trials, low[1:]), level, rtol=1e-4)
    np.testing.assert_allclose(stats.binom.cdf(successes[:-1], trials, high[:-1]), level, rtol=1e-4)


@pytest.mark.parametrize("name", ["sqsgd", "privunit-inf", "piecewise", "ldp-fl"])
def test_the_worst_pair_spends_all_of_epsilon(name):
    """Per weight, vectors that differ in all weights may exceed the ε of one."""
    case = subject(name, {"per_weight": True} if name == "ldp-fl" else None)
    first, second, ratio, off = worst_of(case, case.small(4.0))
    assert ratio == pytest.approx(4.0, abs=1e-9)
    assert off < 1e-9
    assert name != "ldp-fl" or np.count_nonzero(first != second) == 1


# ---------------------------------------------------------------- lower bounds


def responses(epsilon, count, numbers):
    """Scores of randomised response over four codes, from inputs 0 and 1."""
    law = np.array([math.exp(epsilon), 1, 1, 1]) / (math.exp(epsilon) + 3)
    counts = [numbers.multinomial(count, np.roll(law, which)).astype(float) for which in (0, 1)]
    return Scores(np.array([epsilon, -epsilon, 0.0, 0.0]), *counts)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_the_lower_bound_is_valid_and_nearly_tight(epsilon):
    numbers = np.random.default_rng(3)

    def bound(count, level):
        return lower_bound(*(responses(epsilon, count, numbers) for _ in range(2)), level)

    assert np.mean([bound(2000, 0.025) > epsilon for _ in range(200)]) <= 0.05
    assert 0.95 * epsilon < bound(10**6, 1e-5) < epsilon


def test_the_lower_bound_with_delta_and_without_luck():
    numbers = np.random.default_rng(4)
    halves = [responses(4.0, 10**5, numbers) for _ in range(2)]
    assert lower_bound(*halves, 1e-5, delta=0.5) < lower_bound(*halves, 1e-5) - 0.5
    assert lower_bound(*halves, 1e-5, delta=0.99) < 0
    nothing = Scores(np.zeros(1), np.full(1, 9.0), np.full(1, 9.0))
    assert lower_bound(nothing, nothing, 1e-5, delta=0.9) == -math.inf


def test_reports_of_floats_are_distinguished_as_well():
    """The pair differs in direction and in norm, which spend all of epsilon together."""
    (finding,) = lower_bounds(subject("privunit", budgets=(2.0,), trials=4000))
    assert 1.0 < finding.measured < finding.limit


# ---------------------------------------------------------------- the tally


@pytest.mark.parametrize("name", LOCAL)
def test_every_length_and_every_report_is_counted(name):
    """Zero, both sides of a millionth, every twentieth of the bound and beyond; each report once."""
    small = subject(name).small(4.0)
    inputs, events = small.every_length(np.random.default_rng(1)), Events(small)
    sizes = np.array([np.linalg.norm(each.image) / small.task.bound for each in inputs])
    assert len(inputs) >= 35
    assert sizes.min() == 0
    assert ((sizes > 9e-7) & (sizes < 1e-6)).any()
    assert ((sizes > 1e-6) & (sizes < 1.1e-6)).any()
    assert sizes.max() > 20
    bands = sorted(each.band for each in inputs if each.band is not None)
    assert (bands[0][0], bands[-1][1]) == (0, 5)
    assert all(low[1] == high[0] for low, high in pairwise(bands))
    counts = counted(small, inputs[:6], events, 50, secure_rng(), np.random.default_rng(2))
    assert counts.shape == (6, events.size)
    assert (np.add.reduceat(counts, events.starts[:-1], axis=1) == 50).all()


def test_the_limits_hold_together():
    """Rows with the same law: over 300 tallies at a false-alarm rate of 5 % together, few bounds exceed zero.

    With the true rate, more than 40 alarms have probability below 1e-7.
    """
    numbers, alarms = np.random.default_rng(5), 0
    for _ in range(300):
        counts = numbers.multinomial(400, [0.5, 0.3, 0.15, 0.05], 8)
        alarms += closest_pair(counts, 400, 0.05 / (2 * counts.size), np.zeros((8, 8))).bound > 0
    assert alarms <= 40


def test_the_closest_pair_is_found():
    """Among all rows, events and complements; the limit of each pair counts; bounds are finite."""
    counts = np.array([[500, 500], [505, 495], [999, 1]])
    found = closest_pair(counts, 1000, 1e-6, np.ones((3, 3)))
    assert (found.likely, found.unlikely) in ((0, 2), (1, 2))
    assert found.counts[1] == 1
    assert 3 < found.bound < np.log(500)
    limits = np.where(np.arange(3) == 2, 100.0, 1.0) * np.ones((3, 3))
    found = closest_pair(counts, 1000, 1e-6, limits)
    assert (found.likely, found.unlikely, found.limit) == (2, 0, 1.0)
    found = closest_pair(np.array([[1000, 0], [0, 1000]]), 1000, 1e-6, np.ones((2, 2)))
    assert 4 < found.bound < 6


def test_per_weight_limits_grow_with_the_coordinates_that_differ(monkeypatch):
    monkeypatch.setattr(distinguishing, "_FEWEST", 100)
    case = subject("ldp-fl", {"per_weight": True})
    small = case.small(4.0)
    by_name = {each.name: each for each in small.every_length(np.random.default_rng(1))}
    zero, dense = by_name["zero"], by_name["at the bound, dense"]
    assert zero.differs_from(zero) == 0
    assert zero.differs_from(by_name["at the bound, one axis"]) == 1
    assert zero.differs_from(dense) == small.scheme.mechanism.dim
    (finding,) = tallies(case)
    assert finding.outcome == "passed"
