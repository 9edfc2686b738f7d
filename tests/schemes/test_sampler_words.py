"""Mechanisms against their densities over every random choice, at many inputs, without statistics.

The exact draws are replaced by their own shares of the 2^64 words (``FromWords``); the noise of the kernels
is enumerated. The private step is therefore the code that runs, with all its randomness.
"""

import itertools
import math
import sys
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from proofs.enumeration import law
from proofs.test_proof_privquant import coordinate_law
from word_laws import WORDS, FromWords, check_law

from sqsgd import PrivQuant, ScalarDP
from sqsgd._internal.kernels.sampling import adjust, round_randomly
from sqsgd.mechanisms.channels import OrdinalChannel
from sqsgd.mechanisms.privquant import boundary_law
from sqsgd.schemes.privunit_index import NearestVertices


@pytest.fixture(autouse=True)
def _choices_are_generators(monkeypatch):
    for mechanism in (ScalarDP, NearestVertices):
        monkeypatch.setattr(sys.modules[mechanism.__module__], "check_rng", lambda rng: rng)


# ---------------------------------------------------------------- ScalarDP

VALUES = [0.0, 5e-324, 1e-9, 0.1, 1 / 3, 0.5, 0.65, 2 / 3, 1 - 2**-53, 1.0, 1.5, -1.0]
SCALARS = [(1, 1.0), (2, 0.01), (5, 3.0), (8, 6.0), (29, 10.0)]


def check_scalar(levels, epsilon):
    scalar = ScalarDP(1.0, epsilon, levels)
    scalar._stays = FromWords(scalar._stays.draw, 1)
    for value in VALUES:
        density = {symbol: scalar.log_density(symbol, value) for symbol in range(levels + 1)}
        check_law(law(lambda rng, value=value: scalar.privatize(value, rng)), density)


@pytest.mark.parametrize(("levels", "epsilon"), SCALARS)
def test_scalardp(levels, epsilon):
    check_scalar(levels, epsilon)


def never_perturbs_zero(self, value, rng):
    position = self._position(value)
    lower = min(int(position), self.levels - 1)
    symbol = lower + (rng.uniform() < position - lower)
    if symbol == 0 or self._stays.draw(rng):
        return symbol
    return (symbol + 1 + rng.below(self.levels)) % (self.levels + 1)


def clear_between(self, value, rng):
    """The norm is sent in clear between 0.6 and 0.7 of the bound."""
    if 0.6 < value < 0.7:
        return round(self.levels * value)
    return PRIVATIZE(self, value, rng)


PRIVATIZE = ScalarDP.privatize


@pytest.mark.parametrize("broken", [never_perturbs_zero, clear_between])
@pytest.mark.parametrize(("levels", "epsilon"), SCALARS)
def test_a_broken_scalardp_is_caught(levels, epsilon, broken, monkeypatch):
    monkeypatch.setattr(ScalarDP, "privatize", broken)
    with pytest.raises(AssertionError):
        check_scalar(levels, epsilon)


# ---------------------------------------------------------------- NearestVertices and Response


# ---------------------------------------------------------------- selections and channels


