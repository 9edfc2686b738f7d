"""Sums of independent variables, bounded from above on a grid.

A variable is replaced by a larger one in the increasing convex order: a value between two points of the grid
is split between them with its mean kept, or moved up. Sums keep the order, so E(W - t)₊ of the result bounds
that of the sum from above. Masses are whole numbers of 2^-bits, rounded down; whatever is missing from a
total of one counts at the largest possible value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from flint import arb, fmpz, fmpz_poly

FINENESS = 2**10  # mean squares over squared steps of the grid
_FRACTION = 64  # bits of a jump's place between two points of the grid
_SHARE = 2**7  # of the mass that a sum may lose, one addition may lose one part in so many


@dataclass(frozen=True, kw_only=True)
class GridLaw:
    """``masses`` at the points first, first + 1, ... times 2^exponent; the rest is at ``top`` or below."""

    exponent: int
    first: int
    masses: fmpz_poly
    top: int

    def excess(self, threshold: arb, bits: int) -> arb:
        """An upper bound of E(W - threshold)₊."""
        step = arb(2) ** self.exponent
        least = (threshold / step).lower()  # exact, and at most the threshold
        start = max(0, _ceiling(least) - self.first)
        above = self.masses.right_shift(start)
        missing = (fmpz(1) << bits) - self.masses(1)
        whole = arb(above.derivative()(1)) + (self.first + start - least) * arb(above(1))
        if self.top > least:
            whole += (self.top - least) * arb(missing)
        return (whole * step / arb(2) ** bits).upper()


@dataclass(frozen=True, kw_only=True)
class SpreadSums:
    """Sums of up to ``most`` independent jumps, of size s with probability p for each (s, p) of ``jumps``.

    Sizes are relative to the largest, which is one; with the remaining probability a jump is zero. ``bits``
    is the precision of masses, and a sum of ``most`` jumps loses at most about 2^-spare of its mass.

    Guarantees
    ----------
    * ``excess`` of every sum is an upper bound:
      tests/certificate/test_spread_sums.py::test_the_excess_is_never_below_the_exact_one.
    """

    jumps: Sequence[tuple[arb, arb]]
    most: int
    bits: int
    spare: int

    # Floats choose the grids and the reach: they decide how close the bound is, not that it is one.

    @cached_property
    def _upward(self) -> list[tuple[float, float]]:
        return [(float(size), float(chance)) for size, chance in self.jumps if float(size) > 0]

    @cached_property
    def _reach(self) -> int:
        """More than all upward jumps together, in effect (Bennett's inequality): what is lower stays lost."""
        mean = max(self.most * sum(chance * size for size, chance in self._upward), 1e-300)
        low, high = mean, mean + 2 * self.spare + 2 * math.sqrt(mean * self.spare) + 2
        for _ in range(30):
            middle = (low + high) / 2
            rare = middle * math.log(middle / mean) - middle + mean > self.spare * math.log(2)
            low, high = (low, middle) if rare else (middle, high)
        return math.ceil(high)

    @cached_property
    def _finest(self) -> int:
        """The grid for single jumps, with steps of at most one: splitting adds little to the mean square.

        Upward jumps of several sizes, some of them small, need long grids; there a little more is added.
        """
        down = [(max(float(s), -self._reach), float(p)) for s, p in self.jumps if float(s) < 0]
        most = (1 if len(self._upward) == 1 else 8) / FINENESS

        def fine(exponent: int, jumps: list[tuple[float, float]]) -> bool:
            parts = [(size * 2.0**-exponent % 1, chance) for size, chance in jumps]
            added = sum(chance * part * (1 - part) for part, chance in parts) * 4.0**exponent
            return added <= most * _square(jumps)

        return next(e for e in itertools.count(0, -1) if fine(e, self._upward) and fine(e, down))

    def exponent(self, count: int) -> int:
        """The grid for sums of ``count`` jumps: a power of two, fine against what varies upward."""
        return max(self._finest, math.floor(math.log2(_square(self._upward) * count / FINENESS) / 2))

    def single(self, exponent: int) -> GridLaw:
        """One jump: sizes are moved up by less than 2^-64 steps and split between their neighbours."""
        whole, unit = fmpz(1) << self.bits, 1 << _FRACTION
        places: dict[int, fmpz] = {}
        still = arb(1)
        for size, chance in self.jumps:
            clamped = arb(-self._reach) if size < -self._reach else size
            at = _ceiling((clamped * arb(2) ** (_FRACTION - exponent)).upper())
            below, part = at >> _FRACTION, at & (unit - 1)
            mass = _floor((chance * whole).lower())
            places[below] = places.get(below, fmpz(0)) + mass * (unit - part) // unit
            places[below + 1] = places.get(below + 1, fmpz(0)) + mass * part // unit
            still -= chance
        places[0] = places.get(0, fmpz(0)) + _floor((still * whole).lower())
        first, top = min(places), max(places)
        masses = fmpz_poly([places.get(place, fmpz(0)) for place in range(first, top + 1)])
        return GridLaw(exponent=exponent, first=first, masses=masses, top=top)

    def of(self, count: int) -> GridLaw:
        """The sum of ``count`` jumps, by doubling."""
        law, size = self.single(self.exponent(1)), 1
        for bit in bin(count)[3:]:
            law, size = self.added(law, law, 2 * size), 2 * size
            if bit == "1":
                size += 1
                law = self.added(law, self.single(law.exponent), size)
        return law

    def added(self, one: GridLaw, other: GridLaw, count: int) -> GridLaw:
        """The sum of two independent sums, which has ``count`` jumps, on the grid for these."""
        exponent = max(one.exponent, other.exponent)
        one, other = self._coarser(one, exponent), self._coarser(other, exponent)
        law = GridLaw(
            exponent=exponent,
            first=one.first + other.first,
            masses=one.masses * other.masses // (fmpz(1) << self.bits),
            top=one.top + other.top,
        )
        return self._coarser(self._trimmed(law, count), self.exponent(count))

    def _trimmed(self, law: GridLaw, count: int) -> GridLaw:
        """Without the mass at the upper end that may be lost.

        As much at the lower end is moved up, and whatever is below minus the reach.
        """
        allowed = (fmpz(1) << (self.bits - self.spare)) * count // (_SHARE * self.most)
        masses = law.masses
        length, gone = masses.length(), fmpz(0)
        while length > 1 and (gone := gone + masses[length - 1]) <= allowed:
            length -= 1
        start, moved, lowest = 0, fmpz(0), math.floor(-self._reach * 2.0**-law.exponent)
        while start < length - 1 and (law.first + start < lowest or moved + masses[start] <= allowed):
            moved += masses[start]
            start += 1
        kept = masses.truncate(length).right_shift(start) + moved
        return GridLaw(exponent=law.exponent, first=law.first + start, masses=kept, top=law.top)

    @staticmethod
    def _coarser(law: GridLaw, exponent: int) -> GridLaw:
        """On the grid of 2^exponent if that is coarser: odd points are split between their neighbours."""
        while law.exponent < exponent:
            shift = 1 - law.first % 2  # so that the product begins at an even point, below the first one
            spread = (law.masses * fmpz_poly([1, 2, 1])).left_shift(shift)
            law = GridLaw(
                exponent=law.exponent + 1,
                first=(law.first - 1 - shift) // 2,
                masses=fmpz_poly(spread.coeffs()[::2]) // 2,
                top=-(-law.top // 2),
            )
        return law


def _square(jumps: list[tuple[float, float]]) -> float:
    """The mean square."""
    return max(sum(chance * size**2 for size, chance in jumps), 1e-300)


def _ceiling(number: arb) -> int:
    """The least whole number that is not below an exact number."""
    whole = number.ceil().unique_fmpz()
    if whole is None:
        raise ArithmeticError(f"{number} is not exact")
    return int(whole)


def _floor(number: arb) -> fmpz:
    """The greatest whole number that is not above an exact number; zero if that is negative."""
    return fmpz(max(0, -_ceiling(-number)))
