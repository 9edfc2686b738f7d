"""docs/proofs/sampler.md: the lemmas about uniform integers and inversion, by exact enumeration."""

import itertools
import math
import random
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from flint import arb, fmpq
from scripted import ScriptedRng

from sqsgd import ScalarDP, secure_rng
from sqsgd._internal import exact
from sqsgd._internal.exact import InverseCdf
from sqsgd.core import random as private
from sqsgd.core.random import Rng
from sqsgd.mechanisms.binomial import fair_binomial
from sqsgd.mechanisms.channels import OrdinalChannel, TopSet, integers_below
from sqsgd.mechanisms.privquant import boundary_law
from sqsgd.schemes.privunit_index import NearestVertices
from sqsgd.schemes.vqsgd import CrossPolytope


class Counting:
    """In place of keystreams: the words 0, 1, 2, ..., each once, whatever the key."""

    keys = words = 0

    def __init__(self, *_, **__):
        Counting.keys += 1

    def fill(self, target):
        first, count = Counting.words, -(-target.size // 8)
        target[:] = np.arange(first, first + count, dtype=np.uint64).view(np.uint8)[: target.size]
        Counting.words += count


def words_of(taken):
    """The words that an array of at least five bytes holds; the last may be cut."""
    whole = np.zeros(-(-taken.size // 8) * 8, np.uint8)
    whole[: taken.size] = taken
    numbers = whole.view(np.uint64).tolist()
    return list(range(numbers[0], numbers[0] + len(numbers)))


def repeated(rng, seed, requests=4000):
    """Whether the generator hands out a word twice."""
    script, seen = random.Random(seed), []
    for _ in range(requests):
        kind, size = script.randrange(4), script.choice([5, 8, 13, 100, 1000, 4000, 4096, 4097, 20_000])
        if kind == 0:
            seen += words_of(rng.take(size))
        elif kind == 1:
            seen += rng.words(size // 8 + 1).tolist()
        elif kind == 2:
            target = np.empty(size, np.uint8)
            rng.fill(target)
            seen += words_of(target)
        else:
            seen.append(rng.word())
    return len(set(seen)) < len(seen)


@pytest.mark.parametrize("seed", range(3))
def test_no_word_of_the_keystream_is_handed_out_twice(monkeypatch, seed):
    """Lemma S1, for requests of every kind and size in random order, over several keys."""
    monkeypatch.setattr(private, "Keystream", Counting)
    monkeypatch.setattr(private, "MOST_BYTES", 1 << 20)
    before = Counting.keys
    assert not repeated(secure_rng(), seed)
    assert Counting.keys - before > 5


@pytest.mark.parametrize("method", ["take", "word"])
def test_a_generator_that_repeats_words_is_caught(monkeypatch, method):
    class Repeating(Rng):
        def take(self, count):
            taken = super().take(count)
            if method == "take" and self._used > 8:
                self._used -= 8
            return taken

        def word(self):
            word = super().word()
            if method == "word" and word % 64 == 7:
                self._spare.append(word)
            return word

    monkeypatch.setattr(private, "Keystream", Counting)
    assert repeated(Repeating(), 0, 400)


def test_a_key_serves_no_more_than_its_limit_and_one_request(monkeypatch):
    """index.md: what A2 assumes about one key."""
    served: list[int] = []

    class Measuring(Counting):
        def __init__(self, *_, **__):
            super().__init__()
            served.append(0)

        def fill(self, target):
            super().fill(target)
            served[-1] += target.size

    monkeypatch.setattr(private, "Keystream", Measuring)
    monkeypatch.setattr(private, "MOST_BYTES", 1 << 16)
    repeated(secure_rng(), 5, 1000)
    assert len(served) > 5
    assert max(served) <= (1 << 16) + 20_000


class Script(ScriptedRng):
    below_many = Rng.below_many


@pytest.mark.parametrize("bound", [3, 6, 2**32 + 1, 9 * 2**57, 2**61 - 1, 2**62 + 1, 3 * 2**61, 2**63 - 1])
def test_integers_below_reject_what_would_be_uneven(bound):
    """Lemma S2: words beside the limit; those from it on are replaced by further words."""
    limit = 2**64 - 2**64 % bound
    assert limit % bound == 0
    words = [limit - 1, limit, 0, bound, 2**64 - 1]
    rng = Script(*words, limit, 7, 2**64 - 1, limit - 2)  # two are replaced, one of them twice more
    assert integers_below(bound, len(words), rng).tolist() == [
        bound - 1, (limit - 2) % bound, 0, 0, 7 % bound,
    ]  # fmt: skip
    assert rng.used == 9


@pytest.mark.parametrize("bound", [2**63 + 1, 2**64 - 1, 2**64, 2**64 + 1, 10**30])
def test_long_integers_below_reject_what_would_be_uneven(bound):
    """Lemma S2 beyond 2^63: numbers of as many bits as the largest result, and none from the bound on."""
    bits = (bound - 1).bit_length()

    class Script:
        def __init__(self, *numbers):
            self.numbers = list(numbers)

        def take(self, count):
            assert count == -(-bits // 8)
            return np.frombuffer(self.numbers.pop(0).to_bytes(count, "little"), np.uint8)

    refused = [bound, (1 << bits) - 1] if bound < 1 << bits else []
    ignored = 5 << bits if bits % 8 > 3 or bits % 8 == 0 else 0  # bits beyond those that are used
    ignored = ignored if ignored.bit_length() <= -(-bits // 8) * 8 else 0
    rng = Script(*refused, bound - 1, *refused, ignored)
    assert integers_below(bound, 2, rng).tolist() == [bound - 1, 0]
    assert not rng.numbers


LAWS = [
    [Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)],
    [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)],  # edges that are multiples of 2^-64
    [Fraction(1, 10**30), Fraction(1, 7), 1 - Fraction(1, 7) - Fraction(1, 10**30)],
    [Fraction(1, 5), Fraction(1, 10**40), Fraction(1, 10**40), Fraction(4, 5) - Fraction(2, 10**40)],
    [Fraction(k, 136) for k in range(1, 17)],
    [Fraction(1, 2**70)] * 4 + [1 - Fraction(4, 2**70)],
]


def sums(law):
    return list(itertools.accumulate(law))


def ball(number, radius=0):
    return arb(fmpq(number.numerator, number.denominator)) + arb(0, radius)


def inverted(law, uniform):
    """V(U), by definition."""
    return next(value for value, edge in enumerate(sums(law)) if uniform < edge)


@pytest.mark.parametrize("law", LAWS)
def test_a_search_is_right_where_it_decides_and_mostly_decides(law):
    """Lemmas S6 and S8, with words of few bits: every word."""
    edges = sums(law)
    sampler = InverseCdf(len(law) - 1, lambda value: ball(edges[value]), ())
    for bits in (1, 4, 8, 11):
        undecided = 0
        for word in range(1 << bits):
            with exact.precision(bits + exact.START_BITS):
                found = sampler._search(word, bits)
            ends = Fraction(word, 1 << bits), Fraction(2 * word + 2, 2 << bits) - Fraction(1, 10**60)
            if found is None:
                undecided += 1
            else:
                assert found == inverted(law, ends[0]) == inverted(law, ends[1])
        assert undecided <= 4 * (len(law) - 1)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", ["all", "none", "gaps", "twice", "wide", "shuffled"])
def test_no_table_can_bias_a_draw(law, shape):
    """Lemma S5: whatever edges the table lists, in whatever order, a draw is V(U)."""
    edges, rng = sums(law), random.Random(7)
    listed = [(value, edge) for value, edge in enumerate(edges[:-1])]
    if shape == "none":
        listed = []
    elif shape == "gaps":
        listed = listed[::2]
    elif shape == "twice":
        listed = sorted(listed * 2)
    elif shape == "shuffled":
        rng.shuffle(listed)
    with exact.precision(192):
        radius = 2.0**-60 if shape == "wide" else 2.0**-100
        table = [(value, ball(edge, radius)) for value, edge in listed]
        sampler = InverseCdf(len(law) - 1, lambda value: ball(edges[value]), table)
    words = {0, 1, 2**64 - 1, 2**63, *(rng.getrandbits(64) for _ in range(20))}
    for edge in edges:
        words |= {min(max(math.floor(edge * 2**64) + step, 0), 2**64 - 1) for step in range(-20, 21)}
    for word in words:
        further = [rng.getrandbits(64) for _ in range(4)]
        uniform = sum(Fraction(part, 2 ** (64 * place + 64)) for place, part in enumerate([word, *further]))
        assert sampler.draw(ScriptedRng(word, *further)) == inverted(law, uniform)


def cdfs():
    """(name, top, F) of laws at the ends of the range of parameters."""
    for dim, levels, epsilon in [
        (1, 2, 1e-6), (512, 16, 400.0), (2**24, 2, 0.01), (2**24, 256, 1e6), (2**20, 3, 2e3), (7, 256, 1e6),
    ]:  # fmt: skip
        law = boundary_law(dim, levels, epsilon)
        yield f"matches {dim} {levels} {epsilon}", dim, law.cdf
    for levels, epsilon in [(2, 1e-6), (256, 1e-6), (256, 1e6), (16, 3.0)]:
        for level in (0, levels // 2, levels - 1):
            yield (
                f"levels {levels} {epsilon} {level}",
                levels - 1,
                OrdinalChannel(levels, epsilon)._cdf(level),
            )
    for trials in (1, 1000, 10**7):
        yield f"tosses {trials}", trials, fair_binomial(trials)._cdf
    for epsilon in (1e-6, 10.0, 1e6):
        yield f"scalar {epsilon}", 1, ScalarDP(1.0, epsilon, 255)._stays._cdf


@pytest.mark.parametrize(("top", "cdf"), [pytest.param(top, cdf, id=name) for name, top, cdf in cdfs()])
def test_enclosures_are_as_tight_as_termination_needs(top, cdf):
    """The hypothesis of Lemma S8: at b + 128 bits of precision the radius of F(v) is below 2^-b."""
    values = {value for value in (0, 1, top // 300, top // 3, top // 2, top - 2, top - 1) if 0 <= value < top}
    for bits in (64, 192):
        for value in values:
            with exact.precision(bits + exact.START_BITS):
                edge = cdf(value)
                assert edge.is_finite()
                assert edge.rad() < arb(2) ** -bits


def wrong_probabilities(cdf, weights, bits=8192):
    """The values whose probability F(v) - F(v-1) is not that of the weights, to a relative 2^-100.

    Relative: a tail that is cut off has an infinite ε, however small it is.
    """
    with exact.precision(bits):
        weights = weights()
        whole, before, wrong = sum(weights, arb(0)), arb(0), []
        for value, weight in enumerate(weights):
            edge = cdf(value)
            chance, before = edge - before, edge
            quotient = chance * whole / weight
            if not (quotient.contains(1) and quotient.rel_accuracy_bits() > 100):
                wrong.append(value)
    return wrong


def small_laws():
    """(name, F, weights) of every law that private steps draw from, but for matches."""
    for epsilon in (1e-6, 1.0, 40.0, 1000.0):
        gain = partial(lambda epsilon: arb(epsilon).exp(), epsilon)
        scalar, response = ScalarDP(1.0, epsilon, 7), CrossPolytope(dim=5, repeats=1, epsilon=epsilon)
        yield f"scalar {epsilon}", scalar._stays._cdf, lambda gain=gain: [arb(7), gain()]
        yield f"response {epsilon}", response._stays._cdf, lambda gain=gain: [arb(9), gain()]
        top = TopSet(20, 3, epsilon)
        yield f"top {epsilon}", top._is_top._cdf, lambda gain=gain: [arb(17), 3 * gain()]
        near = NearestVertices(dim=16, epsilon=max(epsilon, 0.01), nearest=5)
        odds = partial(lambda epsilon: 5 * arb(epsilon).exp(), near.epsilon)
        yield f"near {epsilon}", near._is_near._cdf, lambda odds=odds: [arb(27), odds()]
        for level in (0, 2, 5):
            levels = partial(
                lambda epsilon, level: [(-arb(epsilon) * abs(level - y) / 5).exp() for y in range(6)],
                epsilon, level,
            )  # fmt: skip
            yield f"levels {epsilon} {level}", OrdinalChannel(6, epsilon)._cdf(level), levels
    for trials in (1, 2, 31, 200):
        tosses = partial(lambda trials: [arb(math.comb(trials, v)) for v in range(trials + 1)], trials)
        yield f"tosses {trials}", fair_binomial(trials)._cdf, tosses


@pytest.mark.parametrize(
    ("cdf", "weights"), [pytest.param(cdf, weights, id=name) for name, cdf, weights in small_laws()]
)
def test_every_probability_is_right_however_small(cdf, weights):
    """Lemmas S9, D2, N3, V1, O2, B1, Theorem L2: the functions that draws are made from."""
    assert wrong_probabilities(cdf, weights) == []


def test_a_tail_that_is_cut_off_is_caught():
    cdf = OrdinalChannel(6, 1000.0)._cdf(0)
    weights = partial(lambda: [(-arb(200) * y).exp() for y in range(6)])
    assert wrong_probabilities(cdf, weights) == []
    assert wrong_probabilities(lambda value: cdf(value) if value < 4 else arb(1), weights) == [4, 5]
