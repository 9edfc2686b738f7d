"""Per record: the audit passes the mechanism, and catches broken ones."""

import numpy as np
import pytest
from subjects import caught, subject

from sqsgd import make_scheme
from sqsgd.audit import steps
from sqsgd.core import records
from sqsgd.mechanisms import discrete_gaussian

SEPARATED = "separation, budget 150"
STEP = "distinguishing records"


def make(**budget):
    return make_scheme("sqsgd-record", **budget)


def test_the_mechanism_passes():
    case = subject("sqsgd-record", {}, budgets=(1.0,))
    (step,) = (step for step in steps(case) if step.name == STEP)
    found = list(step.findings(case))
    assert [each.outcome for each in found] == 5 * ["passed"]
    separation = found[-1]
    assert separation.measured > 0.9 * separation.limit  # the attack is as good as the guarantee allows


@pytest.mark.parametrize("share", [0.8, 0.01])
def test_too_little_noise_is_caught(monkeypatch, share):
    right = discrete_gaussian.discrete_gaussian
    monkeypatch.setattr(discrete_gaussian, "discrete_gaussian", lambda square: right(int(share * square)))
    assert SEPARATED in caught(make, STEP, trials=1000)


def test_noise_on_some_coordinates_is_caught(monkeypatch):
    right = discrete_gaussian.DiscreteGaussian.draw

    def draw(self, count, rng):
        noise = right(self, count, rng)
        noise[::2] = 0
        return noise

    monkeypatch.setattr(discrete_gaussian.DiscreteGaussian, "draw", draw)
    assert SEPARATED in caught(make, STEP, trials=1000)


def test_records_that_are_not_clipped_are_caught(monkeypatch):
    def add(self, rows):
        rows = np.clip(np.nan_to_num(rows), -100, 100)
        self.total += np.rint(rows * self.reach / self.clip_norm).astype(np.int64).sum(axis=0)

    monkeypatch.setattr(records.RecordSum, "add", add)
    assert {"limit of one record", SEPARATED} <= caught(make, STEP, trials=1000)


def test_a_limit_that_rounding_exceeds_is_caught(monkeypatch):
    """The grid's reach leaves no room for rounding, and nobody counts the squares."""
    monkeypatch.setattr(records, "reach_of", lambda dim: float(records.REACH) + 1)
    monkeypatch.setattr(records, "REACH", records.REACH + 10)
    assert caught(make, STEP, trials=1000) == {"limit of one record"}
