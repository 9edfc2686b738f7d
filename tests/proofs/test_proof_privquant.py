"""docs/proofs/privquant.md: the law of the implemented sampler in fractions, from the kernels themselves."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from flint import arb, fmpq

from sqsgd import PrivQuant
from sqsgd._internal import exact
from sqsgd._internal.kernels.sampling import (
    adjust,
    round_randomly,
    scramble,
    scramble_bytes,
    scramble_pairs,
)
from sqsgd.mechanisms.privquant import MatchLaw, boundary_law, kept_law


def exact_sums(dim, levels, threshold, keep):
    """P(L <= l) for l = -1..dim, in fractions."""
    weights = [math.comb(dim, i) * (levels - 1) ** (dim - i) for i in range(dim + 1)]
    high, low = keep / sum(weights[threshold:]), (1 - keep) / sum(weights[:threshold])
    law = [weight * (high if i >= threshold else low) for i, weight in enumerate(weights)]
    return [Fraction(0), *itertools.accumulate(law)]


def wrong_enclosures(law, sums):
    """The counts at which the distribution function, or an edge of the table that draws, is not enclosed."""
    wrong = []
    for bits in (64, 128, 256):
        with exact.precision(bits):
            for count, total in enumerate(sums[1:]):
                ball, number = law.cdf(count), arb(fmpq(total.numerator, total.denominator))
                if not ball.overlaps(number) or (bits > 64 and not ball.rad() < 2.0 ** (20 - bits)):
                    wrong.append(("cdf", count))
    table = law.sampler
    for count, below, above in zip(table._values, table._below, table._above, strict=True):
        scaled = sums[count + 1] * 2**64
        if not (below <= scaled < above + 1 and above - below <= 1):
            wrong.append(("edge", count))
    return wrong


LAWS = [
    (dim, levels, threshold, keep)
    for dim, levels in [(1, 2), (2, 2), (7, 3), (24, 2), (24, 16), (60, 5), (200, 2), (200, 256)]
    for threshold in {1, 2, dim // levels + 1, dim // 2 + 1, dim}
    if threshold <= dim
    for keep in (Fraction(9, 10), Fraction(1, 10**30), 1 - Fraction(1, 10**30))
]


@pytest.mark.parametrize(("dim", "levels", "threshold", "keep"), LAWS)
def test_the_law_of_the_number_of_matches_is_enclosed(dim, levels, threshold, keep):
    """Lemma P3: cdf, for draws that 64 bits do not settle, and every edge of the table, against fractions."""
    law = kept_law(dim, levels, 1e6, threshold, keep)
    assert wrong_enclosures(law, exact_sums(dim, levels, threshold, keep)) == []


@pytest.mark.parametrize(
    ("dim", "levels", "first", "last"),
    [
        (600, 2, 0, 600),
        (600, 2, 0, 400),
        (600, 2, 380, 600),
        (900, 16, 0, 899),
        (900, 16, 150, 900),
        (5, 3, 2, 4),
    ],
)
def test_sums_that_leave_out_a_tail_enclose_it(dim, levels, first, last):
    """Lemma P3(d): every sum, and in particular the first ones, which stand for the terms left out before."""
    with exact.precision(192):
        yielded = list(exact.running_sum(dim, levels, first, last, arb(1), arb(0), arb(2) ** -80))
    sums = dict(yielded)
    assert list(sums) == list(range(min(sums), max(sums) + 1))
    total = Fraction(0)
    with exact.precision(1024):
        for count in range(first, last + 1):
            total += Fraction(math.comb(dim, count) * (levels - 1) ** (dim - count), levels**dim)
            if count in sums:
                assert sums[count].overlaps(arb(fmpq(total.numerator, total.denominator)))
                assert sums[count].rad() < arb(2) ** -79
    assert min(sums) >= first - 1
    assert min(sums) >= first or sums[first - 1].overlaps(arb(0))


@pytest.mark.parametrize(
    ("dim", "levels", "epsilon"), [(1, 2, 1e-6), (24, 2, 5.0), (60, 16, 80.0), (9, 3, 300.0)]
)
def test_the_odds_of_the_boundary_law_make_epsilon_exact(dim, levels, epsilon):
    """Theorem P8: A / B = e^ε for the log-odds that the sampler draws with, at every threshold."""
    for threshold in range(1, dim + 1):
        law = boundary_law(dim, levels, epsilon, threshold)
        weights = [math.comb(dim, i) * (levels - 1) ** (dim - i) for i in range(dim + 1)]
        with exact.precision(256):
            sizes = arb(fmpq(sum(weights[:threshold]), sum(weights[threshold:])))
            ratio = law.log_odds().exp() * sizes
            assert (ratio - arb(epsilon).exp()).contains(0)
            assert ratio.rel_accuracy_bits() > 200


@pytest.mark.parametrize("clipped", [0, 3])
def test_a_tail_that_is_cut_off_is_caught(clipped, monkeypatch):
    """No frequency shows it: nearly all draws are settled by the table."""
    law, cdf = kept_law(24, 2, 1e6, 18, Fraction(9, 10)), MatchLaw.cdf
    monkeypatch.setattr(MatchLaw, "cdf", lambda law, count: arb(0) if count <= clipped else cdf(law, count))
    assert ("cdf", clipped) in wrong_enclosures(law, exact_sums(24, 2, 18, Fraction(9, 10)))


def coordinate_law(levels, keep, code):
    """P(v_j) after scrambling, by handing the kernel every value of its noise."""
    bits = levels.bit_length() - 1
    if levels == 1 << bits:
        kind, kernel = (np.uint8, scramble_bytes) if bits == 1 else (np.uint16, scramble_pairs)
        noise = np.arange(1 << 8 * np.dtype(kind).itemsize).astype(kind)
        out = np.empty(noise.size, np.uint8)
        matches = kernel(np.full(noise.size, code, np.uint8), bits, keep, noise, out)
        assert matches == np.count_nonzero(out == code)
        return [Fraction(int(count), noise.size) for count in np.bincount(out, minlength=levels)]
    # Two independent halves: the upper one keeps or not, the lower one is mapped.
    law = [Fraction(0)] * levels
    low = np.arange(1 << 16, dtype=np.uint32)
    for upper, share in ((max(keep - 1, 0), Fraction(keep, 1 << 16)), (keep, 1 - Fraction(keep, 1 << 16))):
        out = np.empty(low.size, np.uint8)
        scramble(np.full(low.size, code, np.uint8), levels, keep, low | np.uint32(upper << 16), out)
        counts = np.bincount(out, minlength=levels)
        law = [old + share * Fraction(int(count), low.size) for old, count in zip(law, counts, strict=True)]
    return law


@pytest.mark.parametrize("levels", [2, 3, 4, 5, 16, 100, 255, 256])
def test_scrambling_treats_all_codes_alike(levels):
    """Lemma P4: the chance of a match is the same for every code, and the other values are equally likely."""
    q = PrivQuant(64, levels, 5.0)
    for keep in {q._keep(wanted) for wanted in (0, 1, 20, 40, 59)}:
        stays = set()
        for code in {0, 1, levels // 2, levels - 1}:
            law = coordinate_law(levels, keep, code)
            assert sum(law) == 1
            stays.add(law.pop(code))
            assert len(set(law)) == 1
        assert len(stays) == 1


def hitting_law(law, codes, levels, wanted):
    """Lemma P5: move single coordinates until ``wanted`` match; tries that change nothing change nothing."""

    def count(v):
        return sum(a == b for a, b in zip(v, codes, strict=True))

    while any(count(v) != wanted for v in law):
        after: dict[tuple[int, ...], Fraction] = {}
        for v, chance in law.items():
            matches = count(v)
            if matches == wanted:
                moves = [v]
            elif matches < wanted:
                moves = [(*v[:i], codes[i], *v[i + 1 :]) for i in range(len(v)) if v[i] != codes[i]]
            else:
                moves = [
                    (*v[:i], (codes[i] + 1 + shift) % levels, *v[i + 1 :])
                    for i in range(len(v))
                    if v[i] == codes[i]
                    for shift in range(levels - 1)
                ]
            for move in moves:
                after[move] = after.get(move, Fraction(0)) + chance / len(moves)
        law = after
    return law


@pytest.mark.parametrize(
    ("dim", "levels", "threshold"),
    [(1, 2, 1), (3, 2, 2), (4, 2, 4), (5, 2, 3), (2, 4, 1), (3, 3, 2), (2, 5, 2), (3, 4, 3)],
)
def test_the_output_has_exactly_the_target_law(dim, levels, threshold):
    """Theorem P8: stage 1 in fractions, stage 2 from the kernels' own laws; several inputs."""
    q = PrivQuant(dim, levels, threshold=threshold, keep=Fraction(19, 20))
    weights = [math.comb(dim, i) * (levels - 1) ** (dim - i) for i in range(dim + 1)]
    high, low = Fraction(19, 20) / sum(weights[threshold:]), Fraction(1, 20) / sum(weights[:threshold])
    for codes in {(0,) * dim, tuple(j % levels for j in range(dim)), (levels - 1,) * dim}:
        total: dict[tuple[int, ...], Fraction] = {}
        for wanted in range(dim + 1):
            keep = q._keep(wanted)
            if keep < 0:
                start = {codes: Fraction(1)}
            else:
                laws = [coordinate_law(levels, keep, code) for code in codes]
                start = {
                    v: math.prod(law[value] for law, value in zip(laws, v, strict=True))
                    for v in itertools.product(range(levels), repeat=dim)
                }
            chance = weights[wanted] * (high if wanted >= threshold else low)
            for v, share in hitting_law(start, codes, levels, wanted).items():
                total[v] = total.get(v, Fraction(0)) + chance * share
        for v in itertools.product(range(levels), repeat=dim):
            matches = sum(a == b for a, b in zip(v, codes, strict=True))
            assert total[v] == (high if matches >= threshold else low)


