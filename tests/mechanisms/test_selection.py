"""Private selection of coordinates: exact budgets, exact draws."""

import itertools
import math

import numpy as np
import pytest
from reference import g_test

from sqsgd import seeded_rng
from sqsgd.mechanisms.selection import RankWeights, TopSet, largest, ranking

SELECTIONS = [
    TopSet(5, 1, 2.0),
    TopSet(5, 3, 0.5),
    TopSet(2, 1, 7.0),
    RankWeights(5, 2.0),
    RankWeights(2, 0.1),
]


selections = pytest.mark.parametrize("selection", SELECTIONS, ids=lambda s: s.identity)


def worst_ratio(law, dim):
    """Over all rankings of a few coordinates: by how much the probability of one pick can change."""
    rows = []
    for order in itertools.permutations(range(dim)):
        magnitudes = np.array(order, np.float32)
        ranks = np.empty(dim, np.int64)
        ranks[ranking(magnitudes)] = np.arange(dim)
        rows.append(law(ranks, magnitudes))
    rows = np.array(rows)
    assert np.allclose(np.exp(rows).sum(axis=1), 1, rtol=1e-12)
    return float((rows.max(axis=0) - rows.min(axis=0)).max())


@selections
def test_selection_is_exactly_private(selection):
    worst = worst_ratio(lambda ranks, _: selection.log_probability(ranks), selection.dim)
    assert math.isclose(worst, selection.epsilon, rel_tol=1e-12)


def test_a_choice_by_magnitude_instead_of_rank_is_caught():
    """Weights e^{ε |x_j|}, as if magnitudes could not differ by more than one."""

    def law(_, magnitudes):
        return np.float64(magnitudes) - np.logaddexp.reduce(np.float64(magnitudes))

    assert worst_ratio(law, 4) > 1.0


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


def test_the_top_set_is_the_head_of_the_ranking():
    for seed in range(50):
        magnitudes = np.random.default_rng(seed).integers(0, 6, 30).astype(np.float32)
        for count in (1, 7, 29):
            assert set(largest(magnitudes, count).tolist()) == set(ranking(magnitudes)[:count].tolist())
