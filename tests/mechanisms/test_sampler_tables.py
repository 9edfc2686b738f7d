"""Every table that draws, at real sizes, against its law: all words, no statistics.

``check_edges`` bisects over the 2^64 first words of the sampler that runs. The distribution functions are
sums of whole numbers and of powers of e from the decimal module. Broken samplers are kept at the end.
"""

import math
from fractions import Fraction
from functools import cache
from itertools import accumulate

import pytest
from word_laws import WORDS, check_edges, exponential

from sqsgd import PrivQuant, ScalarDP
from sqsgd._internal import exact
from sqsgd.mechanisms.binomial import fair_binomial
from sqsgd.mechanisms.channels import OrdinalChannel, TopSet
from sqsgd.mechanisms.privquant import boundary_law
from sqsgd.schemes.privunit_index import NearestVertices, best_nearest
from sqsgd.schemes.vqsgd import CrossPolytope

DIM = 119850


@cache
def match_cdf(dim, levels, threshold, epsilon):
    """P(L <= l), from sums of whole numbers and e^ε."""
    weight, weights = (levels - 1) ** dim, []
    for count in range(dim + 1):
        weights.append(weight)
        weight = weight * (dim - count) // ((count + 1) * (levels - 1))
    sums = list(accumulate(weights))
    low, gain = sums[threshold - 1], exponential(epsilon)
    whole = low + gain * (sums[-1] - low)
    return lambda count: (
        (Fraction(sums[count]) if count < threshold else low + gain * (sums[count] - low)) / whole
    )


