"""Sparse match codes: their law, their draws, their estimates."""

import itertools
import math

import numpy as np
import pytest
from reference import g_test

from sqsgd import ScalarDP, Task, seeded_rng
from sqsgd._internal.kernels import sampling
from sqsgd.core import Scheme
from sqsgd.core.transforms import Rotate
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches

TINY = [(4, 2, 2, 1), (5, 2, 2, 2), (4, 4, 4, 3), (4, 3, 3, 2), (6, 3, 1, 1), (3, 1, 2, 1)]


def mechanism(size, near, count, threshold, epsilon=3.0, norm=None):
    law = SparseLaw(size=size, near=near, count=count, threshold=threshold, epsilon=epsilon)
    return SparseMatches(law=law, norm=norm)


def all_codes(made):
    """Every code, as a column."""
    return [
        np.array([2 * place + sign for place, sign in zip(places, signs, strict=True)], np.uint32)
        for places in itertools.combinations(range(made.dim), made.law.count)
        for signs in itertools.product((0, 1), repeat=made.law.count)
    ]


def inputs(dim):
    """Zero, ties, a single coordinate, short, at and beyond the bound, tiny, dense."""
    spread = np.random.default_rng(1).standard_normal((4, dim))
    plain = [
        np.zeros(dim),
        np.ones(dim),
        -np.ones(dim),
        np.eye(dim)[0],
        -np.eye(dim)[-1] * 9,
        *spread,
        1e-30 * spread[0],
    ]
    return [x.astype(np.float32) for x in plain]


@pytest.mark.parametrize("norm", [None, ScalarDP(1.0, 2.0)], ids=["coin", "symbol"])
@pytest.mark.parametrize("parameters", TINY, ids=str)
def test_every_output_between_all_inputs(parameters, norm):
    """The densities of all outputs sum to one, and no two inputs differ by more than ε."""
    made = mechanism(*parameters, norm=norm)
    symbols = [()] if norm is None else [(np.array([symbol], np.uint8),) for symbol in range(norm.levels + 1)]
    outputs = [(codes, *symbol) for codes in all_codes(made) for symbol in symbols]
    table = np.array([[made.log_density(columns, x, 1.0) for x in inputs(made.dim)] for columns in outputs])
    assert np.allclose(np.exp(table).sum(axis=0), 1.0, rtol=1e-9)
    worst = (table.max(axis=1) - table.min(axis=1)).max()
    assert worst <= made.privacy.epsilon + 1e-9
    assert worst >= 0.9 * made.law.epsilon


@pytest.mark.parametrize("parameters", TINY, ids=str)
def test_what_is_drawn_has_the_density(parameters):
    made, rng = mechanism(*parameters), seeded_rng(5)
    outputs = {tuple(codes.tolist()): i for i, codes in enumerate(all_codes(made))}
    for x in inputs(made.dim):
        counts = np.zeros(len(outputs))
        for _ in range(1500):
            counts[outputs[tuple(made.randomize(x, 1.0, rng)[0].tolist())]] += 1
        expected = [1500 * math.exp(made.log_density((codes,), x, 1.0)) for codes in all_codes(made)]
        assert g_test(counts, np.array(expected)) > 1e-8


def test_codes_with_equal_matches_are_equally_likely():
    """Given (l, j), the kernel's draw is uniform: near ones, wrong ones and the rest."""
    made, rng, counts = mechanism(6, 3, 3, 2), seeded_rng(3), {}
    near = np.array([0, 5, 8], np.uint32)
    for _ in range(20_000):
        codes = made._draw(near, rng)
        counts[tuple(codes.tolist())] = counts.get(tuple(codes.tolist()), 0) + 1
    groups = {}
    for codes, seen in counts.items():
        right = len(set(codes) & set(near.tolist()))
        wrong = len({code ^ 1 for code in codes} & set(near.tolist()))
        groups.setdefault((right, wrong), []).append(seen)
    assert sum(map(len, groups.values())) == math.comb(6, 3) * 8
    for seen in groups.values():
        assert len(seen) == 1 or g_test(np.array(seen), np.full(len(seen), np.mean(seen))) > 1e-6


def test_a_sampler_that_favours_the_first_near_coordinates_is_caught(monkeypatch):
    """The test above notices a kernel that does not shuffle the near set."""
    honest = sampling.draw_codes

    def unshuffled(near, codes, size, right, wrong, words, marks):
        first = near.copy()
        done = honest(near, codes, size, right, wrong, words, marks)
        codes[:right], codes[right : right + wrong] = first[:right], first[right : right + wrong] ^ 1
        return done

    monkeypatch.setattr(sampling, "draw_codes", unshuffled)
    with pytest.raises(AssertionError):
        test_codes_with_equal_matches_are_equally_likely()


class Counting:
    """Counts the words that a generator hands out."""

    def __init__(self, rng):
        self.rng, self.words_drawn = rng, 0
        self.word_of, self.words_of = rng.word, rng.words
        rng.word, rng.words = self.word, self.words

    def word(self):
        self.words_drawn += 1
        return self.word_of()

    def words(self, count):
        self.words_drawn += count
        return self.words_of(count)


def test_the_same_work_whatever_is_drawn():
    """Every report draws the same number of words: high side or low side, whatever the vector."""
    made, rng = mechanism(64, 8, 5, 3, epsilon=1.0), seeded_rng(2)
    counting, seen, matches = Counting(rng), set(), set()
    for x in inputs(64) * 30:
        before = counting.words_drawn
        codes = made.randomize(x, 1.0, rng)[0]
        seen.add(counting.words_drawn - before)
        matches.add(len(set(codes.tolist()) & set(made._near(x, 1.0)[0].tolist())))
    assert len(matches) > 2
    assert len(seen) == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(wrong):
    with pytest.raises(ValueError, match="x"):
        mechanism(4, 2, 2, 1).randomize(np.array([0, 1, wrong, 0], np.float32), 1.0, seeded_rng(1))


@pytest.mark.parametrize("norm", [None, ScalarDP(1.0, 6.0)], ids=["coin", "symbol"])
@pytest.mark.parametrize(
    ("parameters", "epsilon"), [((1024, 24, 16, 16), 94.0), ((512, 60, 40, 34), 100.0)], ids=str
)
def test_predicted_mean_and_error(parameters, epsilon, norm):
    """Unbiased over the rotation, and the error is the predicted one, within four standard errors."""
    made = mechanism(*parameters, epsilon=epsilon, norm=norm)
    scheme = Scheme(name="sparse", dim=made.dim, transforms=(Rotate(rounds=2),), mechanism=made)
    x, rng = np.random.default_rng(0).standard_normal(made.dim), seeded_rng(1)
    x = (0.6 * x / np.linalg.norm(x)).astype(np.float32)
    along, errors = [], []
    for client in range(1500):
        task = Task(round=0, client=client, seed=3, dim=made.dim, bound=1.0)
        z = scheme.decode(scheme.encode(x, task, rng), task)
        along.append(z @ x / (x @ x))
        errors.append((z - x) @ (z - x) / (x @ x))
    assert abs(np.mean(along) - 1) < 4 * np.std(along) / 1500**0.5 + 0.004
    assert (
        abs(np.mean(errors) / made.relative_error(0.6) - 1)
        < 4 * np.std(errors) / np.mean(errors) / 1500**0.5 + 0.01
    )
