"""docs/proofs: mechanisms made of several private parts, over every random choice of the code.

The parts, which have proofs of their own, are replaced by small ones with the laws of those proofs, in
fractions; what joins them is the code that runs.
"""

import itertools
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from enumeration import Coin, integers_below, largest_ratio, law
from test_proof_channels import grid

from sqsgd import PrivQuant, ScalarDP
from sqsgd.mechanisms import channels
from sqsgd.mechanisms.channels import TopSet
from sqsgd.schemes.coordinatewise import EachCoordinate, Picked
from sqsgd.schemes.sqsgd import Direction
from sqsgd.schemes.sqsgd_paper import BoundedRange
from sqsgd.schemes.vqsgd import CrossPolytope


@pytest.fixture(autouse=True)
def _choices_are_generators(monkeypatch):
    for mechanism in (ScalarDP, CrossPolytope):
        monkeypatch.setattr(sys.modules[mechanism.__module__], "check_rng", lambda rng: rng)


def reports(mechanism, inputs, bound=1.0):
    """The law of the columns for each input."""
    return [
        law(
            lambda rng, x=x: tuple(
                tuple(column.tolist()) for column in mechanism.randomize(np.array(x, np.float32), bound, rng)
            )
        )
        for x in inputs
    ]


# ---------------------------------------------------------------- direction.md


def quantizer(gain):
    """PrivQuant of two signs with τ = 2, in fractions: randomised response over four codes (Theorem P8)."""
    q = PrivQuant(2, 2, math.log(gain), threshold=2)
    codes = list(itertools.product((0, 1), repeat=2))

    def randomize(x, half_range, rng):
        assert 1e-30 <= half_range <= 1e30  # what PrivQuant accepts
        places = np.clip(x / (2 * half_range) + 0.5, 0, 1).tolist()
        rounded = tuple(int(rng.uniform() < place) for place in places)
        chances = [Fraction(gain if code == rounded else 1, gain + 3) for code in codes]
        return (np.array(codes[rng.choose(chances)], np.uint8),)

    q.randomize = randomize
    return q


def scalar(maximum, gain, levels):
    symbol = ScalarDP(maximum, math.log(gain), levels)
    symbol._stays = Coin(Fraction(gain, gain + levels))
    return symbol


LENGTHS = (0.0, 1e-45, 1e-30, 0.99e-6, 1.01e-6, 0.3, 0.65, 1.0, 2.0, 1e13)
DIRECTIONS = ((1.0, 1.0), (-1.0, -1.0), (1.0, -1.0), (1.0, 0.0), (0.0, -1.0), (-0.0, 0.6))
VECTORS = [tuple(length * value for value in u) for length in LENGTHS for u in DIRECTIONS]
QUANTIZED = [
    lambda: Direction(quantizer=quantizer(3), norm=scalar(1.0, 2, 3)),
    lambda: Direction(quantizer=quantizer(3), norm=scalar(1.0, 2, 1), reach=1.0),
    lambda: BoundedRange(quantizer=quantizer(3), largest=scalar(2.0, 2, 2)),
    lambda: BoundedRange(quantizer=quantizer(3)),
]


@pytest.mark.parametrize("make", QUANTIZED)
def test_codes_and_symbol_by_enumeration(make):
    """Theorem R1: short, long, sparse and zero vectors, all pairs; each output from every input."""
    mechanism = make()
    laws, symbol = reports(mechanism, VECTORS), mechanism.symbol
    assert all(len(found) == 4 * (symbol.levels + 1 if symbol else 1) for found in laws)
    assert (4 if symbol else 2) < largest_ratio(laws) <= (3 * 2 if symbol else 3)
    assert math.isclose(math.exp(mechanism.privacy.epsilon), 3 * 2 if symbol else 3)


class ShortInClear(Direction):
    """Skips PrivQuant for vectors that count as zero."""

    def randomize(self, x, bound, rng):
        codes, symbol = super().randomize(x, bound, rng)
        return (codes if self.prepared(x, bound)[2] else np.zeros_like(codes)), symbol


class NormInClear(Direction):
    """Sends the norm in clear between 0.6 and 0.7 of the bound."""

    def randomize(self, x, bound, rng):
        codes, symbol = super().randomize(x, bound, rng)
        size = self.prepared(x, bound)[2]
        return codes, (np.array([2], np.uint8) if 0.6 < size < 0.7 else symbol)


# ---------------------------------------------------------------- coordinates.md, selection.md


class Bit:
    """A channel with two codes, in fractions."""

    alphabet = 2

    def __init__(self, gain):
        self.epsilon, self._coin = math.log(gain), Coin(Fraction(gain, gain + 1))

    def randomize(self, places, rng):
        assert ((places >= 0) & (places <= 1)).all()
        codes = [int(rng.uniform() < place) ^ 1 ^ self._coin.draw(rng) for place in places.tolist()]
        return np.array(codes, np.uint8)


