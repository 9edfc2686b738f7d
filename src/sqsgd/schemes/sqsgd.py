"""sqSGD and its stateless variant: the direction of a rotated block, in the code with the least error.

Signs and levels: PrivQuant privatises the direction with ε1, ScalarDP the norm with ε2 = ε - ε1. Sparse codes
spend all of ε on the direction, unless a norm is asked for.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.geometry import kept_share, l2_norm, largest_sum
from sqsgd.core import Estimate, Mechanism, Scheme
from sqsgd.core.codec import Columns, SignedSubset
from sqsgd.core.transforms import Rotate, Subsample, padded, rotated_sample
from sqsgd.mechanisms.privquant import PrivQuant, Quantized
from sqsgd.mechanisms.scalardp import ScalarDP, split
from sqsgd.mechanisms.sparse import MOST_COUNT, MOST_SIZE, SparseLaw, SparseMatches
from sqsgd.schemes.budgets import affordable, bits_of, codes_that_fit, too_few_bytes

Code = Literal["signs", "levels", "sparse"]
CODED = ("sqsgd", "sqsgd-stateless")
"""The schemes that take ``code``."""
SIGNS = 2.0**-12  # a range so short that a code is the coordinate's sign
LEVELS = (2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128)
REACHES = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
FEWEST = 64  # fewer coordinates are not quite Gaussian after their rotation, which biases the estimate
_WORSE = 1.25  # the search stops when the error exceeds the least one by this factor
_BETTER = 0.999  # a candidate must improve by this factor, so that rounding errors never decide
_DIGITS = 7  # of logarithms of errors: machines whose logarithms differ in the last bit choose the same
_FAR, _NEAR = 40.0, 10.0  # -ln and ln of the odds e^ε P beyond which no threshold is the best
_GRADIENT_NOISE = 8.0  # energy of a gradient's noise over that of its mean, late in training
_PATIENCE = 512  # rounds between visits to a coordinate that double the error
_MEASURED = 2**17  # coordinates of the model that both were measured with


@dataclass(frozen=True, kw_only=True)
class Direction(Quantized):
    """Direction by PrivQuant, norm by ScalarDP; for vectors that a rotation has spread evenly.

    Codes cover ± ``reach`` times the root mean square coordinate. Clamping shrinks the mean of a Gaussian
    coordinate by erf(reach / √2), which the estimate divides out; as reach → 0 the codes are signs and the
    correction tends to √(π/2).

    Norms above ``bound`` are clamped to it. Otherwise unbiased up to the rotation's departure from Gaussian
    coordinates: after two rounds within 3 % from 64 coordinates on, even for vectors with a single entry
    (tests/schemes/test_sqsgd.py::test_sparse_vectors_keep_their_length); up to three are 25 % too long.
    """

    quantizer: PrivQuant
    norm: ScalarDP  # for norm / bound, so its maximum is 1
    reach: float = SIGNS

    @property
    def identity(self) -> str:
        return f"direction {self.reach!r} ({self.quantizer.identity}) ({self.norm.identity})"

    @property
    def symbol(self) -> ScalarDP:
        return self.norm

    @property
    def own_reach(self) -> float:
        return self.reach

    def prepared(self, x: Vector, bound: float) -> tuple[Vector, float, float]:
        """A norm below a millionth of the bound counts as zero."""
        x = checks.shaped("x", x, self.dim)
        norm = checks.finite_size("x", l2_norm(x))
        tiny = norm < 1e-6 * bound
        ways = (x, self.reach * norm / math.sqrt(self.dim), norm / bound), (np.zeros_like(x), 1.0, 0.0)
        return ways[tiny]  # both are computed: the time does not tell which

    def _unit(self, columns: Columns, bound: float) -> float:
        """The estimate of a code at the end of the range."""
        norm = bound * self.norm.estimate(int(columns[1][0]))
        correction = self.reach / kept_share(self.reach)
        return norm * correction / (math.sqrt(self.dim) * self.quantizer.scale)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        total = np.zeros(self.dim, np.float32)
        self.add_estimate(columns, bound, 1.0, total)
        return total.astype(np.float64)

    def add_estimate(self, columns: Columns, bound: float, weight: float, total: Vector) -> None:
        self.quantizer.add_levels(columns[0], weight * self._unit(columns, bound), total)

    def relative_error(self, share: float) -> float:
        """(1 + Var(norm) / norm²) E|direction|² - 1, for Gaussian coordinates."""
        norm = 1 + self.norm.variance(share) / share**2
        return norm * self.quantizer.gaussian_energy(self.reach) / kept_share(self.reach) ** 2 - 1


# ---------------------------------------------------------------- the schemes


def sqsgd(
    dim: int,
    epsilon: float,
    bytes: int,
    *,
    code: Code | None = None,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """Send the rotated direction of a block of coordinates, and keep the rest as a residual.

    ``code``: ``"signs"``, ``"levels"`` or ``"sparse"`` match codes; by default whichever has the least
    predicted error.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    mechanism = best_code(
        dim, epsilon, bits_of(bytes), code, block=True,
        levels=levels, coordinates=coordinates, reach=reach, norm_epsilon=norm_epsilon,
    )  # fmt: skip
    rotate, size = Rotate(rounds=2), mechanism.dim
    return Scheme(
        name="sqsgd",
        dim=dim,
        transforms=(rotate,) if size >= dim else (Subsample(size=size), rotate),
        mechanism=mechanism,
        residual=size < dim,
    )


