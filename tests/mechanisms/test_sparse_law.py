"""The law of sparse codes, against whole numbers and against PrivQuant."""

import itertools
import math
from fractions import Fraction

import pytest
from flint import arb, fmpz

from sqsgd import PrivQuant
from sqsgd._internal import exact
from sqsgd.mechanisms.sparse import SparseLaw

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


@pytest.mark.parametrize("parameters", [(*each, 3.0) for each in SMALL] + LARGE)
def test_cdf_and_pairs(parameters):
    law = law_of(*parameters)
    pairs = sorted(ways(law))
    assert [law.rank(*pair) for pair in pairs] == list(range(len(pairs)))
    assert [law.pair(rank) for rank in range(len(pairs))] == pairs
    with exact.precision(256):
        assert abs(law.cdf(len(pairs) - 1) - 1) < arb(2) ** -100
        assert abs(sum(law.masses(), arb(0)) - 1) < arb(2) ** -60


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


@pytest.mark.parametrize("parameters", [(*each, 3.0) for each in SMALL] + LARGE)
def test_the_mean_of_matches_has_its_closed_form(parameters):
    law = law_of(*parameters)
    with exact.precision(400):
        above, below = density(law)
        mean = sum(
            (fmpz((right - wrong) * number) * (above if right >= law.threshold else below)
             for (right, wrong), number in ways(law).items()),
            arb(0),
        )  # fmt: skip
        assert math.isclose(law.mean_matches, float(mean.mid()), rel_tol=1e-12)


@pytest.mark.parametrize("parameters", [(*each, 3.0) for each in SMALL] + LARGE)
def test_epsilon_is_the_ratio_of_the_densities(parameters):
    law = law_of(*parameters)
    with exact.precision(400):
        above, below = density(law)
        assert abs((above / below).log() - law.epsilon) < 1e-50
        assert arb(law.log_densities[0]) <= above.log()
        assert arb(law.log_densities[1]) >= below.log()
    assert law.log_densities[0] - law.log_densities[1] <= law.epsilon


@pytest.mark.parametrize(("dim", "threshold", "epsilon"), [(64, 50, 12.0), (256, 160, 40.0)])
def test_all_signs_are_privquant_with_two_levels(dim, threshold, epsilon):
    quantizer = PrivQuant(dim, 2, epsilon, threshold=threshold)
    law = law_of(dim, dim, dim, threshold, quantizer.epsilon)
    assert math.isclose(law.mean_matches / dim, quantizer.scale, rel_tol=1e-9)


def test_one_coordinate_is_the_nearest_vertex():
    law = law_of(1024, 150, 1, 1, 8.0)
    odds = Fraction(150, 2048 - 150) * Fraction(math.exp(8.0))
    keep = odds / (1 + odds)
    wrong = (1 - keep) * Fraction(150, 2048 - 150)
    assert math.isclose(law.mean_matches, keep - wrong, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ((0, 1, 1, 1), "size = 0"),
        ((8, 9, 1, 1), "near = 9"),
        ((8, 2, 9, 1), "count = 9"),
        ((8, 2, 4, 3), "threshold = 3"),
    ],
)
def test_impossible_parameters_are_refused(parameters, words):
    with pytest.raises(ValueError, match=words):
        law_of(*parameters)
