"""Counts of events over many inputs, and the confidence limits of all pairs."""

import numpy as np
import pytest
from subjects import subject

from sqsgd import SCHEMES, make_scheme, secure_rng
from sqsgd.audit._tally_inputs import differing, tally_inputs
from sqsgd.audit.tally import Events, closest_pair, counted, tallies

PRIVATE = [
    name for name in SCHEMES if make_scheme(name, dim=64, epsilon=8.0, bytes=64).privacy.notion == "local"
]


@pytest.mark.parametrize("name", PRIVATE)
def test_every_projection_counts_every_report_once(name):
    case = subject(name)
    small = case.small(4.0)
    inputs, events = tally_inputs(small, np.random.default_rng(1))[:6], Events(small)
    counts = counted(small, inputs, events, 50, secure_rng(), np.random.default_rng(2))
    assert counts.shape == (6, events.size)
    projections = np.add.reduceat(counts, events._starts[:-1], axis=1)
    assert (projections == 50).all()
    assert len({events.label(event) for event in range(2 * events.size)}) == 2 * events.size


def test_the_limits_hold_together():
    """Rows with the same law: over 300 tallies at a false-alarm rate of 5 % together, few bounds exceed zero.

    With the true rate, more than 40 alarms have probability below 1e-7.
    """
    numbers, alarms = np.random.default_rng(5), 0
    chances = np.array([0.5, 0.3, 0.15, 0.05])
    for _ in range(300):
        counts = numbers.multinomial(400, chances, 8)
        level = 0.05 / (2 * counts.size)
        alarms += closest_pair(counts, 400, level, np.zeros((8, 8))).bound > 0
    assert alarms <= 40


def test_the_closest_pair_is_found():
    """Among all rows, events and complements; the limit of each pair counts."""
    counts = np.array([[500, 500], [505, 495], [999, 1]])
    found = closest_pair(counts, 1000, 1e-6, np.ones((3, 3)))
    assert (found.likely, found.unlikely) in ((0, 2), (1, 2))
    assert found.counts[1] == 1
    assert 3 < found.bound < np.log(500)
    limits = np.where(np.arange(3) == 2, 100.0, 1.0) * np.ones((3, 3))
    found = closest_pair(counts, 1000, 1e-6, limits)
    assert (found.likely, found.unlikely) == (2, 0)
    assert found.limit == 1.0


def test_an_event_that_never_occurs_elsewhere_gives_a_finite_bound():
    found = closest_pair(np.array([[1000, 0], [0, 1000]]), 1000, 1e-6, np.ones((2, 2)))
    assert 4 < found.bound < 6
    assert found.counts == (1000, 0)


def test_per_weight_limits_grow_with_the_coordinates_that_differ():
    case = subject("ldp-fl", {"per_weight": True})
    small = case.small(4.0)
    inputs = tally_inputs(small, np.random.default_rng(1))
    by_name = {each.name: each for each in inputs}
    zero, axis = by_name["zero"], by_name["at the bound, one axis"]
    assert differing(zero, zero) == 0
    assert differing(zero, axis) == 1
    dense = by_name["at the bound, dense"]
    assert differing(zero, dense) == small.scheme.mechanism.dim
    (finding,) = tallies(case)
    assert finding.outcome == "passed"


def test_the_finding_names_the_pair_that_came_closest():
    (finding,) = tallies(subject("sqsgd"))
    assert finding.details["likely under"] in finding.details["inputs"]
    assert finding.details["unlikely under"] in finding.details["inputs"]
    assert finding.details["event"] in finding.sentence
    assert finding.measured <= finding.limit == 4.0
