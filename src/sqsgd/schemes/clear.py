"""Schemes without privacy, the baselines: FedSGD, QSGD, TernGrad and Deep Gradient Compression."""

import math
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.geometry import Positions, log_rounding_chance, round_unbiased
from sqsgd.core import Estimate, Indices, Mechanism, Scheme, Traits
from sqsgd.core.codec import Column, Columns, Layout, MalformedReport
from sqsgd.core.random import Rng
from sqsgd.mechanisms.channels import largest
from sqsgd.schemes.budgets import codes_that_fit, optional_bits, rescaled_sample, too_few_bytes

SCALE_BITS = 32
MOST_LEVELS = 1 << 15
_LEVELS = sorted({round(2 ** (step / 4)) for step in range(61)})  # candidates: the minimum is flat
_ANGLES = 4096
_QUANTILES = 512
_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True)
class InClear(Mechanism):
    """Sends the vector unchanged."""

    dim: int

    @property
    def identity(self) -> str:
        return f"float32 {self.dim}"

    @cached_property
    def layout(self) -> Layout:
        return (Column(self.dim, None),)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        return (x,)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return columns[0].astype(np.float64)

    def relative_error(self, share: float) -> float:
        return 0.0

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        return 0.0 if np.array_equal(columns[0], x) else -math.inf


def fedsgd(dim: int, epsilon: float | None = None, bytes: int | None = None) -> Scheme:
    """Sends the gradient as float32 without privacy or compression. Both budgets are ignored."""
    return Scheme(name="fedsgd", dim=dim, transforms=(), mechanism=InClear(dim=dim))


class ScaledCodes(Mechanism):
    """A scale as float32, and each coordinate as an unbiased code for one of 2 ``levels`` + 1 multiples."""

    levels: int

    @abstractmethod
    def scale(self, x: Estimate) -> float:
        """Return the magnitude of the end codes: a float32, to which larger coordinates are clamped."""

    @cached_property
    def layout(self) -> Layout:
        return Column(1, None), Column(self.dim, 2 * self.levels + 1)

    def _positions(self, x: Vector) -> tuple[float, Positions]:
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
    """|v| as float32, and sgn(v_i) ξ_i for each coordinate: ξ_i is s |v_i| / |v| rounded without bias."""

    dim: int
    levels: int

    @property
    def identity(self) -> str:
        return f"share of norm {self.dim} {self.levels}"

    def scale(self, x: Estimate) -> float:
        """Return the norm, rounded up to float32 so that no share exceeds one."""
        length = float(np.linalg.norm(x))
        if not length < float(np.finfo(np.float32).max):
            raise ValueError("x contains NaN or infinity, or its norm is too large for a float32")
        norm = np.float32(length)
        return float(norm if float(norm) >= length else np.nextafter(norm, np.float32(np.inf)))

    def relative_error(self, share: float) -> float:
        """(n / s²) E[f (1 - f)] for a vector of uniform direction: density of sin θ ∝ (cos θ)^(n-2)."""
        if self.dim == 1:
            return 0.0
        widest = min(math.pi / 2, 12 / math.sqrt(self.dim))
        angle = widest * (np.arange(_ANGLES) + 0.5) / _ANGLES
        density = np.exp((self.dim - 2) * np.log(np.cos(angle)))
        part = (self.levels * np.sin(angle)) % 1.0
        return self.dim / self.levels**2 * float(np.average(part * (1 - part), weights=density))


def _best_levels(dim: int, room: int, levels: int | None) -> ShareOfNorm:

    def affordable(count: int) -> int:
        return min(dim, codes_that_fit(room, 2 * count + 1))

    candidates = [levels] if levels else _LEVELS
    if levels is None:  # also the most levels at which every coordinate still fits
        whole = bisect_left(range(1, MOST_LEVELS + 1), True, key=lambda count: affordable(count) < dim)
        candidates = [*_LEVELS, whole] if whole else _LEVELS
    sizes = [(count, affordable(count)) for count in candidates]
    mechanisms = [ShareOfNorm(dim=size, levels=count) for count, size in sizes if size > 0]
    if not mechanisms:
        least = SCALE_BITS + Column(1, 2 * candidates[0] + 1).bits
        raise too_few_bytes(room + SCALE_BITS, f"a norm and one code of levels = {candidates[0]}", least)
    return min(mechanisms, key=lambda mechanism: (1 + mechanism.relative_error(1.0)) / mechanism.dim)