NUMBERS = (-9.0, -1e-30, 0.0, 0.2, 9.0)


def test_coordinates_by_enumeration():
    """Theorem E2."""
    mechanism = EachCoordinate(dim=2, channel=Bit(3), reach=1.0)
    inputs = list(itertools.product(NUMBERS, repeat=2))
    laws = reports(mechanism, inputs)
    assert largest_ratio(laws) == 3**2
    assert math.isclose(math.exp(mechanism.privacy.epsilon), 3**2)
    for (x, one), (y, other) in itertools.combinations(zip(inputs, laws, strict=True), 2):
        if x[0] == y[0] or x[1] == y[1]:
            assert largest_ratio([one, other]) <= 3


def test_coordinates_on_a_piecewise_grid_by_enumeration(monkeypatch):
    """Theorem E2 with the channel of scheme ``piecewise`` itself, on a grid of four cells."""
    monkeypatch.setattr(channels, "integers_below", integers_below)
    channel = grid(2, 1, 1)
    mechanism = EachCoordinate(dim=2, channel=channel, reach=1.0)
    laws = reports(mechanism, [(-9, -9), (9, 9), (0, 0.3), (9, -9)])
    each = Fraction(1) + (3**2 - 1) * (1 - Fraction(1, 4))  # Theorem G4 with η = 3, ω = 1/2
    assert largest_ratio(laws) == each**2
    assert math.isclose(math.exp(mechanism.privacy.epsilon), each**2)


@pytest.mark.parametrize("picks", [1, 2])
def test_picks_by_enumeration(picks):
    """Theorem L4: coordinate and value together; attained. A single coordinate needs no selection."""
    single = Picked(dim=1, picks=picks, selection=None, channel=Bit(3), reach=1.0)
    assert largest_ratio(reports(single, [(value,) for value in NUMBERS])) == 3**picks
    assert math.isclose(math.exp(single.privacy.epsilon), 3**picks)
    selection = TopSet(3, 1, math.log(2))
    selection._is_top = Coin(Fraction(2, 2 + 2))
    mechanism = Picked(dim=3, picks=picks, selection=selection, channel=Bit(3), reach=1.0)
    inputs = [(9, 1, 0), (-8, 9, 9), (0, 0, 0), (5, 5, 5), (-1e-30, 0, 0), (0.1, -0.2, 9)]
    laws = reports(mechanism, inputs)
    assert all(sum(found.values()) == 1 for found in laws)
    assert largest_ratio(laws) == (2 * 3) ** picks
    assert math.isclose(math.exp(mechanism.privacy.epsilon), (2 * 3) ** picks)


class FirstInClear(EachCoordinate):
    """Sends the first coordinate's sign in clear."""

    def randomize(self, x, bound, rng):
        (codes,) = super().randomize(x, bound, rng)
        codes[0] = x[0] > 0
        return (codes,)


# ---------------------------------------------------------------- cross-polytope.md


def cross_polytope(dim, kind=CrossPolytope):
    mechanism = kind(dim=dim, repeats=2, epsilon=math.log(3))
    mechanism.__dict__["_stays"] = Coin(Fraction(3, 3 + 2 * dim - 1))
    return mechanism


@pytest.mark.parametrize("dim", [1, 2])
def test_vertices_by_enumeration(dim):
    """Theorem V3; for one coordinate ε is attained."""
    mechanism = cross_polytope(dim)
    inputs = [(9.0,) * dim, (-9.0,) * dim, (0.0,) * dim, (1e-30,) * dim, (0.5, *[0.0] * (dim - 1))]
    laws = reports(mechanism, inputs)
    assert all(len(found) == (2 * dim) ** 2 for found in laws)
    assert largest_ratio(laws) <= 3**2
    assert (largest_ratio(laws) == 3**2) == (dim == 1)
    assert math.isclose(math.exp(mechanism.privacy.epsilon), 3**2)


class ZeroInClear(CrossPolytope):
    """Sends a fixed vertex for zero."""

    def randomize(self, x, bound, rng):
        (codes,) = super().randomize(x, bound, rng)
        return (codes if x.any() else np.zeros_like(codes),)


BROKEN = {
    "short in clear": lambda: (ShortInClear(quantizer=quantizer(3), norm=scalar(1.0, 2, 3)), VECTORS),
    "norm in clear": lambda: (NormInClear(quantizer=quantizer(3), norm=scalar(1.0, 2, 3)), VECTORS),
    "first in clear": lambda: (FirstInClear(dim=2, channel=Bit(3), reach=1.0), [(9, 9), (-9, -9)]),
    "zero in clear": lambda: (cross_polytope(2, ZeroInClear), [(9.0, 0.0), (0.0, 0.0)]),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_the_enumeration_catches_a_part_in_clear(kind):
    with pytest.raises(ZeroDivisionError):
        largest_ratio(reports(*BROKEN[kind]()))
