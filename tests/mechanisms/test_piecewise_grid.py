"""The Piecewise Mechanism on a grid: exact probabilities, exact budget, no bias, the predicted moments."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from reference import g_test
from scipy import integrate

from sqsgd import seeded_rng
from sqsgd.mechanisms import channels
from sqsgd.mechanisms.channels import PiecewiseGrid, integers_below

GRIDS = [
    (2, 1.0),
    (3, 0.01),
    (3, 9.0),
    (4, 2.0),
    (9, 3.0),
    (9, 12.0),
    (16, 6.0),
    (64, 5.0),
    (16, 60.0),
    (5, 900.0),
]


grids = pytest.mark.parametrize(("alphabet", "epsilon"), GRIDS)


def table(channel, places):
    """ln P(code | place), one row per place."""
    codes = np.arange(channel.alphabet)
    return np.array([channel.log_probability(codes, np.full(codes.size, place)) for place in places])


def small(alphabet, window, shift=2):
    """A channel with so few cells that all can be listed."""
    channel = PiecewiseGrid(alphabet, 1.0)
    channel._shift, channel._step, channel._window = shift, 1 << shift, window
    channel._cells = (alphabet - 1) << shift
    return channel


def brute_force(channel, start):
    """The exact law of the code for one window: every cell and every coin."""
    cells, window, step = channel._cells, channel._window, channel._step
    law = [Fraction(0)] * channel.alphabet
    for cell in range(cells):
        inside = start <= cell < start + window
        weight = (
            Fraction(cells - window, cells * window) if inside else Fraction(window, cells * (cells - window))
        )
        for coin in range(2 * step):
            law[(2 * cell + 1 + coin) // (2 * step)] += weight / (2 * step)
    return law


@pytest.mark.parametrize(("alphabet", "window"), [(2, 1), (3, 1), (3, 3), (4, 4), (5, 3), (5, 6)])
def test_probabilities_and_epsilon_by_brute_force(alphabet, window):
    channel = small(alphabet, window)
    starts = range(channel._cells - window + 1)
    laws = [brute_force(channel, start) for start in starts]
    for start, law in zip(starts, laws, strict=True):
        assert sum(law) == 1
        ours = [math.exp(channel._log_probability(code, start)) for code in range(alphabet)]
        assert np.allclose(ours, [float(p) for p in law], rtol=1e-12)
        mean = sum(p * (Fraction(2 * code, alphabet - 1) - 1) for code, p in enumerate(law))
        reach = Fraction(channel._cells, channel._cells - 2 * window)
        assert reach * mean == Fraction(2 * start, channel._cells - window) - 1  # unbiased, exactly
    worst = max(max(column) / min(column) for column in zip(*laws, strict=True))
    assert math.isclose(math.log(worst), channel.epsilon, rel_tol=1e-12)


def test_the_law_is_that_of_the_continuous_mechanism_rounded():
    """Against the paper's density, integrated with the rounding's hats."""
    channel, t = PiecewiseGrid(6, 2.0), 0.3
    h = (channel._cells - channel._window) / channel._window
    c = (h + 1) / (h - 1)
    left = (c + 1) * t / 2 - (c - 1) / 2
    right = left + c - 1
    inside = h / (h + 1) / (c - 1)
    outside = 1 / (h + 1) / (c + 1)
    points = np.linspace(-c, c, 6)
    step = points[1] - points[0]
    for code, point in enumerate(points):

        def integrand(y, point=point):
            return max(0.0, 1 - abs(y - point) / step) * (inside if left <= y <= right else outside)

        breaks = sorted({*points.tolist(), left, right})
        mass = sum(integrate.quad(integrand, a, b)[0] for a, b in itertools.pairwise(breaks))
        ours = channel.log_probability(np.array([code]), np.array([(t + 1) / 2]))[0]
        assert math.isclose(math.exp(ours), mass, rel_tol=1e-9)


def worst_ratio(channel):
    rows = table(channel, np.linspace(0, 1, 61))
    assert np.allclose(np.exp(rows).sum(axis=1), 1, rtol=1e-9)
    return (rows.max(axis=0) - rows.min(axis=0)).max()


@grids
def test_epsilon_is_exact(alphabet, epsilon):
    """Attained, not exceeded, and equal to the requested one."""
    channel = PiecewiseGrid(alphabet, epsilon)
    assert epsilon * (1 - 1e-9) <= channel.epsilon <= epsilon
    assert math.isclose(worst_ratio(channel), channel.epsilon, rel_tol=1e-9)


@grids
def test_a_window_that_is_too_short_is_caught(alphabet, epsilon):
    channel = PiecewiseGrid(alphabet, epsilon)
    claimed = channel.epsilon
    channel._window -= channel._window // 50
    assert worst_ratio(channel) > claimed * (1 + 1e-9)


def test_the_papers_budget_is_spent_only_on_a_fine_grid():
    """With h = e^{ε/2} on two points, the codes' ratio is e^{ε/2}: half of the budget would be unused."""
    assert PiecewiseGrid(1024, 4.0).reach == pytest.approx((math.exp(2) + 1) / (math.exp(2) - 1), rel=1e-9)
    assert PiecewiseGrid(2, 4.0).reach == pytest.approx((math.exp(4) + 1) / (math.exp(4) - 1), rel=1e-9)