def qsgd(
    dim: int, epsilon: float | None = None, bytes: int | None = None, *, levels: int | None = None
) -> Scheme:
    """Sends the norm and a randomly rounded fraction for each coordinate, without privacy.

    This is QSGD (Alistarh et al. 2017), applied to all coordinates or to a rescaled sample that fits into
    ``bytes``. The default number of ``levels`` minimises the predicted error, or is √n if the message size is
    not limited. The scheme is not private and ignores ``epsilon``.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    if levels is not None:
        levels = checks.integer("levels", levels, 1, MOST_LEVELS)
    if (bits := optional_bits(bytes)) is None:
        mechanism = ShareOfNorm(dim=dim, levels=levels or min(math.isqrt(dim - 1) + 1, MOST_LEVELS))
    else:
        mechanism = _best_levels(dim, bits - SCALE_BITS, levels)
    return Scheme(name="qsgd", dim=dim, transforms=rescaled_sample(dim, mechanism.dim), mechanism=mechanism)


@dataclass(frozen=True, kw_only=True)
class Ternary(ScaledCodes):
    """m = max |g_i| as float32, and sgn(g_i) b_i for each coordinate, b_i = 1 with probability |g_i| / m."""

    dim: int
    levels = 1

    @property
    def identity(self) -> str:
        return f"ternary {self.dim}"

    def scale(self, x: Estimate) -> float:
        return checks.finite_size("x", float(np.max(np.abs(x))))

    def relative_error(self, share: float) -> float:
        """E[m Σ|g_i|] / E|g|² - 1, by quantiles of m: one coordinate is m, the others are below."""
        level = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        tails = -np.expm1(np.log(level) / self.dim) / 2  # P(y > m) at each quantile of m
        energy = 0.0
        for tail in tails.tolist():
            scale = -_NORMAL.inv_cdf(tail)
            whole = 2 * (_NORMAL.pdf(0.0) - _NORMAL.pdf(scale))
            energy += scale * (scale + (self.dim - 1) * whole / (1 - 2 * tail)) / self.dim
        return max(energy / _QUANTILES - 1, 0.0)


def terngrad(dim: int, epsilon: float | None = None, bytes: int | None = None) -> Scheme:
    """Sends the largest magnitude and a value of -1, 0 or 1 for each coordinate, without privacy.

    This is TernGrad (Wen et al. 2017), applied to all coordinates or to the largest rescaled sample that fits
    into ``bytes``. Gradient clipping, which is used in the paper, is not implemented. The scheme is not
    private and ignores ``epsilon``.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    bits = optional_bits(bytes)
    size = dim if bits is None else min(dim, codes_that_fit(bits - SCALE_BITS, 3))
    if size == 0:
        raise too_few_bytes(bits, "a scale and one code", SCALE_BITS + Column(1, 3).bits)
    transforms = rescaled_sample(dim, size)
    return Scheme(name="terngrad", dim=dim, transforms=transforms, mechanism=Ternary(dim=size))


@dataclass(frozen=True, kw_only=True)
class Largest(Mechanism):
    """The ``count`` largest coordinates: rising indices, unless all are sent, and values as float32."""

    dim: int
    count: int

    traits = Traits(chooses=True)

    @property
    def identity(self) -> str:
        return f"largest {self.count} of {self.dim}"

    @cached_property
    def layout(self) -> Layout:
        values = Column(self.count, None)
        return (values,) if self.count == self.dim else (Column(self.count, self.dim), values)

    def _largest(self, x: Vector) -> Columns:
        x = checks.shaped("x", x, self.dim)
        magnitude = np.abs(x)
        checks.finite_size("x", float(np.max(magnitude)))
        if self.count == self.dim:
            return (x,)
        chosen = np.sort(largest(magnitude, self.count))
        return chosen.astype(np.uint32), x[chosen]

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        return self._largest(x)

    def coordinates(self, columns: Columns) -> Indices:
        """Return the sent coordinates; rejects a report whose indices do not rise strictly."""
        if self.count == self.dim:
            return np.arange(self.dim)
        chosen = columns[0].astype(np.int64)
        if np.any(chosen[1:] <= chosen[:-1]):
            raise MalformedReport("order", "the indices of the report do not rise")
        return chosen

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        whole = np.zeros(self.dim)
        whole[self.coordinates(columns)] = columns[-1]
        return whole

    def relative_error(self, share: float) -> float:
        """Return the unsent energy for Gaussian coordinates: 1 - 2 (t φ(t) + Φ(-t)), 2 Φ(-t) = k / n."""
        if self.count == self.dim:
            return 0.0
        tail = self.count / self.dim / 2
        least = -_NORMAL.inv_cdf(tail)
        return 1 - 2 * (least * _NORMAL.pdf(least) + tail)

    def unbiased_error(self, share: float) -> float:
        lost = self.relative_error(share)
        return lost / (1 - lost)

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        return 0.0 if all(map(np.array_equal, columns, self._largest(x))) else -math.inf


def _affordable(dim: int, bits: int) -> int:
    if 32 * dim <= bits:
        return dim
    most = min(dim - 1, bits // 32)
    count = bisect_right(range(1, most + 1), bits, key=lambda k: 32 * k + Column(k, dim).bits)
    if count == 0:
        least = 32 if dim == 1 else 32 + Column(1, dim).bits
        raise too_few_bytes(bits, "one coordinate and its index", least)
    return count


def dgc(
    dim: int,
    epsilon: float | None = None,
    bytes: int | None = None,
    *,
    count: int | None = None,
    momentum: float = 0.9,
) -> Scheme:
    """Sends the largest coordinates of the accumulated gradient, without privacy.

    This is deep gradient compression (Lin et al. 2018, Algorithm 4) with ``momentum`` correction and factor
    masking on the client. By default, ``count`` is as large as possible for the given ``bytes``, or 0.1 % as
    in the paper. Warm-up, local gradient clipping and layer-wise thresholds are not implemented. The scheme
    is not private and ignores ``epsilon``.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    momentum = checks.real("momentum", momentum, 0.0, 0.9999)
    affordable = dim if (bits := optional_bits(bytes)) is None else _affordable(dim, bits)
    if count is None:
        count = -(-dim // 1000) if bits is None else affordable
    count = checks.integer("count", count, 1, affordable)
    mechanism, rest = Largest(dim=dim, count=count), count < dim
    momentum = momentum if rest else 0.0
    return Scheme(
        name="dgc", dim=dim, transforms=(), mechanism=mechanism, keeps_state=rest, momentum=momentum
    )
