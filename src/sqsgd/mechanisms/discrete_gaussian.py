"""The discrete Gaussian: exact draws, and the mechanism that adds it to a sum of records."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from typing import Any, final

import numpy as np
import numpy.typing as npt
from flint import arb, ctx, fmpq

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd.core import Estimate, Mechanism, Privacy, Traits
from sqsgd.core.codec import Column, Columns, Layout
from sqsgd.core.random import Rng
from sqsgd.core.records import REACH, RecordSum, reach_of
from sqsgd.core.task import Task
from sqsgd.core.transforms import Rotate
from sqsgd.mechanisms.gaussian_account import MOST_RHO

_TABLE_BITS = 7  # the coarse part of a draw has a standard deviation of 64 to 128
_TERMS = 20  # of exp: γ^20 / 20! is below 10^-18 for γ below 1
_MARGIN = 2.0**-44  # far more than the rounding errors of these terms
MOST_SQUARE = 1 << 88
_HALF = 0.4995  # so that two vectors, each rounded, differ by less than L


@final
class DiscreteGaussian:
    """Draws whole numbers with probability proportional to exp(-x² / 2σ²), exactly; ``square`` is σ².

    |x| = 2^s a + b: a from a table of the law exp(-(2^s a)² / 2σ²), b uniform below 2^s, both kept with
    probability exp(-(2 2^s a b + b²) / 2σ²), and a random sign; -0 is drawn again.

    Guarantees
    ----------
    * The law is exact, without a cut tail: tests/mechanisms/test_discrete_gaussian.py compares it with exact
      probabilities and with the rejection sampler of Canonne, Kamath and Steinke (2020).

    >>> from sqsgd import secure_rng
    >>> DiscreteGaussian(10**12).draw(5, secure_rng()).size
    5
    """

    def __init__(self, square: int) -> None:
        self.square = checks.integer("square", square, 1, MOST_SQUARE)
        self.shift = max(0, (self.square.bit_length() + 1) // 2 - _TABLE_BITS)
        self._exponent = Fraction(1 << 2 * self.shift, 2 * self.square)  # of a², for the table
        self._sums: dict[int, tuple[list[arb], arb]] = {}
        with exact.precision(192):
            edges = [(a, self._cdf(a)) for a in range(self._count(72))]
            self._table = exact.InverseCdf(1 << 62, self._cdf, edges)

    def _count(self, bits: int) -> int:
        """Values of a beyond which less than about 2^-bits of the law lies."""
        return math.isqrt(int(Fraction(bits) / self._exponent)) + 2

    def _cdf(self, value: int) -> arb:
        """P(a <= value) at the working precision."""
        if ctx.prec not in self._sums:
            rate, sums = arb(fmpq(*self._exponent.as_integer_ratio())), [arb(1)]
            for a in range(1, self._count(ctx.prec + 8)):
                sums.append(sums[-1] + (-rate * a * a).exp())
            # the rest is at most a geometric series
            last = len(sums)
            rest = (-rate * last * last).exp() / (1 - (-rate * (2 * last + 1)).exp())
            self._sums[ctx.prec] = (sums, sums[-1] + rest.union(arb(0)))
        sums, whole = self._sums[ctx.prec]
        if value < len(sums):
            return sums[value] / whole
        rate = arb(fmpq(*self._exponent.as_integer_ratio()))
        beyond = (-rate * value * value).exp() / (1 - (-rate * (2 * value + 1)).exp())
        return 1 - beyond.union(arb(0)) / whole

    def draw(self, count: int, rng: Rng) -> npt.NDArray[np.int64]:
        """``count`` independent draws."""
        found = np.empty(0, np.int64)
        while found.size < count:
            found = np.append(found, self._tried(count - found.size + 16, rng))
        return found[:count]

    def _tried(self, count: int, rng: Rng) -> npt.NDArray[np.int64]:
        """``count`` candidates, without the rejected ones."""
        coarse, words, chances = self._table.draw_many(count, rng), rng.words(count), rng.words(count)
        fine = (words >> np.uint64(1) >> np.uint64(63 - self.shift)).astype(np.int64)  # the leading bits
        negative = (words & np.uint64(1)).astype(bool)
        size = (coarse << self.shift) + fine
        kept = self._kept(coarse, fine, chances, rng) & ~(negative & (size == 0))
        found: npt.NDArray[np.int64] = np.where(negative, -size, size)[kept]
        return found

    def _kept(
        self, coarse: npt.NDArray[np.int64], fine: npt.NDArray[np.int64], words: Any, rng: Rng
    ) -> npt.NDArray[np.bool_]:
        """True with probability e^-γ, γ = (2 2^s a b + b²) / 2σ²; few words do not decide it in floats."""
        share = fine / 2.0**self.shift
        gamma = (2.0 * coarse * share + share * share) * float(self._exponent)
        power = np.ones_like(gamma)
        for term in range(_TERMS, 0, -1):
            power = 1 - gamma / term * power
        point = words.astype(np.float64) * 2.0**-64
        known = (gamma < 1) & (np.abs(point - power) > _MARGIN)
        kept = point < power
        for place in np.flatnonzero(~known).tolist():
            a, b = int(coarse[place]), int(fine[place])
            exponent = fmpq(2 * (a << self.shift) * b + b * b, 2 * self.square)
            law = exact.InverseCdf(1, partial(_stops, exponent), [])
            kept[place] = law.continue_from(int(words[place]), rng) == 0
        return np.asarray(kept, np.bool_)


def _stops(exponent: fmpq, value: int) -> arb:
    """P(X <= value) where X is 0 with probability e^-exponent, else 1."""
    return arb(1) if value else (-arb(exponent)).exp()


@lru_cache(maxsize=8)
def discrete_gaussian(square: int) -> DiscreteGaussian:
    """Return the law with σ² = ``square``. Its table takes some milliseconds."""
    return DiscreteGaussian(square)


@final
@dataclass(frozen=True, kw_only=True)
class RecordNoise(Mechanism):
    """Discrete Gaussian noise on a sum of records, then a rotation and a grid, which cost nothing.

    The private step is in whole numbers: ``RecordSum`` limits each record, and each coordinate of the sum
    gets a discrete Gaussian with σ² = ``square``. The rest works on numbers that are private already: a fixed
    rotation, then unbiased rounding to ``levels`` levels over ± the largest rotated coordinate. Nothing is
    clamped and nothing wraps around. Estimates are of the sum over ``records``, a public number.

    A plain vector counts as all data of a client: it is clipped to half the bound, so that any two differ by
    at most what one record may add.

    Guarantees
    ----------
    * ρ-zCDP for each record that a report uses, ρ = L² / 2σ², for adding or removing it:
      tests/mechanisms/test_discrete_gaussian.py, docs/proofs/discrete-gaussian.md.
    * ``reports`` of them are (``epsilon``, ``delta``)-private together, where a record is in each with chance
      ``rate``, or in one of ``turns``: tests/mechanisms/test_gaussian_account.py.
    """

    dim: int
    square: int
    levels: int
    records: float
    epsilon: float
    delta: float
    reports: int
    rate: float
    turns: int
    longest, keeps_length = _HALF, True

    @property
    def identity(self) -> str:
        return f"discrete-gaussian {self.dim} {self.square} {self.levels} {self.records!r}"

    @cached_property
    def layout(self) -> Layout:
        return (Column(self._padded, self.levels), Column(1, None))

    @property
    def rho(self) -> Fraction:
        """ρ of one report for each record in it, exactly."""
        return Fraction(REACH**2, 2 * self.square)

    @cached_property
    def privacy(self) -> Privacy:
        same = ("epsilon", "delta", "rho", "rate", "turns", "reports")
        return Privacy(notion="record", **{name: getattr(self, name) for name in same})

    def randomize(self, x: Vector | RecordSum, bound: float, rng: Rng) -> Columns:
        if not isinstance(x, RecordSum):
            vector, x = checks.vector("x", x, self.dim), RecordSum(self.dim, bound)
            norm = float(np.linalg.norm(vector.astype(np.float64)))
            x.add((vector * min(1.0, _HALF * bound / norm) if norm > 0 else vector)[None])
        if x.dim != self.dim or x.clip_norm != bound:
            given = f"a sum of {x.dim:,} coordinates clipped to {x.clip_norm:g}"
            raise ValueError(f"x is {given}; this report is of {self.dim:,} clipped to {bound:g}")
        noisy = x.total + discrete_gaussian(self.square).draw(self.dim, rng)
        rotated = _rotation.forward((noisy / REACH).astype(np.float32), self._task).astype(np.float64)
        size = np.nextafter(np.float32(np.abs(rotated).max()), np.float32(np.inf))
        place = (rotated / float(size) + 1) * ((self.levels - 1) / 2)
        codes = np.floor(place + rng.uniforms(place.size))
        return np.clip(codes, 0, self.levels - 1).astype(np.uint32), np.array([size], np.float32)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        """Of the sum over ``records``: unbiased up to the clipping of single records."""
        codes, size = columns[0].astype(np.float64), float(columns[1][0])
        unit = bound * REACH / (reach_of(self.dim) * self.records)
        rotated = (codes * (2 / (self.levels - 1)) - 1) * (size * unit)
        return _rotation.inverse(rotated, self._task, self.dim)

    @cached_property
    def traits(self) -> Traits:
        return Traits(records=self.records)

    def relative_error(self, share: float) -> float:
        """Of a sum whose norm is ``share`` times the bound: the noise, and the grid for noise and sum."""
        grid = grid_error(self._padded, self.levels)
        return self.dim * self.deviation**2 * grid / share**2 + grid - 1

    @property
    def deviation(self) -> float:
        """σ / L: the noise of each coordinate of the sum, over the bound of a record."""
        return math.sqrt(self.square) / REACH

    @cached_property
    def _padded(self) -> int:
        return _rotation.out_dim(self.dim)

    @property
    def _task(self) -> Task:
        """The rotation is the same in every round: it is after the noise, and need not be fresh."""
        return Task(round=0, client=0, seed=0, dim=self.dim, bound=1.0)


_rotation = Rotate(rounds=2, shared=True)


def square_for(rho: Fraction) -> int:
    """Return the least σ² with L² / 2σ² <= ρ."""
    if rho > MOST_RHO:
        raise ValueError(f"rho = {float(rho):g} must be at most {MOST_RHO}")
    square = -(-(REACH**2) * rho.denominator // (2 * rho.numerator))
    if square > MOST_SQUARE:
        raise ValueError(
            f"rho = {float(rho):g} of a report is too small: ask for fewer reports, or more epsilon"
        )
    return square


def grid_error(size: int, levels: int) -> float:
    """The factor of the noise of ``size`` Gaussian coordinates on a grid of levels over ± the largest."""
    step = 2 * math.sqrt(2 * math.log(max(size, 2))) / (levels - 1)
    return 1 + step**2 / 6
