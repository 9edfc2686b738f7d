"""Channels and selections: exact budgets, exact draws, no bias, the predicted moments."""

import math

import numpy as np
import pytest
from flint import arb
from reference import g_test
from scripted import ScriptedRng

from sqsgd import seeded_rng
from sqsgd._internal.exact import precision
from sqsgd.mechanisms import channels
from sqsgd.mechanisms.channels import OrdinalChannel, PiecewiseGrid, TopSet, integers_below, ranking

ORDINAL = [(2, 1.0), (2, 40.0), (3, 0.01), (3, 5.0), (7, 7.7), (16, 0.78), (16, 12.0), (64, 3.0)]
GRIDS = [(2, 1.0), (3, 0.01), (3, 9.0), (4, 2.0), (9, 3.0), (16, 6.0), (64, 5.0), (16, 60.0), (5, 900.0)]
CHANNELS = [*((OrdinalChannel, *each) for each in ORDINAL), *((PiecewiseGrid, *each) for each in GRIDS)]
every_channel = pytest.mark.parametrize(("kind", "alphabet", "epsilon"), CHANNELS)


def table(channel, places):
    """ln P(code | place), one row per place."""
    codes = np.arange(channel.alphabet)
    return np.array([channel.log_probability(codes, np.full(codes.size, place)) for place in places])


def worst_ratio(channel):
    rows = table(channel, np.linspace(0, 1, 101))
    assert np.allclose(np.exp(rows).sum(axis=1), 1, rtol=1e-9)
    return float((rows.max(axis=0) - rows.min(axis=0)).max())


@every_channel
def test_epsilon_is_exact(kind, alphabet, epsilon):
    """Attained between the ends, not exceeded on or between levels, and equal to the requested one."""
    channel = kind(alphabet, epsilon)
    assert epsilon * (1 - 1e-9) <= channel.epsilon <= epsilon
    assert math.isclose(worst_ratio(channel), channel.epsilon, rel_tol=1e-9)


@every_channel
def test_estimates_are_unbiased(kind, alphabet, epsilon):
    """And their second moment is the predicted one."""
    channel, places = kind(alphabet, epsilon), np.linspace(0, 1, 37)
    laws, values = np.exp(table(channel, places)), channel.estimate(np.arange(alphabet))
    assert np.allclose(laws @ values, 2 * places - 1, atol=1e-9 * values[-1])
    assert np.allclose(laws @ values**2, channel.second_moment(places), rtol=1e-8, atol=1e-8)


def sampler_p_value(channel, place, trials=40_000):
    codes = channel.randomize(np.full(trials, place), seeded_rng(4))
    return g_test(np.bincount(codes, minlength=channel.alphabet), trials * np.exp(table(channel, [place]))[0])


@pytest.mark.parametrize("place", [0.0, 0.37, 1.0])
@every_channel
def test_the_sampler_has_the_law(kind, alphabet, epsilon, place):
    assert sampler_p_value(kind(alphabet, epsilon), place) > 1e-6


# ---------------------------------------------------------------- the ordinal channel


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
            bits = int((cdf(code) * arb(2) ** 128).floor().unique_fmpz())
        word, rest = bits >> 64, bits & (2**64 - 1)
        for first, second, expected in [
            (word, 0, code),
            (word, rest - 1, code),
            (word, rest + 1, code + 1),
            (word, 2**64 - 1, code + 1),
            (word - 1, None, code),
            (word + 1, None, code + 1),
        ]:
            rng = ScriptedRng(first, *([] if second is None else [second]))
            drawn = channel._laws[level].draw_many(1, rng)
            assert (drawn.tolist(), rng.used) == ([expected], 1 + (second is not None))


# ---------------------------------------------------------------- the piecewise mechanism on a grid


@pytest.mark.parametrize(("alphabet", "epsilon"), GRIDS)
def test_a_window_that_is_too_short_is_caught(alphabet, epsilon):
    channel = PiecewiseGrid(alphabet, epsilon)
    claimed = channel.epsilon
    channel._window -= channel._window // 50
    assert worst_ratio(channel) > claimed * (1 + 1e-9)


def test_a_sampler_that_never_leaves_the_window_is_caught(monkeypatch):
    channel = PiecewiseGrid(16, 6.0)

    def biased(bound, count, rng):
        return integers_below(bound, count, rng) * (bound != channel._cells)

    monkeypatch.setattr(channels, "integers_below", biased)
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


# ---------------------------------------------------------------- selections

SELECTIONS = [TopSet(5, 1, 2.0), TopSet(5, 3, 0.5), TopSet(2, 1, 7.0)]
selections = pytest.mark.parametrize("selection", SELECTIONS, ids=lambda s: s.identity)


@selections
def test_selection_is_exactly_private(selection):
    """The weights of ranks differ by e^ε, and every coordinate can have every rank."""
    law = selection.log_probability(np.arange(selection.dim))
    assert math.isclose(np.exp(law).sum(), 1, rel_tol=1e-12)
    assert math.isclose(law.max() - law.min(), selection.epsilon, rel_tol=1e-12)


def sampled(selection, magnitudes, trials=20_000):
    chosen = selection.choose(magnitudes, trials, seeded_rng(5))
    ranks = np.empty(selection.dim, np.int64)
    ranks[ranking(magnitudes)] = np.arange(selection.dim)
    expected = trials * np.exp(selection.log_probability(ranks))
    return g_test(np.bincount(chosen, minlength=selection.dim), expected)


@pytest.mark.parametrize("magnitudes", [[3, 1, 2, 5, 4], [1, 1, 0, 1, 1], [0, 0, 0, 0, 0]])
@selections
def test_choices_have_the_law(selection, magnitudes):
    """Also with ties, which keep their order in both the draw and the density."""
    assert sampled(selection, np.array(magnitudes[: selection.dim], np.float32)) > 1e-6


def test_a_choice_that_is_always_from_the_top_is_caught(monkeypatch):
    selection = TopSet(5, 3, 0.5)
    monkeypatch.setattr(type(selection._is_top), "draw", lambda _, rng: 1)
    assert sampled(selection, np.arange(5, dtype=np.float32)) < 1e-6