@pytest.mark.parametrize(("dim", "levels"), [(1, 2), (2, 3), (3, 2), (7, 5), (10, 256), (1000, 4)])
def test_a_try_takes_the_place_and_the_shift_of_the_lemma(dim, levels):
    """Lemma P5's use of S3: next to both ends of the words of a place and of a shift, and where rejected."""
    whole = 1 << 32

    def mapped(number, bound):
        return None if number * bound % whole < whole % bound else number * bound >> 32

    def moved(upper, lower):
        codes = np.zeros(dim, np.uint8)
        out = codes.copy()
        left = adjust(codes, out, dim, dim - 1, levels, np.array([upper << 32 | lower], np.uint64))
        assert left == dim - np.count_nonzero(out)
        return [(int(i), int(out[i]) - 1) for i in np.flatnonzero(out)]

    def restored(upper, lower):
        codes, out = np.zeros(dim, np.uint8), np.ones(dim, np.uint8)
        adjust(codes, out, 0, 1, levels, np.array([upper << 32 | lower], np.uint64))
        return np.flatnonzero(out == codes).tolist()

    def ends(bound):
        edges = {index * whole // bound for index in (0, 1, bound // 2, bound - 1, bound)}
        return {edge + step for edge in edges for step in (-1, 0, 1, 2) if 0 <= edge + step < whole}

    rejected = 0
    for upper, lower in itertools.product(ends(dim), ends(levels - 1)):
        place, shift = mapped(upper, dim), mapped(lower, levels - 1)
        expected = [] if place is None or shift is None else [(place, shift)]
        assert moved(upper, lower) == expected
        assert restored(upper, lower) == ([] if place is None else [place])
        rejected += not expected
    assert (rejected > 0) == (whole % dim > 0 or whole % (levels - 1) > 0)


@pytest.mark.parametrize("levels", [2, 3, 16, 255, 256])
def test_codes_are_codes_whatever_is_rounded(levels):
    """Lemma P7: not finite, huge, tiny and next to every level, with the noise that rounds up most."""
    top = levels - 1
    grid = np.linspace(-1, 1, levels).astype(np.float32)
    near = [np.nextafter(grid, np.float32(end)) for end in (-2, 2)]
    odd = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0, -0.0], np.float32)
    x = np.concatenate([grid, *near, odd])
    for noise, spare in itertools.product((0, 1, 65534, 65535), (0, 2**32 - 1)):
        codes = np.empty(x.size, np.uint8)
        spares = np.full(8 * -(-x.size // 256), spare, np.uint32)
        round_randomly(x, top / 2, top / 2, np.full(x.size, noise, np.uint16), spares, codes)
        assert codes.max() <= top
