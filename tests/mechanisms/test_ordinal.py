"""The ordinal exponential mechanism: exact budget, exact draws, no bias."""

import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb
from reference import g_test
from scripted import ScriptedRng

from sqsgd import seeded_rng
from sqsgd._internal.exact import precision
from sqsgd.mechanisms.channels import OrdinalChannel

CHANNELS = [(2, 1.0), (2, 40.0), (3, 0.01), (3, 5.0), (7, 7.7), (16, 0.78), (16, 12.0), (64, 3.0)]
channels = pytest.mark.parametrize(("levels", "epsilon"), CHANNELS)


def table(channel, places):
    codes = np.arange(channel.alphabet)
    return np.array([channel.log_probability(codes, np.full(codes.size, place)) for place in places])


def worst_ratio(channel, kernel):
    return float((kernel.max(axis=0) - kernel.min(axis=0)).max())


@channels
def test_epsilon_is_exact(levels, epsilon):
    """ε = α L / 2 between the ends, and less between any other numbers, on or between levels."""
    channel = OrdinalChannel(levels, epsilon)
    rows = table(channel, np.linspace(0, 1, 101))
    assert np.allclose(np.exp(rows).sum(axis=1), 1, rtol=1e-12)
    assert math.isclose(worst_ratio(channel, rows), epsilon, rel_tol=1e-10)


def test_the_budget_is_half_of_the_textbooks():
    """Exactly, for rational weights: with e^{-α/2} = 2/3 and L = 4 the largest ratio is (3/2)^4."""
    weights = [[Fraction(2, 3) ** abs(v - y) for y in range(5)] for v in range(5)]
    laws = [[weight / sum(row) for weight in row] for row in weights]
    assert max(max(column) / min(column) for column in zip(*laws, strict=True)) == Fraction(3, 2) ** 4
    ours = np.exp(OrdinalChannel(5, 4 * math.log(1.5)).log_kernel)
    assert np.allclose(ours, [[float(p) for p in law] for law in laws], rtol=1e-12)


def test_the_textbooks_weights_are_caught():
    """Weights e^{-ε |v - y| / L · 2} for a budget of ε."""
    channel = OrdinalChannel(5, 3.0)
    assert worst_ratio(channel, OrdinalChannel(5, 6.0).log_kernel) > channel.epsilon


@channels
def test_estimates_are_unbiased(levels, epsilon):
    """The closed form of R^{-1}, and the second moment, against the kernel."""
    channel, places = OrdinalChannel(levels, epsilon), np.linspace(0, 1, 37)
    laws = np.exp(table(channel, places))
    assert np.allclose(laws @ channel.values, 2 * places - 1, atol=1e-12 * channel.values[-1])
    assert np.allclose(laws @ channel.values**2, channel.second_moment(places), rtol=1e-11)


def test_two_levels_are_duchis_bit():
    channel, t = OrdinalChannel(2, 1.5), 0.4
    m = (math.exp(1.5) + 1) / (math.exp(1.5) - 1)
    plus = math.exp(channel.log_probability(np.array([1]), np.array([(t + 1) / 2]))[0])
    assert math.isclose(plus, 0.5 + t / (2 * m))
    assert np.allclose(channel.values, [-m, m])


def sampler_p_value(channel, place, trials=40_000):
    codes = channel.randomize(np.full(trials, place), seeded_rng(4))
    return g_test(np.bincount(codes, minlength=channel.alphabet), trials * np.exp(table(channel, [place]))[0])


@pytest.mark.parametrize("place", [0.0, 0.37, 1.0])
@channels
def test_the_sampler_has_the_law(levels, epsilon, place):
    assert sampler_p_value(OrdinalChannel(levels, epsilon), place) > 1e-6


def test_a_sampler_with_another_budget_is_caught(monkeypatch):
    channel = OrdinalChannel(7, 7.7)
    monkeypatch.setattr(channel, "_cdf", OrdinalChannel(7, 8.5)._cdf)
    assert sampler_p_value(channel, 0.37) < 1e-6


@pytest.mark.parametrize("level", [0, 3, 6])
def test_ambiguous_words_are_settled(level):
    """A word that contains an edge is decided by the bits after it; other words decide by themselves."""
    channel = OrdinalChannel(7, 7.7)
    cdf = channel._cdf(level)
    for code in range(6):
        with precision(512):
            edge = cdf(code) * arb(2) ** 128
            bits = int(edge.floor().unique_fmpz())
        word, rest = bits >> 64, bits & (2**64 - 1)
        for first, second, expected in [
            (word, 0, code),
            (word, rest - 1, code),
            (word, rest + 1, code + 1),
            (word, 2**64 - 1, code + 1),
            (word - 1, None, code),
            (word + 1, None, code + 1),
        ]:
            rng = ScriptedRng(*([] if second is None else [second]))
            drawn = channel._move(np.array([level]), np.array([first], np.uint64), rng)
            assert (drawn.tolist(), rng.used) == ([expected], second is not None)


def test_the_ends_of_the_words():
    """The first and the last word, at a budget whose edges lie there, and further bits in between."""
    channel = OrdinalChannel(3, 200.0)
    drawn = [
        channel._move(np.array([1]), np.array([first], np.uint64), ScriptedRng(2**63, 2**63, 2**63, 2**63))
        for first in (0, 2**64 - 1)
    ]
    assert [int(codes[0]) for codes in drawn] == [1, 1]
    assert int(channel._move(np.array([1]), np.array([0], np.uint64), ScriptedRng(0, 0, 0, 0))[0]) == 0
    top = 2**64 - 1
    assert (
        int(channel._move(np.array([1]), np.array([top], np.uint64), ScriptedRng(top, top, top, top))[0]) == 2
    )
