"""The discrete Gaussian is exact, one record moves a sum by at most L, and reports are unbiased."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats

from sqsgd import RecordSum, Task, make_scheme, secure_rng, seeded_rng
from sqsgd.core.records import REACH
from sqsgd.mechanisms import discrete_gaussian as module
from sqsgd.mechanisms.discrete_gaussian import DiscreteGaussian

COUNT, FALSE_ALARM = 40_000, 1e-6


def probabilities(square):
    """Of 0, ±1, ±2, ... up to 12 deviations."""
    values = np.arange(-math.ceil(12 * math.sqrt(square)) - 3, math.ceil(12 * math.sqrt(square)) + 4)
    weights = np.exp(-(values.astype(float) ** 2) / (2 * square))
    return values, weights / weights.sum()


def p_value(draws, square, bins=60):
    """Of the draws under the exact law, in bins of about the same probability."""
    values, chances = probabilities(square)
    edges = np.unique(np.searchsorted(np.cumsum(chances), np.linspace(0, 1, bins)[1:-1]))
    place = np.digitize(np.arange(values.size), edges)
    expected = np.bincount(place, chances) * draws.size
    seen = np.bincount(place[draws - values[0]], minlength=expected.size)
    kept = expected > 5
    rest = [seen[~kept].sum()], [expected[~kept].sum() + 1e-9]
    seen, expected = np.append(seen[kept], rest[0]), np.append(expected[kept], rest[1])
    statistic = float(((seen - expected) ** 2 / expected).sum())
    return stats.chi2.sf(statistic, expected.size - 1)


@pytest.mark.parametrize("square", [1, 2, 9, 500, 20_000, 10**6, 3 * 10**7])
def test_draws_have_the_exact_law(square):
    """With and without a coarse part: 2^shift is above 1 from σ of 128 on."""
    law = DiscreteGaussian(square)
    assert (law.shift > 0) == (square > 128**2)
    assert p_value(law.draw(COUNT, seeded_rng(square)), square) > FALSE_ALARM


def test_few_coarse_values_give_the_same_law(monkeypatch):
    """Then many candidates are rejected, and the law is as exact."""
    monkeypatch.setattr(module, "_TABLE_BITS", 2)
    law = DiscreteGaussian(40_000)
    assert law.shift == 6
    assert p_value(law.draw(COUNT, seeded_rng(4)), 40_000) > FALSE_ALARM
    assert p_value(without_rejection(law), 40_000) < FALSE_ALARM


def broken_scale(law):
    law.square = int(law.square * 1.05)
    return law.draw(COUNT, seeded_rng(2)) * 21 // 20


def without_rejection(law):
    law._kept = lambda coarse, fine, words, rng: np.ones(coarse.size, bool)
    return law.draw(COUNT, seeded_rng(2))


def zero_twice(law):
    """-0 counts, too."""
    a = law._table.draw_many(COUNT, seeded_rng(2))
    return np.where(seeded_rng(3).uniforms(COUNT) < 0.5, -a, a)


def cut_tail(law):
    draws = law.draw(COUNT, seeded_rng(2))
    return draws[np.abs(draws) < 2.5 * math.sqrt(law.square)]


@pytest.mark.parametrize(
    ("mutant", "square"),
    [(broken_scale, 9), (zero_twice, 3), (cut_tail, 40_000), (cut_tail, 9)],
)
def test_broken_samplers_are_found(mutant, square):
    assert p_value(mutant(DiscreteGaussian(square)), square) < FALSE_ALARM


def test_undecided_words_are_settled_exactly():
    """With a wide margin most chances are settled in balls; the law stays the same."""
    law = DiscreteGaussian(40_000)
    plain = law.draw(3000, seeded_rng(5))
    kept, module._MARGIN = module._MARGIN, 0.4
    try:
        settled = law.draw(3000, seeded_rng(5))
    finally:
        module._MARGIN = kept
    assert p_value(settled, 40_000, 20) > FALSE_ALARM
    assert (settled[:50] == plain[:50]).mean() > 0.9


def test_the_table_encloses_the_law():
    law = DiscreteGaussian(3 * 10**7)
    a = np.arange(4000)
    weights = np.exp(-(a.astype(float) ** 2) * float(law._exponent))
    below = np.cumsum(weights) / weights.sum()
    for value in (0, 3, 100, 400):
        assert float(law._cdf(value)) == pytest.approx(below[value], rel=1e-12)
    assert law._cdf(10**6) < 1 or law._cdf(10**6).contains(1)


FLOATS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 40)),
    elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
)


@settings(max_examples=150, deadline=None)
@given(FLOATS, st.floats(1e-6, 1e6), st.booleans())
def test_one_record_moves_the_sum_by_at_most_l(rows, clip, normalise):
    """In exact arithmetic, for any floats; the others are as they were."""
    everyone, without = (RecordSum(rows.shape[1], clip, normalise=normalise) for _ in range(2))
    everyone.add(rows)
    without.add(rows[1:])
    moved = sum(int(value) ** 2 for value in everyone.total - without.total)
    assert moved <= REACH**2
    finite = np.isfinite(rows[0].astype(np.float64)).all()
    assert everyone.dropped - without.dropped == (not finite)


def test_short_records_are_kept_and_long_ones_clipped():
    total = RecordSum(3, clip_norm=2.0)
    total.add(np.array([[0.5, 0, 0], [0, 30.0, 40.0]], np.float32))
    assert total.mean_of(1) == pytest.approx([0.5, 1.2, 1.6], abs=1e-5)
    soft = RecordSum(3, clip_norm=2.0, normalise=True)
    soft.add(np.array([[0.5, 0, 0], [0, 30.0, 40.0]], np.float32))
    assert soft.mean_of(1) == pytest.approx([2 * 0.5 / 0.52, 1.2, 1.6], rel=1e-3)


def test_reports_are_unbiased_and_have_the_predicted_error():
    scheme = make_scheme("sqsgd-record", dim=300, epsilon=2.0, records=10)
    task = Task(round=3, client=1, seed=8, dim=300, bound=0.5)
    total = scheme.record_sum(task)
    total.add(np.random.default_rng(1).standard_normal((40, 300)).astype(np.float32) + 0.5)
    truth, rng = total.mean_of(10), secure_rng()
    found = np.array([scheme.decode(scheme.encode(total, task, rng), task) for _ in range(600)])
    error = ((found - truth) ** 2).sum(axis=1).mean()
    share = 10 * np.linalg.norm(truth) / 0.5
    assert error == pytest.approx(scheme.nmse_at(share) * (truth**2).sum(), rel=0.1)
    noise = found.std(axis=0) / math.sqrt(len(found))
    assert np.abs((found.mean(axis=0) - truth) / noise).max() < 5


def test_nothing_is_clamped_however_large_the_sum():
    scheme = make_scheme("sqsgd-record", dim=4, epsilon=8.0)
    task = Task(round=0, client=1, seed=8, dim=4, bound=1.0)
    total = scheme.record_sum(task)
    total.add(np.tile(np.float32([1, 0, 0, 0]), (100_000, 1)))
    found = scheme.decode(scheme.encode(total, task, secure_rng()), task)
    assert found[0] == pytest.approx(100_000, rel=0.1)