def some(values, count=24):
    """The ends, and numbers spread in between."""
    values = list(values)
    return sorted({values[i * (len(values) - 1) // (count - 1)] for i in range(count)})


MATCHES = {
    "sqsgd, signs in 256 bytes": (2048, 2, 394.0, None),
    "sqsgd at 8": (64, 2, 6.0, None),
    "the paper's": (512, 16, 400.0, None),
    "sqkr": (567, 2, 400.0, 567),
    "privunit-inf": (2048, 2, 400.0, None),
    "low sides": (512, 16, 1.0, None),
    "five levels": (300, 5, 8.0, None),
    "all match": (512, 2, 400.0, None),
}


def quantizer_of(name):
    dim, levels, epsilon, threshold = MATCHES[name]
    q = PrivQuant(dim, levels, epsilon, threshold=threshold)
    return q, match_cdf(dim, levels, q.threshold, epsilon)


def listed(q):
    """Values whose edges the table lists, and those around the threshold."""
    inside = [value for value in q.law.sampler._values if 0 <= value < q.dim]
    around = [q.threshold + step for step in (-2, -1, 0, 1) if 0 <= q.threshold + step < q.dim]
    return sorted({*some(inside), *around, 0, q.dim - 1}) if q.dim > 1 else [0]


@pytest.mark.parametrize("name", MATCHES)
def test_the_number_of_matches(name):
    q, cdf = quantizer_of(name)
    check_edges(q.law.sampler.draw, cdf, listed(q))


def coin(log_odds_power, weight_one, weight_zero):
    """F of a coin: 1 with odds e^ε weight_one against weight_zero."""
    gain = exponential(log_odds_power) * weight_one
    return lambda value: Fraction(weight_zero) / (weight_zero + gain) if value == 0 else Fraction(1)


NEAREST = best_nearest(1 << 17, 1.0)
COINS = {
    "scalardp 6": (lambda: ScalarDP(1.0, 6.0)._stays, coin(6.0, 1, 8)),
    "scalardp 0.01": (lambda: ScalarDP(1.0, 0.01, 255)._stays, coin(0.01, 1, 255)),
    "scalardp 100": (lambda: ScalarDP(2.0, 100.0)._stays, coin(100.0, 1, 255)),
    "vertices 1": (
        lambda: NearestVertices(dim=1 << 17, epsilon=1.0, nearest=NEAREST)._is_near,
        coin(1.0, NEAREST, (1 << 18) - NEAREST),
    ),
    "response": (lambda: CrossPolytope(dim=DIM, repeats=1, epsilon=16.0)._stays, coin(16.0, 1, 2 * DIM - 1)),
    "top set": (lambda: TopSet(DIM, 120, 5.2)._is_top, coin(5.2, 120, DIM - 120)),
}


@pytest.mark.parametrize("name", COINS)
def test_coins(name):
    make, cdf = COINS[name]
    check_edges(make().draw, cdf, [0])


def check_law(law, cdf, values):
    """Bulk draws at the words next to some edges, and every edge of their table."""
    check_edges(lambda rng: law.draw_many(1, rng)[0], cdf, values)
    for value, under, over in zip(law._values, law._below, law._above, strict=True):
        edge = (cdf(value) if value >= 0 else Fraction(0)) * WORDS
        assert under <= edge <= over + 1


def row_cdf(levels, epsilon, level):
    """P(y <= code | level), a plain sum of powers."""
    rate = exponential(-Fraction(epsilon) / (levels - 1))
    sums = list(accumulate(rate ** abs(level - code) for code in range(levels)))
    return lambda code: sums[code] / sums[-1]


@pytest.mark.parametrize(("levels", "epsilon"), [(2, 400 / 184), (7, 400 / 52), (3, 200.0)])
def test_ordinal_rows(levels, epsilon):
    channel = OrdinalChannel(levels, epsilon)
    for level in some(range(levels), 4):
        check_law(channel._laws[level], row_cdf(levels, epsilon, level), some(range(levels - 1), 6))


def binomial_cdf(trials):
    weight, weights = 1, []
    for heads in range(trials + 1):
        weights.append(weight)
        weight = weight * (trials - heads) // (heads + 1)
    sums = list(accumulate(weights))
    return lambda heads: Fraction(sums[heads], 2**trials)


@pytest.mark.parametrize("trials", [1, 7, 64, 90, 2_000])
def test_fair_binomials(trials):
    law = fair_binomial(trials)
    inside = [value for value in law._values if 0 <= value < trials]
    check_law(law, binomial_cdf(trials), some(inside, 12))


# ---------------------------------------------------------------- broken samplers


class Clipped:
    """Draws, with the low side never further than two deviations from its mean."""

    def __init__(self, q):
        mean, deviation = q.dim / q.levels, math.sqrt(q.dim * (q.levels - 1)) / q.levels
        self.q, self.least = q, math.ceil(mean - 2 * deviation)

    def draw(self, rng):
        drawn = self.q.law.sampler.draw(rng)
        return max(drawn, self.least) if drawn < self.q.threshold else drawn


def cut_after_one_word(sampler):
    """The middle of a word decides where its 64 bits do not."""

    def continue_from(word, rng):
        with exact.precision(256):
            return sampler._search(2 * word + 1, 65) or 0

    sampler.continue_from = continue_from
    return sampler


def broken_sampler(kind, q):
    law = q.law
    if kind == "the low side 1 % too rare":
        rarer = math.log((1 - 0.99 * law.drop) / (0.99 * (1 - law.drop)))
        changed = boundary_law(q.dim, q.levels, q.epsilon + rarer, q.threshold)
        assert math.isclose(changed.drop, 0.99 * law.drop, rel_tol=1e-9)
        return changed.sampler
    if kind == "epsilon 2 % larger":
        return boundary_law(q.dim, q.levels, 1.02 * q.epsilon, q.threshold).sampler
    if kind == "cut at 64 bits":
        return cut_after_one_word(law.sampler)
    return Clipped(q)


@pytest.mark.parametrize("name", ["sqsgd, signs in 256 bytes", "the paper's", "low sides", "sqkr"])
@pytest.mark.parametrize(
    "kind", ["the low side 1 % too rare", "epsilon 2 % larger", "cut at 64 bits", "clipped at two deviations"]
)
def test_broken_samplers_are_caught(name, kind):
    q, cdf = quantizer_of(name)
    sampler = broken_sampler(kind, q)
    with pytest.raises(AssertionError):
        check_edges(sampler.draw, cdf, listed(q))


@pytest.mark.parametrize("name", [name for name in COINS if name != "scalardp 100"])  # it has no table
def test_coins_with_one_side_1_percent_too_rare_are_caught(name):
    make, cdf = COINS[name]
    coin = make()
    coin._sure[0], coin._above[0] = (99 * word // 100 for word in (coin._sure[0], coin._above[0]))
    with pytest.raises(AssertionError):
        check_edges(coin.draw, cdf, [0])
