"""cpSGD: the sum is as private as claimed, and a single report is not."""

import math
import sys
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from cases import unit_vector
from privacy_loss import delta_bracket
from reference import g_test
from scipy.signal import fftconvolve

from sqsgd import Aggregate, Task, make_scheme, seeded_rng
from sqsgd._internal.geometry import round_unbiased
from sqsgd.core.codec import Column
from sqsgd.mechanisms.binomial import fair_binomial
from sqsgd.schemes.cpsgd import ShareOfNoise

BOUND = 1.0


def small(epsilon, *, dim=1, **options):
    return make_scheme("cpsgd", dim=dim, epsilon=epsilon, **{"levels": 3, "reach": 1.0, **options}).mechanism


@lru_cache
def report_law(mechanism, x):
    """P(code) of one report of one coordinate, from log_density."""
    codes = np.arange(mechanism.levels + mechanism.trials)
    point = np.array([x], np.float32)
    return np.exp([mechanism.log_density((np.array([code]),), point, BOUND) for code in codes])


def sum_law(mechanism, x):
    """P(sum of all clients' codes): one client's coordinate is x, the others' are zero."""
    law, other = report_law(mechanism, x), report_law(mechanism, 0.0)
    for _ in range(mechanism.clients - 1):
        law = np.maximum(fftconvolve(law, other), 0.0)
    return law


def one_coordinate(mechanism):
    """The same grid and noise for a vector of a single coordinate."""
    return replace(mechanism, dim=1, reach=mechanism.reach / math.sqrt(mechanism.dim))


def true_delta(first, second, epsilon):
    """The least δ for which the two laws are (ε, δ)-close, both ways."""
    return max(
        np.maximum(first - math.exp(epsilon) * second, 0).sum(),
        np.maximum(second - math.exp(epsilon) * first, 0).sum(),
    )


