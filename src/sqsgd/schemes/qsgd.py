"""QSGD (Alistarh et al. 2017): the norm, and each coordinate rounded to a fraction of it. Not private."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout
from sqsgd.core import Estimate, Mechanism, Scheme
from sqsgd.numerics.rounding import Positions, log_rounding_chance, round_unbiased
from sqsgd.randomness import Rng
from sqsgd.schemes._bit_budget import checked_bits, codes_that_fit, rescaled_sample, too_few_bits

NORM_BITS = 32
MOST_LEVELS = 1 << 15
_LEVELS = sorted({round(2 ** (step / 4)) for step in range(61)})  # candidates: the minimum is flat
_ANGLES = 4096


class ScaledCodes(Mechanism):
    """A scale as float32, and each coordinate as an unbiased code for one of 2 ``levels`` + 1 multiples."""

    levels: int

    @abstractmethod
    def scale(self, x: Estimate) -> float:
        """The magnitude of the end codes: a float32, to which larger coordinates are clamped."""

    @cached_property
    def layout(self) -> Layout:
        return Column(1, None), Column(self.dim, 2 * self.levels + 1)

    def _positions(self, x: Vector) -> tuple[float, Positions]:
        """The scale, and the codes before rounding."""
        exact = checks.shaped("x", x, self.dim).astype(np.float64)
        scale = self.scale(exact)
        if scale == 0:
            return 0.0, np.full(self.dim, float(self.levels))
        return scale, np.clip(exact / scale, -1.0, 1.0) * self.levels + self.levels

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        scale, position = self._positions(x)
        return np.array([scale], np.float32), round_unbiased(position, rng).astype(np.uint32)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return (columns[1].astype(np.float64) - self.levels) * (float(columns[0][0]) / self.levels)

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        scale, position = self._positions(x)
        if np.float32(scale) != columns[0][0]:
            return -math.inf
        return log_rounding_chance(position, columns[1])


@dataclass(frozen=True, kw_only=True)
class ShareOfNorm(ScaledCodes):
    """|v| as float32, and sgn(v_i) ξ_i for each coordinate: ξ_i is s |v_i| / |v| rounded without bias.

    The estimate is |v| sgn(v_i) ξ_i / s, with Var = Σ (|v| / s)² f_i (1 - f_i), f_i the fractional part of
    s |v_i| / |v|; at most min(n / s², √n / s) |v|² (QSGD, Lemma 3.1). ``levels`` is s.
    Codes are ξ_i sgn(v_i) + s in base 2 s + 1, of fixed size: the paper's Elias codes would make the
    length of a message depend on the vector.

    Guarantees
    ----------
    * Not private: the norm is sent in the clear, and a code reveals its coordinate to within |v| / s.
      tests/schemes/test_clear_schemes.py::test_what_leaks_of_a_vector.
    * Unbiased, with the variance above: tests/schemes/test_estimates.py::test_mean_is_recovered,
      tests/schemes/test_qsgd.py::test_the_variance_is_the_closed_form.
    """

    dim: int
    levels: int

    @property
    def identity(self) -> str:
        return f"share of norm {self.dim} {self.levels}"

    def scale(self, x: Estimate) -> float:
        """The norm, rounded up to float32 so that no share exceeds one."""
        length = float(np.linalg.norm(x))
        if not length < float(np.finfo(np.float32).max):
            raise ValueError("x contains NaN or infinity, or its norm is too large for a float32")
        norm = np.float32(length)
        return float(norm if float(norm) >= length else np.nextafter(norm, np.float32(np.inf)))

    def relative_error(self, share: float) -> float:
        """(n / s²) E[f (1 - f)] for a vector of uniform direction, exactly; the same at any length.

        A coordinate of such a vector is sin θ with a density proportional to (cos θ)^(n-2). At s = 1, vectors
        with few large coordinates have less error and flat ones the most: √n - 1 instead of √(2n/π) - 1.
        """
        if self.dim == 1:
            return 0.0
        widest = min(math.pi / 2, 12 / math.sqrt(self.dim))
        angle = widest * (np.arange(_ANGLES) + 0.5) / _ANGLES
        density = np.exp((self.dim - 2) * np.log(np.cos(angle)))
        part = (self.levels * np.sin(angle)) % 1.0
        return self.dim / self.levels**2 * float(np.average(part * (1 - part), weights=density))


def _best(dim: int, room: int, levels: int | None) -> ShareOfNorm:
    """The numbers of levels and coordinates with the least predicted error of the whole vector."""

    def affordable(count: int) -> int:
        return min(dim, codes_that_fit(room, 2 * count + 1))

    if levels is None:
        # The fixed candidates, and the most levels at which every coordinate still fits.
        whole = bisect_left(range(1, MOST_LEVELS + 1), True, key=lambda count: affordable(count) < dim)
        candidates = [count for count in (*_LEVELS, whole) if count >= 1]
    else:
        candidates = [levels]
    sizes = [(count, affordable(count)) for count in candidates]
    mechanisms = [ShareOfNorm(dim=size, levels=count) for count, size in sizes if size > 0]
    if not mechanisms:
        least = NORM_BITS + Column(1, 2 * candidates[0] + 1).bits
        raise too_few_bits(room + NORM_BITS, f"a norm and one code of levels = {candidates[0]}", least)
    return min(mechanisms, key=lambda mechanism: (1 + mechanism.relative_error(1.0)) / mechanism.dim)


def qsgd(
    dim: int, epsilon: float | None = None, bits: int | None = None, *, levels: int | None = None
) -> Scheme:
    """QSGD over all coordinates, or over a rescaled sample of them that fits into ``bits``.

    ``levels`` is s. By default it is the one of the least predicted error, or the authors' √n where ``bits``
    is None and all coordinates are sent. There is no rotation: it would not help a vector of uniform
    direction, and a sparse vector loses less to rounding without it. ``epsilon`` is ignored.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    if levels is not None:
        levels = checks.integer("levels", levels, 1, MOST_LEVELS)
    if (bits := checked_bits(bits)) is None:
        mechanism = ShareOfNorm(dim=dim, levels=levels or min(math.isqrt(dim - 1) + 1, MOST_LEVELS))
    else:
        mechanism = _best(dim, bits - NORM_BITS, levels)
    return Scheme(name="qsgd", dim=dim, transforms=rescaled_sample(dim, mechanism.dim), mechanism=mechanism)
