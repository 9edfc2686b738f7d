"""Norms, averages over rotated vectors, spherical caps, unbiased rounding."""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from flint import arb, ctx

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import Source

Vectors = npt.NDArray[np.float32]
Norms = npt.NDArray[np.float64]


def l2_norm(x: Vector) -> float:
    """The Euclidean norm, in float64: no square underflows or overflows, and all vectors take as long."""
    from sqsgd._internal.kernels.rotation import square_sum

    return math.sqrt(square_sum(checks.shaped("x", x, x.size)))


def row_norms(x: Vectors) -> Norms:
    """``l2_norm`` of each row, to the last bit; a contiguous float32 matrix."""
    from sqsgd._internal.kernels.rotation import square_sums

    sums = np.empty(len(x))
    square_sums(x, sums)
    return np.sqrt(sums)


def clipped(x: Vector, radius: float | None) -> Vector:
    """x, scaled down to l2 norm ``radius`` (C_t) if x is longer; x itself without a radius."""
    if radius is None:
        return x
    norm = l2_norm(x)
    with np.errstate(invalid="ignore"):  # NaN and infinity become NaN, which the next check rejects
        return x * np.float32(1.0 if norm <= radius else radius / norm)


_POINTS = 4096
_FIRST = 2048  # this many of the largest coordinates are summed one by one, the rest by their density
_NORMAL = NormalDist()


