"""The (ε, δ) of several passes, each in a secret order that is independent of the others.

Whatever the earlier passes published, the two laws of what a pass publishes have a divergence of at most the
bound δ₁(ε) of ``sqsgd.privacy.blanket``. Upper bounds at some ε, the *dots*, are joined by lines in e^ε. The
lower convex hull is the divergence of a pair of laws, which dominates the pass. The privacy losses of the
pairs of all passes add up. docs/proofs/several-reports.md proves this, and that no result is too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from flint import arb, fmpz, fmpz_poly

from sqsgd._internal import exact
from sqsgd.privacy.blanket import repeated, rounded_up, trimmed

_FINE = 2.0**-9  # of the variance of the privacy loss, what the grid may add
_DENSE = 24  # dots below so many steps of the grid are not skipped
_SPARE_BITS = 12  # about 2^-12 of δ is given away for speed
_ROOM = 1 + 2.0**-10  # a dot is so much above the bound that other computations can confirm it

Dots = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """``reports`` passes alike: ``spent`` bounds δ₁ of one of them, ``local`` is its ε₀."""

    spent: Callable[[float], float]
    local: float
    reports: int

    def deviation(self) -> float:
        """About the standard deviation of the privacy loss: as if it were Gaussian, from δ₁(0)."""
        low, high, spent = 0.0, self.local, self.spent(0.0)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if math.erf(middle / math.sqrt(8)) < spent else (low, middle)
        return max(high, 1e-300)

    def dots(self, step: float, stride: int, enough: float) -> Dots:
        """(i, upper bound of δ₁(i step)) for rising i, up to ε₀ or to where the bound is small ``enough``."""
        end, found, place, least = math.ceil(self.local / step), [], 0, 1.0
        while place < end:
            least = min(least, self.spent(place * step) * _ROOM + enough / 16)
            found.append((place, least))
            if least <= enough:
                return tuple(found)
            place += max(stride, place // _DENSE)
        return (*found, (end, 0.0))


@dataclass(frozen=True, kw_only=True)
class Losses:
    """A law of privacy losses: ``masses`` in 2^-bits at first, first + 1, ... steps. The rest is infinite."""

    first: int
    masses: fmpz_poly

    def added(self, other: Losses, bits: int, allowed: int) -> Losses:
        """The sum of two independent losses. At both ends a mass of at most ``allowed`` is moved up."""
        start, masses = trimmed(self.masses * other.masses // (fmpz(1) << bits), allowed)
        return Losses(first=self.first + other.first + start, masses=masses)

    def epsilon(self, step: float, bits: int, delta: float) -> arb | None:
        """Return the least ε >= 0 with E(1 - e^(ε - loss))₊ <= δ, enclosed, or None if there is none.

        Above the points from i on, the mean is S - e^(ε - i step) T; i falls until δ is reached.
        """
        whole, shrink = fmpz(1) << bits, (-arb(step)).exp()
        limit = arb(delta) * arb(whole)
        above, weight = arb(whole - self.masses(1)), arb(0)
        if not above <= limit:
            return None
        for place in range(self.masses.length() - 1, -1, -1):
            mass = self.masses[place]
            above, weight = above + mass, weight * shrink + mass
            if place + self.first <= 0:
                break
            if not above - weight * shrink <= limit:
                return (self.first + place) * arb(step) + ((above - limit) / weight).log()
        return arb(0)


def losses(dots: Dots, step: float, bits: int) -> Losses:
    """Return the losses ln(dA/dB) under A, for the pair (A, B) whose divergence is the hull of the dots.

    Dots at -i follow from those at i, as x and x′ may be exchanged.
    """
    points = [(arb(0), arb(1), 0)]
    for place, spent in reversed(dots[1:]):
        growth = (-place * arb(step)).exp()
        points.append((growth, 1 - growth + growth * arb(spent), -place))
    points += [((place * arb(step)).exp(), arb(spent), place) for place, spent in dots]
    hull: list[tuple[arb, arb, int]] = []
    for point in points:
        while len(hull) > 1 and not _slope(hull[-2], hull[-1]) < _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    slopes = [*(_slope(one, other) for one, other in pairwise(hull)), arb(0)]
    first, last = hull[1][2], hull[-1][2]
    masses = [fmpz(0)] * (last - first + 1)
    for (growth, _, place), (before, after) in zip(hull[1:], pairwise(slopes), strict=True):
        mass = (growth * (after - before) * arb(fmpz(1) << bits)).lower().floor().unique_fmpz()
        masses[place - first] = max(fmpz(0), mass)
    return Losses(first=first, masses=fmpz_poly(masses))


def _slope(one: tuple[arb, arb, int], other: tuple[arb, arb, int]) -> arb:
    return (other[1] - one[1]) / (other[0] - one[0])


@dataclass(frozen=True, kw_only=True)
class Table:
    """Dots of each pass on one grid, with the number of its reports: the basis of the composed ε."""

    step: float
    passes: tuple[tuple[Dots, int], ...]

    def epsilon(self, delta: float) -> float | None:
        """Return an upper bound of the ε of all passes together, or None if none is certified.

        Guarantees
        ----------
        * No attacker who sees all passes and chooses their tasks exceeds it:
          tests/privacy/test_passes.py::test_no_adaptive_passes_exceed_the_bound.
        * It agrees with the composition of dp-accounting:
          tests/privacy/test_passes.py::test_the_checks_find_nothing_wrong.
        """
        reports = sum(count for _, count in self.passes)
        bits = math.ceil(-math.log2(delta)) + 2 * reports.bit_length() + 2 * _SPARE_BITS + 24

        def added(one: Losses, other: Losses, count: int) -> Losses:
            allowed = Fraction(delta) * count / reports * (1 << (bits - _SPARE_BITS - 2))
            return one.added(other, bits, int(allowed))

        with exact.precision(2 * bits + 128):
            together: Losses | None = None
            size = 0
            for dots, count in self.passes:
                law = repeated(losses(dots, self.step, bits), count, added)
                size += count
                together = law if together is None else added(together, law, size)
            if together is None:
                return 0.0
            found = together.epsilon(self.step, bits, delta)
            return None if found is None else rounded_up(found)


def negligible(delta: float, reports: int) -> float:
    """Where the profile of one report ends, if nothing else ends it."""
    return delta * 2.0**-_SPARE_BITS / reports


def randomized_response(local: float, epsilon: float) -> float:
    """Return the largest δ(ε) of a mechanism with a local ε, rounded up: a randomized bit has it."""
    with exact.precision(exact.START_BITS):
        odds = arb(local).exp()
        return rounded_up(((odds - arb(epsilon).exp()) / (odds + 1)).max(arb(0)))


def table(passes: Sequence[Profile], delta: float) -> Table:
    """Dots that are close enough for an ε that is about one part in a thousand too large.

    The step is a power of two, so that the places of dots are exact; that it is small enough is a matter of
    closeness only.
    """
    deviations = [each.deviation() for each in passes]
    reports = sum(each.reports for each in passes)
    variance = sum(each.reports * d * d for each, d in zip(passes, deviations, strict=True))
    step = 2.0 ** math.floor(math.log2(max(deviations)))

    def added(step: float) -> float:
        return sum(
            each.reports * min(step * step / 6, 0.8 * d * step)
            for each, d in zip(passes, deviations, strict=True)
        )

    while added(step) > _FINE * variance:
        step /= 2
    strides = [max(1, math.floor(d * math.sqrt(6 * _FINE) / step)) for d in deviations]
    return Table(
        step=step,
        passes=tuple(
            (each.dots(step, stride, negligible(delta, reports)), each.reports)
            for each, stride in zip(passes, strides, strict=True)
        ),
    )
