"""TernGrad (Wen et al. 2017): the largest magnitude, and each coordinate as -1, 0 or 1. Not private."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from sqsgd import checks
from sqsgd.codec import Column
from sqsgd.core import Estimate, Scheme
from sqsgd.numerics.gaussian import kept_share
from sqsgd.schemes._bit_budget import checked_bits, codes_that_fit, rescaled_sample, too_few_bits
from sqsgd.schemes.qsgd import ScaledCodes

SCALE_BITS = 32
_NORMAL = NormalDist()
_QUANTILES = 512


@dataclass(frozen=True, kw_only=True)
class Ternary(ScaledCodes):
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

    levels = 1

    dim: int
    clip: float | None = None

    @property
    def identity(self) -> str:
        return f"ternary {self.dim}" + (f" clip {self.clip!r}" if self.clip else "")

    def scale(self, x: Estimate) -> float:
        """m, or the clipping limit if that is smaller."""
        scale = checks.finite_size("x", float(np.max(np.abs(x))))
        if self.clip is None:
            return scale
        return min(scale, float(np.float32(self.clip * float(np.linalg.norm(x)) / math.sqrt(self.dim))))

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