@lru_cache(maxsize=1)
def normal_points() -> npt.NDArray[np.float64]:
    """Root mean squares of the standard normal over intervals of equal probability."""
    edges = [_NORMAL.inv_cdf(0.5 + i / _POINTS) for i in range(_POINTS // 2)]
    below = np.array([edge * _NORMAL.pdf(edge) for edge in edges] + [0.0])  # ∫ y² φ = Φ - y φ
    half = np.sqrt(1 + _POINTS * (below[:-1] - below[1:]))
    points = np.concatenate([-half[::-1], half])
    points.flags.writeable = False
    return points


NORMAL_FROM = 64
"""A coordinate of a uniform vector of as many counts as normal: moments differ by less than 0.4 %."""


@lru_cache(maxsize=64)
def coordinate_points(dim: int) -> npt.NDArray[np.float64]:
    """Equally likely values of a coordinate of a uniform vector of length √dim: normal ones from 64 on."""
    if dim >= NORMAL_FROM:
        return normal_points()
    if dim == 1:
        return np.array([-1.0, 1.0])
    angle = math.pi / 2 * (np.arange(8 * _POINTS) + 0.5) / (8 * _POINTS)
    below = np.cumsum(np.cos(angle) ** (dim - 2))
    half = np.interp((np.arange(_POINTS // 2) + 0.5) * 2 / _POINTS, below / below[-1], np.sin(angle))
    return np.concatenate([-half, half]) / math.sqrt(float(np.mean(half**2)))


def kept_share(reach: float, dim: int = NORMAL_FROM) -> float:
    """E[y clamp(y)] for a coordinate of mean square one clamped to ± reach; P(|y| < reach) if normal."""
    if dim >= NORMAL_FROM:
        return math.erf(reach / math.sqrt(2))
    y = coordinate_points(dim)
    return 1.0 if reach >= math.sqrt(dim) else float(np.mean(y * np.clip(y, -reach, reach)))


def clamped_square(reach: float, dim: int = NORMAL_FROM) -> float:
    """E[clamp(y)²] for the same y."""
    if dim < NORMAL_FROM:
        return float(np.mean(np.clip(coordinate_points(dim), -reach, reach) ** 2))
    density = math.exp(-(reach**2) / 2) * math.sqrt(2 / math.pi)
    return kept_share(reach) - reach * density + reach**2 * math.erfc(reach / math.sqrt(2))


@lru_cache(maxsize=64)
def _tops(dim: int) -> npt.NDArray[np.float64]:
    """Expected sums of the largest 1, 2, ... magnitudes of ``dim`` standard normal numbers."""
    first = min(dim, _FIRST)
    chances = [(i + 0.625) / (dim + 0.25) for i in range(first)]  # Blom's plotting positions
    return np.cumsum([-_NORMAL.inv_cdf(chance / 2) for chance in chances])


def largest_sum(dim: int, count: int) -> float:
    """E of the sum of the ``count`` largest magnitudes of a uniform unit vector.

    Computed for normal numbers and divided by their mean length, which is independent of the direction.
    Beyond the first ones, magnitudes above t sum to dim · 2 φ(t).
    """
    tops = _tops(dim)
    total = float(tops[min(count, tops.size) - 1])
    if count > tops.size:
        total += 2 * dim * (_density(count / dim) - _density(tops.size / dim))
    length = math.sqrt(2) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2))
    return total / length


@lru_cache(maxsize=256)
def largest_squares(dim: int, count: int) -> tuple[float, float]:
    """E of the square of that sum, and of the sum of squares: averages over vectors drawn once for all."""
    y = np.random.default_rng(dim).standard_normal((4096, dim))
    largest = np.sort(np.abs(y) / np.linalg.norm(y, axis=1, keepdims=True))[:, dim - count :]
    sums = largest.sum(axis=1)
    unit = (largest_sum(dim, count) / sums.mean()) ** 2
    return unit * float(np.mean(sums**2)), unit * float(np.mean(np.sum(largest**2, axis=1)))


def _density(share: float) -> float:
    """φ at the point that this share of magnitudes exceeds."""
    return _NORMAL.pdf(-_NORMAL.inv_cdf(share / 2))


_MOST_TERMS = 1 << 13


def edge(log_width: float) -> arb:
    """g from ln(1 - g²), a form that is precise both for half spheres and for tiny caps."""
    return (-arb(log_width).expm1()).sqrt()


def chance(dim: int, log_width: float) -> tuple[arb, arb, arb]:
    """F = P(t >= g), h = E[t; t >= g] and E[(t - g)+] for a uniform point of the sphere, from ln(1 - g²).

    t is one coordinate of the point. Its density is proportional to (1 - t²)^((d-3)/2). With s = 1 - g² and a
    = (d-1)/2, h = s^a / (2 a B(a, 1/2)). Near the middle F = (1 - I_{g²}(1/2, a)) / 2. Far out, where Arb's
    incomplete beta function is slow and loses precision, F = h K / g with Gauss's continued fraction for K =
    2F1(1, 1/2; a+1; -s/g²): its terms are positive, so the truncation error can be enclosed.
    """
    log_rest, a = arb(log_width), arb(dim - 1) / 2
    g, square = edge(log_width), -log_rest.expm1()
    log_beta = a.lgamma() + arb.pi().log() / 2 - (a + arb(1) / 2).lgamma()
    moment = (a * log_rest - log_beta).exp() / (dim - 1)
    if square > 0.5 or square * dim > 30:
        rest = _fraction(dim, log_rest.exp() / square)
        return moment / (g * (1 + rest)), moment, moment * rest / (1 + rest)
    tail = (1 - square.beta_lower(arb(1) / 2, a, regularized=1)) / 2
    return tail, moment, moment - g * tail


def _fraction(dim: int, x: arb) -> arb:
    """k1 x / (1 + k2 x / (1 + ...)), k_i = i (d-2+i) / ((d-3+2i) (d-1+2i)), which equals 1/K - 1."""

    def term(i: int) -> arb:
        return x * (i * (dim - 2 + i)) / ((dim - 3 + 2 * i) * (dim - 1 + 2 * i))

    terms = 16
    while True:
        # Not [0, x]: a ball's radius has 30 bits, so for x above 2^30 the ball would reach below -1.
        value = arb(0).union(term(terms + 1))
        for i in range(terms, 0, -1):
            value = term(i) / (1 + value)
        if value.rel_accuracy_bits() > ctx.prec - 24 or terms >= _MOST_TERMS:
            return value
        terms *= 2


Positions = npt.NDArray[np.float64]


def round_unbiased(position: Positions, rng: Source) -> npt.NDArray[np.int64]:
    """Round each number to a neighbouring integer, with the number itself as the mean (to 2^-53).

    Under the same uniform number, two positions at distance Δ end at most ceil(Δ) apart.
    """
    below = np.floor(position)
    return below.astype(np.int64) + (rng.uniforms(position.size) < position - below)


def rounding_chance(position: Positions, codes: npt.ArrayLike) -> Positions:
    """P(round_unbiased(position) = codes) for each coordinate."""
    return np.maximum(0.0, 1.0 - np.abs(position - np.asarray(codes, np.float64)))


def log_rounding_chance(position: Positions, codes: npt.ArrayLike) -> float:
    """ln P(round_unbiased(position) = codes) of all coordinates together; minus infinity if impossible."""
    with np.errstate(divide="ignore"):
        return float(np.sum(np.log(rounding_chance(position, codes))))
