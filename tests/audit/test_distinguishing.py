"""Small cases, worst pairs, lower bounds on epsilon, the tally of all pairs, and sums of many reports."""

import math
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from scipy import stats
from subjects import LOCAL, subject

from sqsgd import make_scheme, secure_rng, seeded_rng
from sqsgd._internal.geometry import round_unbiased
from sqsgd.audit.distinguishing import (
    Events,
    Scores,
    central_checks,
    closest_pair,
    delta_beyond,
    law_of_sum,
    lower_bound,
    share_limits,
    worst_of,
)
from sqsgd.audit.subject import Subject, forward, task_for
from sqsgd.schemes.cpsgd import ShareOfNoise


@pytest.mark.parametrize("name", LOCAL)
def test_every_local_scheme_has_a_small_case(name):
    """Its outputs can be listed, except for floats, and have a density; all reports are among them."""
    small = subject(name).small(4.0)
    assert small.dense
    assert small.listed == (name not in {"privunit", "privunit-g"})
    if small.listed:
        assert 1 < len(small.outputs) == len(small.places) <= 300
        x = np.full(small.scheme.dim, 0.1, np.float32)
        assert set(small.reports(x, 50, seeded_rng(1))) <= set(small.places)
        y = forward(small.scheme, x, small.task)
        assert np.exp(small.log_densities(y)).sum() == pytest.approx(1.0, abs=1e-9)


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
    case = subject(name)
    _, _, ratio, off = worst_of(case, case.small(4.0))
    assert ratio == pytest.approx(4.0, abs=1e-9)
    assert off < 1e-9


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


# ---------------------------------------------------------------- the tally


@pytest.mark.parametrize("name", LOCAL)
def test_every_length_and_every_report_is_counted(name):
    """Zero, both sides of a millionth, every twentieth of the bound and beyond; each report once."""
    small = subject(name).small(4.0)
    inputs, events = small.every_length(np.random.default_rng(1)), Events(small)
    sizes = np.array([np.linalg.norm(each.image) / small.task.bound for each in inputs])
    assert len(inputs) >= 35
    for low, high in ((0, 0), (9e-7, 1e-6), (1e-6, 1.1e-6), (20, math.inf)):
        assert ((sizes >= low) & (sizes <= high)).any()
    bands = sorted(each.band for each in inputs if each.band is not None)
    assert (bands[0][0], bands[-1][1]) == (0, 5)
    assert all(low[1] == high[0] for low, high in pairwise(bands))
    counts = events.counted(inputs[:6], 50, secure_rng(), np.random.default_rng(2))
    assert counts.shape == (6, events.size)
    assert (np.add.reduceat(counts, events.starts[:-1], axis=1) == 50).all()


def test_the_limits_hold_together():
    """Rows with the same law: over 300 tallies at a false-alarm rate of 5 % together, few bounds exceed zero.

    With the true rate, more than 40 alarms have probability below 1e-7.
    """
    numbers, alarms = np.random.default_rng(5), 0
    for _ in range(300):
        counts = numbers.multinomial(400, [0.5, 0.3, 0.15, 0.05], 8)
        alarms += closest_pair(counts, 400, 0.05 / (2 * counts.size))[3] > 0
    assert alarms <= 40


def test_the_closest_pair_is_found():
    """Among all rows, events and complements; bounds are finite."""
    counts = np.array([[500, 500], [505, 495], [999, 1]])
    likely, unlikely, event, bound = closest_pair(counts, 1000, 1e-6)
    assert likely in (0, 1)
    assert (unlikely, event % 4) in ((2, 1), (2, 2))
    assert 3 < bound < np.log(500)
    assert 4 < closest_pair(np.array([[1000, 0], [0, 1000]]), 1000, 1e-6)[3] < 6


# ---------------------------------------------------------------- sums, for central guarantees


EXACT, SUMS, LAW = (
    "likelihood ratio of the sum, all outputs",
    "distinguishing sums, budget 1",
    "law of one report",
)


@dataclass(frozen=True, kw_only=True)
class Understated(ShareOfNoise):
    """States a fifth of its true epsilon."""

    @property
    def privacy(self):
        return replace(ShareOfNoise.privacy.func(self), epsilon=ShareOfNoise.privacy.func(self).epsilon / 5)


@dataclass(frozen=True, kw_only=True)
class Quiet(ShareOfNoise):
    """Omits the noise, but states the density of a noisy report."""

    def randomize(self, x, bound, rng):
        return ((round_unbiased(self._positions(x, bound), rng) + self.trials // 2).astype(np.uint32),)


def outcomes(kind):
    def make(*, dim, epsilon, bytes):
        scheme = make_scheme("cpsgd", dim=dim, epsilon=epsilon, bytes=bytes, clients=3, reach=1.0)
        parts = {field.name: getattr(scheme.mechanism, field.name) for field in fields(scheme.mechanism)}
        return replace(scheme, mechanism=kind(**parts))

    sizes = {"dim": 100, "epsilon": 20.0, "bytes": 100, "budgets": (1.0,), "trials": 4000}
    case = Subject(name="cpsgd", make=make, noise=lambda: seeded_rng(5), **sizes)
    return {finding.name: finding.outcome for finding in central_checks(case)}


@pytest.mark.parametrize(
    ("kind", "broken"), [(ShareOfNoise, set()), (Understated, {EXACT}), (Quiet, {SUMS, LAW})]
)
def test_central_guarantees_are_kept_or_caught(kind, broken):
    found = outcomes(kind)
    assert set(found) == {EXACT, SUMS, LAW}
    assert {name for name, outcome in found.items() if outcome == "violated"} == broken


def test_delta_beyond_is_what_lies_beyond_epsilon():
    """For two coins, by hand: 0.6 - 2 · 0.25 beyond a factor of two."""
    first, second = np.array([0.4, 0.6]), np.array([0.75, 0.25])
    assert delta_beyond(first, second, np.log(2)) == pytest.approx(0.1)
    assert delta_beyond(first, second, np.log(2.4)) == pytest.approx(0.0)
    assert delta_beyond(second, first, 0.0) == pytest.approx(0.35)


def test_the_law_of_the_sum_is_that_of_all_clients_noise():
    """All vectors are zero, exactly between the two levels: the sum is a fair binomial."""
    scheme = make_scheme("cpsgd", dim=1, epsilon=4.0, bytes=2, clients=3, levels=2)
    law = law_of_sum(scheme, task_for(scheme, 0), np.zeros(1, np.float32))
    tosses = 3 * (scheme.mechanism.trials + 1)  # rounding one half is one more toss
    exact = [float(Fraction(comb(tosses, heads), 2**tosses)) for heads in range(tosses + 1)]
    assert np.allclose(law[: tosses + 1], exact, rtol=1e-9, atol=1e-300)
    assert not law[tosses + 1 :].any()
