"""docs/proofs/sampler.md: the lemmas about uniform integers and inversion, by exact enumeration."""

import itertools
import math
import random
from fractions import Fraction

import pytest
from flint import arb, fmpq
from scripted import ScriptedRng

from sqsgd import ScalarDP
from sqsgd.mechanisms.binomial import FairBinomial
from sqsgd.mechanisms.match_law import boundary_law
from sqsgd.mechanisms.ordinal import OrdinalChannel
from sqsgd.mechanisms.selection import RankWeights
from sqsgd.numerics import exact
from sqsgd.numerics.exact import InverseCdf


@pytest.mark.parametrize("bits", [3, 8])
def test_multiply_and_shift_is_uniform(bits):
    """Lemma S3, for every bound up to 2^bits and every word."""
    whole = 1 << bits
    for bound in range(1, whole + 1):
        counts = [0] * bound
        for word in range(whole):
            if word * bound % whole >= whole % bound:
                counts[word * bound >> bits] += 1
        assert counts == [whole // bound] * bound


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
    for dim, epsilon in [(2, 1e-6), (2**32 - 1, 1e-6), (2**32 - 1, 1e6), (10**6, 8.0)]:
        yield f"ranks {dim} {epsilon}", dim - 1, RankWeights(dim, epsilon)._cdf
    for levels, epsilon in [(2, 1e-6), (256, 1e-6), (256, 1e6), (16, 3.0)]:
        for level in (0, levels // 2, levels - 1):
            yield (
                f"levels {levels} {epsilon} {level}",
                levels - 1,
                OrdinalChannel(levels, epsilon)._cdf(level),
            )
    for trials in (1, 1000, 10**7):
        yield f"tosses {trials}", trials, FairBinomial(trials)._cdf
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