@grids
def test_estimates_are_unbiased(alphabet, epsilon):
    """And their second moment is the predicted one."""
    channel, places = PiecewiseGrid(alphabet, epsilon), np.linspace(0, 1, 23)
    laws = np.exp(table(channel, places))
    values = channel.estimate(np.arange(alphabet))
    assert np.allclose(laws @ values, 2 * places - 1, atol=1e-9 * values[-1])
    assert np.allclose(laws @ values**2, channel.second_moment(places), rtol=1e-8, atol=1e-8)


def sampler_p_value(channel, place, trials=40_000):
    codes = channel.randomize(np.full(trials, place), seeded_rng(4))
    expected = trials * np.exp(table(channel, [place]))[0]
    return g_test(np.bincount(codes, minlength=channel.alphabet), expected)


@pytest.mark.parametrize("place", [0.0, 0.37, 1.0])
@pytest.mark.parametrize(("alphabet", "epsilon"), [(2, 1.0), (9, 3.0), (16, 6.0), (64, 5.0), (16, 31.0)])
def test_the_sampler_has_the_law(alphabet, epsilon, place):
    channel = PiecewiseGrid(alphabet, epsilon)
    assert (channel._cells >= 2**62) == (epsilon > 30)  # both kinds of integers
    assert sampler_p_value(channel, place) > 1e-6


def test_a_sampler_that_never_leaves_the_window_is_caught(monkeypatch):
    channel = PiecewiseGrid(16, 6.0)
    honest = integers_below

    def biased(bound, count, rng):
        return honest(bound, count, rng) * (bound != channel._cells)

    monkeypatch.setattr("sqsgd.mechanisms.channels.integers_below", biased)
    assert sampler_p_value(channel, 0.37) < 1e-6


def test_cells_just_beyond_int64(monkeypatch):
    """Here the range has more than 2^63 cells, and the part outside the window fewer: the sum of both wrapped
    around to negative codes."""
    channel = PiecewiseGrid(2**20 + 2, 40 * math.log(2) - 1e-12)
    assert channel._cells - channel._window <= 2**63 < channel._cells
    last = channel._cells - channel._window - 1

    def scripted(bound, count, rng):
        number = bound - 1 if bound in (channel._cells, last + 1) else 0
        return np.full(count, number, object if bound > 2**63 else np.int64)

    monkeypatch.setattr(channels, "integers_below", scripted)
    codes = channel.randomize(np.array([0.0]), None)  # outside the window, in the very last cell
    assert codes.tolist() == [channel.alphabet - 2]
    monkeypatch.undo()
    codes = channel.randomize(np.zeros(2000), seeded_rng(1))
    assert codes.max() < channel.alphabet
    assert np.isfinite(channel.log_probability(codes, np.zeros(2000))).all()
