"""TernGrad (Wen et al. 2017): the largest magnitude, and each coordinate as -1, 0 or 1. Not private."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout
from sqsgd.core import NOT_PRIVATE, Estimate, Mechanism, Privacy, Scheme
from sqsgd.numerics.gaussian import kept_share
from sqsgd.numerics.rounding import Positions, log_rounding_chance, round_unbiased
from sqsgd.randomness import Rng
from sqsgd.schemes._bit_budget import checked_bits, codes_that_fit, rescaled_sample, too_few_bits

SCALE_BITS = 32
_NORMAL = NormalDist()
_QUANTILES = 512


@dataclass(frozen=True, kw_only=True)
class Ternary(Mechanism):
    """m = max |g_i| as float32, and sgn(g_i) b_i for each coordinate, b_i = 1 with probability |g_i| / m.

    The estimate is m sgn(g_i) b_i, with Var = Σ |g_i| (m - |g_i|). With ``clip`` c, coordinates beyond c
    times the root mean square are clamped to it first (the paper's gradient clipping, c = 2.5), which
    lowers m and so the variance, and biases.

    One scale serves the whole vector. The paper's layer-wise scales need the layers, which a scheme does
    not see.

    Guarantees
    ----------
    * Not private: the largest magnitude is sent in the clear, and a non-zero code reveals a sign.
      tests/schemes/test_clear_schemes.py::test_what_leaks_of_a_vector.
    * Without ``clip`` unbiased, with the variance above; with it, the mean is that of the clamped vector.
      tests/schemes/test_estimates.py::test_mean_is_recovered,
      tests/schemes/test_terngrad.py::test_the_variance_is_the_closed_form.
    """

    dim: int
    clip: float | None = None

    @property
    def identity(self) -> str:
        return f"ternary {self.dim}" + (f" clip {self.clip!r}" if self.clip else "")

    @cached_property
    def layout(self) -> Layout:
        return Column(1, None), Column(self.dim, 3)

    @property
    def privacy(self) -> Privacy:
        return NOT_PRIVATE

    def _positions(self, x: Vector) -> tuple[float, Positions]:
        """The scale, which is a float32, and the codes 0..2 before rounding."""
        exact = checks.shaped("x", x, self.dim).astype(np.float64)
        scale = checks.finite_size("x", float(np.max(np.abs(exact))))
        if self.clip is not None:
            limit = self.clip * float(np.linalg.norm(exact)) / math.sqrt(self.dim)
            scale = min(scale, float(np.float32(limit)))
        if scale == 0:
            return 0.0, np.ones(self.dim)
        return scale, np.clip(exact / scale, -1.0, 1.0) + 1.0

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        scale, position = self._positions(x)
        return np.array([scale], np.float32), round_unbiased(position, rng).astype(np.uint32)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return (columns[1].astype(np.float64) - 1.0) * float(columns[0][0])

    def relative_error(self, share: float) -> float:
        """E[m Σ|g_i|] / E|g|² - 1 for Gaussian coordinates; the same at any length.

        By quantiles of m: given m = t, one coordinate is t and the others are independent below t. Exact
        without ``clip``; with it, the root mean square is treated as known, which is nearly true from about
        100 coordinates on, and the bias is added.
        """
        clip = self.clip or math.inf
        level = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        tails = -np.expm1(np.log(level) / self.dim) / 2  # P(y > m) at each quantile of m
        energy = 0.0
        for tail in tails:
            largest = -_NORMAL.inv_cdf(float(tail))
            scale = min(largest, clip)
            whole = 2 * (_NORMAL.pdf(0.0) - _NORMAL.pdf(scale))
            if scale < largest:
                whole += 2 * scale * (_NORMAL.cdf(-scale) - float(tail))
            energy += scale * (scale + (self.dim - 1) * whole / (1 - 2 * float(tail))) / self.dim
        error = max(energy / _QUANTILES - 1, 0.0)
        return error if self.clip is None else error + 2 * (1 - kept_share(clip))

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        scale, position = self._positions(x)
        if np.float32(scale) != columns[0][0]:
            return -math.inf
        return log_rounding_chance(position, columns[1])


def terngrad(
    dim: int, epsilon: float | None = None, bits: int | None = None, *, clip: float | None = None
) -> Scheme:
    """TernGrad over all coordinates, or over as large a rescaled sample of them as fits into ``bits``.

    The largest sample has the least predicted error: the error per coordinate rises only with √(ln n).
    ``clip`` is in root mean squares (the paper's is 2.5; None: no clipping). ``epsilon`` is ignored.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    if clip is not None:
        clip = checks.real("clip", clip, 0.1, 1e6)
    bits = checked_bits(bits)
    size = dim if bits is None else min(dim, codes_that_fit(bits - SCALE_BITS, 3))
    if size == 0:
        raise too_few_bits(bits, "a scale and one code", SCALE_BITS + Column(1, 3).bits)
    return Scheme(
        name="terngrad",
        dim=dim,
        transforms=rescaled_sample(dim, size),
        mechanism=Ternary(dim=size, clip=clip),
    )