SETTINGS = [
    {},
    {"clients": 2},
    {"clients": 40, "delta": 1e-3},
    {"levels": 2},
    {"levels": 16, "reach": 3.0},
    {"levels": 9, "reach": 2.0, "delta": 1e-2},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("epsilon", [0.7, 3.0, 12.0])
def test_the_sum_is_as_private_as_claimed(epsilon, options):
    """One coordinate, with the law of the sum listed: replacing one client's vector stays within (ε, δ)."""
    mechanism = small(epsilon, **options)
    assert mechanism.privacy.epsilon <= epsilon
    assert mechanism.privacy.delta == options.get("delta", 1e-5)
    laws = [sum_law(mechanism, x) for x in (-BOUND, 0.0, 0.7, BOUND)]
    for law in laws:
        assert law.sum() == pytest.approx(1, abs=1e-10)
        for other in laws:
            assert true_delta(law, other, mechanism.privacy.epsilon) <= mechanism.privacy.delta


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_too_little_noise_is_caught(options):
    """A sixteenth of the trials under the same claim fails the check above."""
    mechanism = small(0.5, **options)
    quiet = replace(mechanism, trials=mechanism.trials // 16)
    ends = [sum_law(quiet, x) for x in (-BOUND, BOUND)]
    assert true_delta(*ends, mechanism.privacy.epsilon) > mechanism.privacy.delta


def test_a_single_report_is_not():
    """A single report has only a share of the noise, so the central (ε, δ) does not hold for it."""
    mechanism = small(0.5, clients=50)
    assert mechanism.privacy.notion == "central"
    ends = [report_law(mechanism, x) for x in (-BOUND, BOUND)]
    assert true_delta(*ends, mechanism.privacy.epsilon) > 100 * mechanism.privacy.delta


@pytest.mark.parametrize(("dim", "epsilon", "size"), [(119850, 400.0, 256), (5000, 50.0, 128)])
def test_the_sum_of_many_coordinates_is_as_private_as_claimed(dim, epsilon, size):
    """By summing losses: all coordinates moved equally, or a few all the way. Half the noise fails."""
    mechanism = make_scheme("cpsgd", dim=dim, epsilon=epsilon, bytes=size).mechanism
    claim, privacy, trials = mechanism.accounting, mechanism.privacy, mechanism.clients * mechanism.trials
    alike, most = int(claim.l2 / math.sqrt(claim.dim)), mechanism.levels - 1
    assert alike >= 1
    for shift, count in ((alike, claim.dim), (most, int((claim.l2 / most) ** 2))):
        step = privacy.epsilon / count / 50
        assert delta_bracket(trials, shift, count, privacy.epsilon, step)[1] <= privacy.delta
    step = privacy.epsilon / claim.dim / 50
    assert delta_bracket(trials // 2, alike, claim.dim, privacy.epsilon, step)[0] > privacy.delta


@pytest.mark.parametrize(("levels", "reach"), [(2, 3.0), (3, 1.0), (16, 3.0), (200, 2.5)])
def test_sensitivities_hold_for_every_outcome_of_the_rounding(levels, reach):
    """Two vectors, the same uniform numbers. Without the one step for rounding, the claim would be false."""
    mechanism = ShareOfNoise(dim=40, levels=levels, trials=9, clients=3, delta=1e-5, reach=reach)
    claim, numbers = mechanism.accounting, np.random.default_rng(1)
    worst = 0.0
    for trial in range(120):
        x = numbers.standard_normal(40)
        x *= BOUND / np.linalg.norm(x)
        y = (-x, numbers.permutation(x), np.zeros(40), x + 1e-3 * numbers.standard_normal(40))[trial % 4]
        codes = [
            round_unbiased(mechanism._positions(z.astype(np.float32), BOUND), seeded_rng(trial))
            for z in (x, y)
        ]
        difference = np.abs(codes[0] - codes[1])
        assert difference.sum() <= claim.l1
        assert np.linalg.norm(difference) <= claim.l2
        assert difference.max() <= claim.most
        worst = max(worst, np.linalg.norm(difference))
    flat = np.full(40, BOUND / math.sqrt(40), np.float32)
    ends = [mechanism._positions(z, BOUND)[0] for z in (flat, -flat)]
    for uniform in np.linspace(0, 1, 1000, endpoint=False):  # the same for all coordinates: the worst case
        up, down = (math.floor(end) + (uniform < end % 1) for end in ends)
        assert math.sqrt(40) * (up - down) <= claim.l2
        worst = max(worst, math.sqrt(40) * (up - down))
    if reach > 1:
        assert worst > math.sqrt(40) * (levels - 1) / reach


def test_what_is_sent_has_the_density(monkeypatch):
    mechanism = small(8.0, dim=64, reach=3.0, delta=0.01, clients=20)
    expected = 1000 * mechanism.dim * report_law(one_coordinate(mechanism), 0.1)

    def drawn():
        rng, x = seeded_rng(4), np.full(mechanism.dim, 0.1, np.float32)
        codes = [mechanism.randomize(x, BOUND, rng)[0] for _ in range(1000)]
        return np.bincount(np.concatenate(codes), minlength=expected.size)

    assert g_test(drawn(), expected) > 1e-6

    module = sys.modules[ShareOfNoise.__module__]
    monkeypatch.setattr(module, "fair_binomial", lambda trials: fair_binomial(trials - 1))
    assert g_test(drawn(), expected) < 1e-6


def test_the_server_needs_only_the_sum_modulo_the_alphabet():
    """Masked codes, added modulo the alphabet as secure aggregation does, give the mean of the estimates."""
    scheme = make_scheme("cpsgd", dim=100, epsilon=20.0, bytes=64, clients=7)
    mechanism, rng, numbers = scheme.mechanism, seeded_rng(5), np.random.default_rng(2)
    tasks = [Task(round=3, client=client, seed=9, dim=100, bound=1.0) for client in range(7)]
    messages = [scheme.encode(unit_vector(100, seed=t.client), t, rng) for t in tasks]
    masks = numbers.integers(0, mechanism.alphabet, (7, mechanism.dim))
    masks[-1] = -masks[:-1].sum(axis=0) % mechanism.alphabet  # they cancel
    masked = [
        (scheme.open(message, t)[0] + mask) % mechanism.alphabet
        for message, t, mask in zip(messages, tasks, masks, strict=True)
    ]
    assert mechanism.layout == (Column(mechanism.dim, mechanism.alphabet),)
    total = np.sum(masked, axis=0) % mechanism.alphabet
    mean = mechanism.estimate((total / 7,), 1.0)
    for stage, dim in ((scheme.transforms[1], 128), (scheme.transforms[0], 100)):
        mean = stage.inverse(mean, tasks[0], dim)
    reports = Aggregate(scheme)
    for t, message in zip(tasks, messages, strict=True):
        reports.add(t, message)
    assert np.allclose(mean, reports.mean(), atol=1e-4)
