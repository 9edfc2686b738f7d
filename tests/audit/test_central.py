"""Central guarantees about the sum of many reports: cpSGD keeps its guarantee, and broken ones are caught."""

from dataclasses import dataclass, fields, replace
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from subjects import subject

from sqsgd import make_scheme, seeded_rng
from sqsgd._internal.geometry import round_unbiased
from sqsgd.audit.central import central_checks, delta_beyond, law_of_sum
from sqsgd.audit.subject import Subject, task_for
from sqsgd.schemes.cpsgd import ShareOfNoise

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


def test_without_small_budgets_nothing_passes():
    (finding,) = central_checks(subject("cpsgd", budgets=(1e-6,)))
    assert finding.outcome == "not applicable"


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