def sqsgd_stateless(
    dim: int,
    epsilon: float,
    bytes: int,
    *,
    code: Code | None = None,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """For clients without state: the rotated direction of the whole vector; nothing is kept for later.

    ``code`` as in ``sqsgd``. Sparse match codes choose their coordinates among all of them; signs and levels
    are those of a rescaled sample.
    """
    dim = checks.integer("dim", dim, 1, 2**31)
    mechanism = best_code(
        dim, epsilon, bits_of(bytes), code, block=False,
        levels=levels, coordinates=coordinates, reach=reach, norm_epsilon=norm_epsilon,
    )  # fmt: skip
    return Scheme(
        name="sqsgd-stateless",
        dim=dim,
        transforms=rotated_sample(dim, mechanism.dim),
        mechanism=mechanism,
    )


def code_of(mechanism: Mechanism) -> Code:
    """The code that a mechanism of ``sqsgd`` sends."""
    if isinstance(mechanism, SparseMatches):
        return "sparse"
    return "signs" if mechanism.layout[0].alphabet == 2 else "levels"


def best_code(
    dim: int,
    epsilon: float,
    bits: int,
    code: str | None = None,
    *,
    block: bool,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Direction | SparseMatches:
    """The mechanism of the code that is asked for, else the one with the least predicted error.

    A ``block`` of coordinates is a power of two; without it, any number of rotated coordinates is sent.
    Every code is found by searching what fits into the bits, so more bits never make the choice worse (the
    search is exact to 0.1 %): tests/schemes/test_sqsgd.py::test_more_bytes_never_hurt.
    """
    epsilon = checks.real("epsilon", epsilon, 0.01, 1e5)
    counts = _level_counts(code, levels, reach)
    tries: list[Callable[[], Direction | SparseMatches]] = []
    if counts:
        tries.append(
            lambda: best_direction(
                dim, epsilon, bits, block=block,
                levels=counts, coordinates=coordinates, reach=reach, norm_epsilon=norm_epsilon,
            )
        )  # fmt: skip
    if code == "sparse" or (code is None and levels is None and reach is None):
        tries.append(lambda: sparse_code(dim, epsilon, bits, coordinates, norm_epsilon, block=block))
    found, errors = [], []
    for attempt in tries:
        try:
            found.append(attempt())
        except ValueError as error:
            errors.append(error)
    if not found:
        raise errors[0]

    def cost(mechanism: Direction | SparseMatches) -> float:
        """The logarithm of the error on the whole vector."""
        whole, size = padded(dim), mechanism.dim
        factor = visits(whole, size) if block else whole / size
        return round(math.log((1 + mechanism.relative_error(1.0)) * factor), _DIGITS)

    return min(found, key=cost)


def _level_counts(code: str | None, levels: int | None, reach: float | None) -> tuple[int, ...]:
    """The numbers of levels to try, none for sparse codes; ValueError for options that do not go together."""
    if code not in (None, *get_args(Code)):
        raise ValueError(f"code = {code!r} must be one of {', '.join(get_args(Code))}")
    if code == "sparse":
        if not (levels is None and reach is None):
            raise ValueError("code = 'sparse' has neither levels nor reach: leave them out")
        return ()
    if levels is not None:
        levels = checks.integer("levels", levels, 2, 256)
        if code == "signs" and levels != 2:
            raise ValueError(f"code = 'signs' has two levels, not {levels}: leave levels out")
        if code == "levels" and levels == 2:
            raise ValueError("code = 'levels' needs levels of three or more; two are code = 'signs'")
        return (levels,)
    return (2,) if code == "signs" else LEVELS[1:] if code == "levels" else LEVELS


def visits(whole: int, size: int) -> float:
    """D / n for a block of n, times what its size costs in training: the factor of its error.

    A residual adds up D / n gradients: their mean grows with D / n but their noise with its root only, so
    smaller blocks carry less of that noise; larger ones are sent before they are out of date. The minimum
    at D / 64 agrees with trainings of LeNet-5 on Fashion-MNIST (docs/results.md). In smaller models the noise
    counts less, so that blocks stay above 2,048 and short vectors are sent whole.

    >>> [round(visits(131072, size)) for size in (512, 1024, 2048, 4096, 8192)]
    [392, 168, 80, 42, 24]
    """
    noise = _GRADIENT_NOISE * min(1.0, whole / _MEASURED) ** 2
    return whole / size * (1 + noise * size / whole + whole / size / _PATIENCE)


def _power_of_two(coordinates: int) -> None:
    if coordinates & (coordinates - 1):
        raise ValueError(f"coordinates = {coordinates} must be a power of two, for the rotation")


# ---------------------------------------------------------------- signs and levels


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Levels K, coordinates n and the reach of the levels; ``error`` is (D / n) E|ŷ|² / |y|², norm known.

    That is 1 + NMSE on the whole vector for clients that keep nothing. Clients with a residual use the same
    criterion, because a coordinate is visited every D / n rounds.
    """

    levels: int
    coordinates: int
    reach: float
    error: float


def best_direction(
    dim: int,
    epsilon: float,
    bits: int,
    *,
    block: bool,
    levels: tuple[int, ...] = LEVELS,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Direction:
    """The mechanism for a total budget; parameters that are not given are chosen by predicted error."""
    left, norm = split(epsilon, norm_epsilon)
    if reach is not None:
        reach = checks.real("reach", reach, 1e-6, 20.0)
    if coordinates is not None:
        coordinates = checks.integer("coordinates", coordinates, 1, affordable(bits, levels[0], dim))
        if block:
            _power_of_two(coordinates)
    choice = best_of(
        choices(dim, left, bits, levels=levels, reach=reach, coordinates=coordinates, block=block)
    )
    quantizer = PrivQuant(choice.coordinates, choice.levels, left)
    return Direction(quantizer=quantizer, norm=norm, reach=choice.reach)


def choices(
    dim: int,
    epsilon: float,
    bits: int,
    *,
    levels: tuple[int, ...] = LEVELS,
    reach: float | None = None,
    coordinates: int | None = None,
    block: bool = False,
) -> Iterator[Choice]:
    """The best choice for each number of levels that the budget allows; ``epsilon`` is the direction's.

    Numbers of coordinates to try: as many as the bits hold, and powers of two that suit ε.
    """
    whole = padded(dim)
    payable = 1 << int(8 * max(epsilon, FEWEST)).bit_length()
    for count in levels:
        if count > levels[0] and codes_that_fit(bits, count) == 0:
            return
        largest = affordable(bits, count, dim)
        if block and largest < whole:
            largest = 1 << (largest.bit_length() - 1)
        powers = (1 << power for power in reversed(range(32)))
        fewer = [size for size in powers if FEWEST <= size < min(largest, payable)]
        sizes = [largest, *fewer] if coordinates is None else [coordinates]
        reaches = (reach,) if reach is not None else (SIGNS,) if count == 2 else REACHES
        yield best_of(_of_size(whole, size, count, epsilon, reaches) for size in sizes)


@lru_cache(maxsize=512)  # the planner repeats these calls
def _of_size(whole: int, size: int, levels: int, epsilon: float, reaches: tuple[float, ...]) -> Choice:
    """The best reach for a number of coordinates and levels; the scale does not depend on the reach."""
    quantizer = PrivQuant(size, levels, epsilon)

    def error(reach: float) -> float:
        return whole / size * quantizer.gaussian_energy(reach) / kept_share(reach) ** 2

    return best_of(
        Choice(levels=levels, coordinates=size, reach=reach, error=error(reach)) for reach in reaches
    )


def best_of(candidates: Iterable[Choice]) -> Choice:
    """The candidate with the least error, the earlier of equals; stops once errors have risen too far."""
    best: Choice | None = None
    for candidate in candidates:
        if best is None or candidate.error < _BETTER * best.error:
            best = candidate
        elif candidate.error > _WORSE * best.error:
            break
    if best is None:
        raise ValueError("there are no candidates to choose from")
    return best


# ---------------------------------------------------------------- sparse codes


@dataclass(frozen=True, kw_only=True)
class SparseChoice:
    """s, t and τ for codes of N coordinates; ``energy`` is E|v / m|² = t / m², with a known norm."""

    size: int
    near: int
    count: int
    threshold: int
    energy: float

    @property
    def loss(self) -> float:
        """ln(energy), rounded so that the choice is the same on every machine."""
        return round(math.log(self.energy), _DIGITS) if math.isfinite(self.energy) else math.inf


def sparse_code(
    dim: int, epsilon: float, bits: int, coordinates: int | None, norm_epsilon: float | None, *, block: bool
) -> SparseMatches:
    """The sparse code of a ``block`` whose rest the client keeps, or of the whole vector.

    A block is a power of two, at most the padded vector: the one whose error has the least product with
    ``visits``. Where the bits or the law have no room for an index of the whole vector, a sample of 2^k
    coordinates is coded: half as many are tried until they are worse.

    Without ``norm_epsilon`` (None or 0) vectors shorter than the bound toss a coin, which costs no ε. For
    vectors as long as the bound that has the smaller error at every ε, up to half of it at ε = 10.
    """
    left, norm = split(epsilon, norm_epsilon) if norm_epsilon else (epsilon, None)
    whole = min(padded(dim), MOST_SIZE)
    least = min(FEWEST, whole)
    sizes = [1 << power for power in reversed(range(whole.bit_length())) if 1 << power >= least]
    if coordinates is not None:
        if not block:
            raise ValueError("code = 'sparse' codes the whole vector here: leave coordinates out")
        sizes = [checks.integer("coordinates", coordinates, 1, whole)]
        _power_of_two(coordinates)
    best: SparseChoice | None = None
    best_cost = math.inf
    for size in sizes:
        choice = best_sparse(size, left, bits)
        if choice is None:
            continue
        if block:
            cost = round(choice.loss + math.log(visits(whole, size)), _DIGITS)
        else:
            cost = choice.energy / size
            if cost > best_cost:
                break
        if cost <= best_cost:
            best, best_cost = choice, cost
    if best is None:
        raise too_few_bytes(bits, "a sparse code", SignedSubset(1, sizes[-1]).bits)
    law = SparseLaw(size=best.size, near=best.near, count=best.count, threshold=best.threshold, epsilon=left)
    return SparseMatches(law=law, norm=norm)


def most_coordinates(size: int, bits: int) -> int:
    """The largest t whose codes fit in ``bits``, at most half of the coordinates; 0 if none does.

    Codes take at most two bits more than log2 C(N, t) + t, so whole numbers have few t left to decide.
    """

    def log2_codes(count: int) -> float:
        log = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
        return log / math.log(2) + count

    counts = range(min(size // 2 or 1, MOST_COUNT) + 1)
    most = max(0, bisect_right(counts, bits - 2.0, key=log2_codes) - 1)
    while most < counts[-1] and SignedSubset(most + 1, size).bits <= bits:
        most += 1
    return most


@lru_cache(maxsize=256)
def best_sparse(size: int, epsilon: float, bits: int) -> SparseChoice | None:
    """The best choice for codes of ``size`` = N coordinates in ``bits`` bits; None if no code fits.

    t is tried around the number of matches that ε pays for, t ln(2N / s) = ε, from half of it to thrice, and
    then around the best one; s by smaller and smaller steps for each t.
    tests/schemes/test_sqsgd.py::test_the_search_is_near_the_exhaustive_best.
    """
    most = most_coordinates(size, bits)
    if most == 0:
        return None
    paid = max(1, round(epsilon / max(1.0, math.log(2 * size / max(1.0, epsilon / 4)))))
    counts, count = set(), max(1, paid // 2)
    while count <= 3 * paid:
        counts.add(min(most, count))
        count = max(count + 1, int(1.12 * count))
    best = min((_best_near(size, count, epsilon) for count in sorted(counts)), key=lambda each: each.loss)
    wide, step = best.count // 10, max(1, best.count // 80)  # the error has several minima, a few t apart
    beside = range(best.count - wide, min(best.count + wide, most) + 1, step)
    found = (_best_near(size, count, epsilon) for count in beside)
    return min(found, key=lambda each: each.loss, default=best)


def _best_near(size: int, count: int, epsilon: float) -> SparseChoice:
    """The best s for a given t: the best of a coarse scan, then steps of a factor down to 1 %."""
    tried: dict[int, SparseChoice] = {}

    def choice(near: float) -> SparseChoice:
        key = min(max(round(near), 1), size)
        if key not in tried:
            tried[key] = of_counts(size, key, count, epsilon)
        return tried[key]

    best = min((choice(count * 4.0**power) for power in range(-1, 9)), key=lambda each: each.loss)
    factor = 2.0
    while factor > 1.01:
        found = min((choice(best.near * factor), choice(best.near / factor)), key=lambda each: each.loss)
        if found.loss < best.loss:
            best = found
        else:
            factor = math.sqrt(factor)
    return best


def of_counts(size: int, near: int, count: int, epsilon: float) -> SparseChoice:
    """The τ with the largest μ(τ) = (e^ε - 1) τ W_τ / (1 + (e^ε - 1) P(l >= τ)), for given s and t.

    From l = min(s, t) down, W_l follows from the two above it as in ``SparseLaw.masses``, which is rigorous.
    W is log-concave, so W_τ / P(l >= τ) rises with τ: where (e^ε - 1) P is large, μ only falls for lower τ.
    """
    most, wider, step = min(near, count), max(near, count), 2 * size - near - count + 1
    drawn = np.arange(most)
    mass = epsilon + math.log(-math.expm1(-epsilon))  # ln((e^ε - 1) W_l)
    mass += float(np.log((wider - drawn) / (2.0 * (size - drawn))).sum())
    ratio, tail = math.inf, 1.0  # W_l / W_{l+1}, P(l' >= l) / W_l
    best, threshold = -math.inf, most
    for l in range(most, 0, -1):  # noqa: E741
        if l < most:
            ratio = (l + 1) * (step + (l + 2) / ratio) / ((near - l) * (count - l))
            mass, tail = mass + math.log(ratio), 1 + tail / ratio
        if mass < -_FAR:
            continue
        high = mass + math.log(tail)
        matches = math.log(l) + mass - max(high, 0.0) - math.log1p(math.exp(-abs(high)))
        if round(matches, _DIGITS) >= round(best, _DIGITS):
            best, threshold = matches, l
        if high > _NEAR:
            break
    scale = math.exp(best) * largest_sum(size, near) / near
    energy = count / scale**2 if scale > 0 else math.inf
    return SparseChoice(size=size, near=near, count=count, threshold=threshold, energy=energy)