@pytest.mark.parametrize(("levels", "epsilon"), [(2, 1.0), (7, 7.7), (16, 0.5)])
def test_ordinal_channels(levels, epsilon):
    channel = OrdinalChannel(levels, epsilon)
    for level in {0, levels // 2, levels - 1}:

        def draw(rng, level=level):
            return channel._move(np.array([level]), np.array([rng.word()], np.uint64), rng)[0]

        shares = [Fraction(count, WORDS) for count in FromWords(draw, levels - 1).counts]
        check_law(dict(enumerate(shares)), dict(enumerate(channel.log_kernel[level])))


# ---------------------------------------------------------------- PrivQuant


def rounding_law(x, levels):
    """P(code) of one coordinate over all its noise; x so round that no spare word is needed."""
    offset = (levels - 1) / 2
    noise, codes = np.arange(1 << 16).astype(np.uint16), np.empty(1 << 16, np.uint8)
    spares = np.zeros(8 * 256, np.uint32)
    assert round_randomly(np.full(1 << 16, x, np.float32), offset, offset, noise, spares, codes)
    counts = np.bincount(codes, minlength=levels)
    return {code: Fraction(int(count), 1 << 16) for code, count in enumerate(counts) if count}


def adjusted_law(start, codes, levels, wanted):
    """The kernel's own tries, one for each place and shift, until the number of matches is the wanted one."""
    size, whole = len(codes), 1 << 32
    words = [
        ((whole * place + whole // 2) // size) << 32 | (whole * shift + whole // 2) // (levels - 1)
        for place in range(size)
        for shift in range(levels - 1)
    ]
    inputs = np.array(codes, np.uint8)

    def tried(v, word):
        out = np.array(v, np.uint8)
        before = int(np.count_nonzero(out == inputs))
        after = adjust(inputs, out, before, wanted, levels, np.array([word], np.uint64))
        assert after == np.count_nonzero(out == inputs)
        return tuple(out.tolist())

    found = dict.fromkeys(itertools.product(range(levels), repeat=size), Fraction(0))
    while start:
        after = {}
        for v, chance in start.items():
            moves = [move for move in (tried(v, word) for word in words) if move != v]
            if not moves:
                assert sum(a == b for a, b in zip(v, codes, strict=True)) == wanted
                found[v] += chance
            for move in moves:
                after[move] = after.get(move, Fraction(0)) + chance / len(moves)
        start = after
    return found


@cache
def output_law(dim, levels, keep, codes, wanted):
    """After scrambling and adjusting."""
    if keep < 0:
        return adjusted_law({codes: Fraction(1)}, codes, levels, wanted)
    laws = [coordinate_law(levels, keep, code) for code in codes]
    start = {
        v: math.prod(law[value] for law, value in zip(laws, v, strict=True))
        for v in itertools.product(range(levels), repeat=dim)
    }
    return adjusted_law({v: chance for v, chance in start.items() if chance}, codes, levels, wanted)


def check_quantizer(q, draw):
    counts = FromWords(draw, q.dim).counts
    round_inputs = [0.0, 2**-10, -0.25, 0.625, 1.0, -1.0, 7.0]
    vectors = [(0.0,) * q.dim, (1.0,) * q.dim, (-9.0, 9.0, 1.0)[: q.dim], (0.625, -0.25, 2**-10)[: q.dim]]
    for x in [*vectors, *([value] * q.dim for value in round_inputs)]:
        rounded = [rounding_law(value, q.levels) for value in x]
        found = dict.fromkeys(itertools.product(range(q.levels), repeat=q.dim), Fraction(0))
        for codes in itertools.product(*rounded):
            before = math.prod(law[code] for law, code in zip(rounded, codes, strict=True))
            for wanted, count in enumerate(counts):
                law = output_law(q.dim, q.levels, q._keep(wanted), codes, wanted)
                for v, chance in law.items():
                    found[v] += before * Fraction(count, WORDS) * chance
        density = {v: q.log_likelihood(np.array(v), np.array(x, np.float32), 1.0) for v in found}
        check_law(found, density)


QUANTIZERS = [(1, 2, 1.0), (2, 2, 3.0), (3, 2, 2.0), (2, 3, 1.5), (2, 4, 2.5)]


@pytest.mark.parametrize(("dim", "levels", "epsilon"), QUANTIZERS)
def test_privquant(dim, levels, epsilon):
    q = PrivQuant(dim, levels, epsilon)
    check_quantizer(q, q.law.sampler.draw)


@pytest.mark.parametrize("broken", ["1 % too rare", "2 % more", "clipped"])
@pytest.mark.parametrize(("dim", "levels", "epsilon"), QUANTIZERS)
def test_a_broken_privquant_is_caught(dim, levels, epsilon, broken):
    q = PrivQuant(dim, levels, epsilon)
    if broken == "1 % too rare":
        rarer = math.log((1 - 0.99 * q.drop) / (0.99 * (1 - q.drop)))
        draw = boundary_law(dim, levels, epsilon + rarer, q.threshold).sampler.draw
    elif broken == "2 % more":
        draw = boundary_law(dim, levels, 1.02 * epsilon, q.threshold).sampler.draw
    else:
        draw = lambda rng: max(1, q.law.sampler.draw(rng))  # noqa: E731
    with pytest.raises(AssertionError):
        check_quantizer(q, draw)
