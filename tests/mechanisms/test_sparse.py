"""Sparse match codes: their law against whole numbers and PrivQuant, their draws, their estimates."""

import itertools
import math

import numpy as np
import pytest
from flint import arb, fmpz
from reference import g_test

from sqsgd import ScalarDP, seeded_rng
from sqsgd._internal import exact
from sqsgd._internal.kernels import sampling
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches

SMALL = [(6, 3, 2, 1), (7, 3, 4, 2), (8, 8, 8, 5), (10, 6, 7, 4), (9, 1, 1, 1), (10, 10, 3, 2), (12, 4, 4, 4)]
LARGE = [
    (131072, 96, 48, 48, 394.0),
    (2048, 24, 16, 16, 94.0),
    (4096, 64, 64, 40, 394.0),
    (131072, 40, 4, 4, 36.0),
]
LARGE += [(2**24, 200, 3, 3, 20.0), (96, 96, 96, 60, 30.0), (1024, 150, 1, 1, 8.0)]


def law_of(size, near, count, threshold, epsilon=3.0):
    return SparseLaw(size=size, near=near, count=count, threshold=threshold, epsilon=epsilon)


def ways(law):
    """How many codes have l matches and j wrong signs, in whole numbers."""
    n, s, t = law.size, law.near, law.count
    return {
        (right, wrong): math.comb(s, right)
        * math.comb(s - right, wrong)
        * math.comb(n - s, t - right - wrong)
        * 2 ** (t - right - wrong)
        for right in range(law.most_hits + 1)
        for wrong in range(law.most_hits + 1 - right)
    }


@pytest.mark.parametrize("parameters", SMALL)
def test_the_ways_are_those_of_listed_codes(parameters):
    law = law_of(*parameters)
    near = {2 * place for place in range(law.near)}
    counted = dict.fromkeys(ways(law), 0)
    for places in itertools.combinations(range(law.size), law.count):
        for signs in itertools.product((0, 1), repeat=law.count):
            codes = {2 * place + sign for place, sign in zip(places, signs, strict=True)}
            counted[len(codes & near), len({code ^ 1 for code in codes} & near)] += 1
    assert counted == ways(law)


def density(law, bits=400):
    """(A, B) from whole numbers alone."""
    counted = ways(law)
    high = sum(number for (right, _), number in counted.items() if right >= law.threshold)
    whole = arb(law.epsilon).exp() * fmpz(high) + fmpz(sum(counted.values()) - high)
    return arb(law.epsilon).exp() / whole, 1 / whole


@pytest.mark.parametrize("parameters", [(*each, 3.0) for each in SMALL] + LARGE)
def test_the_table_encloses_the_law_in_whole_numbers(parameters):
    """Every edge of the sampler's table encloses the sum of exact counts up to it, to 2^-64."""
    law = law_of(*parameters)
    assert excess(law, law.sampler) == []
    covered = {law.pair(value) for value in law.sampler._values}
    with exact.precision(400):
        above, below = density(law)
        seen = sum(
            (fmpz(number) * (above if pair[0] >= law.threshold else below)
             for pair, number in ways(law).items() if pair in covered),
            arb(0),
        )  # fmt: skip
        last = law.most_hits, 0
        seen += fmpz(ways(law)[last]) * above if last not in covered else 0
        assert 1 - seen < arb(2) ** -60  # the table decides all but the rarest draws


@pytest.mark.parametrize("parameters", [(*each, 3.0) for each in SMALL] + LARGE)
def test_ranks_epsilon_and_the_mean_of_matches_are_those_of_whole_numbers(parameters):
    law = law_of(*parameters)
    pairs = sorted(ways(law))
    assert [law.rank(*pair) for pair in pairs] == list(range(len(pairs)))
    assert [law.pair(rank) for rank in range(len(pairs))] == pairs
    with exact.precision(400):
        above, below = density(law)
        assert abs(law.cdf(len(pairs) - 1) - 1) < arb(2) ** -100
        assert abs((above / below).log() - law.epsilon) < 1e-50
        assert arb(law.log_densities[0]) <= above.log()
        assert arb(law.log_densities[1]) >= below.log()
        chances = (
            fmpz((right - wrong) * number) * (above if right >= law.threshold else below)
            for (right, wrong), number in ways(law).items()
        )
        assert math.isclose(law.mean_matches, float(sum(chances, arb(0)).mid()), rel_tol=1e-12)
    assert law.log_densities[0] - law.log_densities[1] <= law.epsilon


def excess(law, sampler):
    """The edges whose interval of words does not hold the true sum."""
    with exact.precision(1000):
        above, below = density(law)
        order = sorted(ways(law).items())
        sums, total = {}, arb(0)
        for pair, number in order:
            total += fmpz(number) * (above if pair[0] >= law.threshold else below)
            sums[law.rank(*pair)] = total
        return [
            value
            for value, low, high in zip(sampler._values, sampler._below, sampler._above, strict=True)
            if not (sums[value] * 2**64 >= low and sums[value] * 2**64 <= high + 1 and high - low <= 1)
        ]


def test_a_broken_table_is_caught():
    """A sampler with 2 % more ε, or a threshold one lower, has edges elsewhere."""
    law = law_of(131072, 40, 4, 4, 36.0)
    assert excess(law, law_of(131072, 40, 4, 4, 36.72).sampler)
    assert excess(law, law_of(131072, 40, 4, 3, 36.0).sampler)


@pytest.mark.parametrize("parameters", [(*each, 3.0) for each in SMALL] + LARGE + [(64, 40, 50, 9, 3.0)])
def test_masses_are_those_of_whole_numbers(parameters):
    """The recurrence encloses the sums over wrong signs, also where codes must hit the near set."""
    law = law_of(*parameters)
    counted = [0] * (law.most_hits + 1)
    for (right, _), number in ways(law).items():
        counted[right] += number
    with exact.precision(256):
        whole = fmpz(math.comb(law.size, law.count) << law.count)
        for number, mass in zip(counted, law.masses(), strict=True):
            assert (arb(number) / whole).overlaps(mass)
            assert mass.rel_accuracy_bits() > 200


def test_impossible_parameters_are_refused():
    right = {"size": 8, "near": 2, "count": 4, "threshold": 2}
    for name, wrong in (("size", 0), ("near", 9), ("count", 9), ("threshold", 3)):
        with pytest.raises(ValueError, match=f"{name} = {wrong}"):
            law_of(**{**right, name: wrong})


TINY = [(4, 2, 2, 1), (5, 2, 2, 2), (4, 4, 4, 3), (4, 3, 3, 2), (6, 3, 1, 1), (3, 1, 2, 1)]


def mechanism(size, near, count, threshold, epsilon=3.0, norm=None):
    law = SparseLaw(size=size, near=near, count=count, threshold=threshold, epsilon=epsilon)
    return SparseMatches(law=law, norm=norm)


def all_codes(made):
    """Every code, as a column."""
    return list(made.layout[0].every())


def inputs(dim):
    """Zero, ties, a single coordinate, short, at and beyond the bound, tiny, dense."""
    spread = np.random.default_rng(1).standard_normal((4, dim))
    ends = np.eye(dim)[0], -np.eye(dim)[-1] * 9
    plain = [np.zeros(dim), np.ones(dim), -np.ones(dim), *ends, *spread, 1e-30 * spread[0]]
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
