"""sqSGD and its stateless variant: the direction of a rotated block, in the code with the least error.

Signs and levels spend a part of ε on the norm; sparse codes only if a norm is asked for.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, wraps
from typing import Any, Literal, get_args

import numpy as np

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.geometry import kept_share, l2_norm, largest_sum
from sqsgd.core import Estimate, Mechanism, Scheme
from sqsgd.core.codec import Columns, SignedSubset
from sqsgd.core.transforms import (
    FEWEST,
    Rotate,
    Rotation,
    Subsample,
    gaussian_rotation,
    padded,
    rotated_by,
    rotated_sample,
)
from sqsgd.mechanisms.privquant import PrivQuant, Quantized
from sqsgd.mechanisms.scalardp import ScalarDP, split
from sqsgd.mechanisms.sparse import MOST_COUNT, MOST_SIZE, SparseLaw, SparseMatches
from sqsgd.schemes.budgets import affordable, bits_of, codes_that_fit, too_few_bytes

Code = Literal["signs", "levels", "sparse"]
CODED = ("sqsgd", "sqsgd-stateless")  # they take ``code``
SIGNS = 2.0**-12  # a range so short that a code is the coordinate's sign
LEVELS = (2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128)
REACHES = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
_WORSE = 1.25  # the search stops when the error exceeds the least one by this factor
_BETTER = 0.999  # a candidate must improve by this factor, so that rounding errors never decide
_DIGITS = 7  # of logarithms of errors: machines whose logarithms differ in the last bit choose the same
_FAR, _NEAR = 40.0, 10.0  # -ln and ln of the odds e^ε P beyond which no threshold is the best
_GRADIENT_NOISE = 8.0  # energy of a gradient's noise over its mean's energy, late in training
_PATIENCE = 512  # rounds between visits to a coordinate that double the error
_MEASURED = 2**17  # coordinates of the model that both were measured with
_FIRST_BOUND = 0.3  # of whole vectors in reports of one length: few gradients are shorter until late


@dataclass(frozen=True, kw_only=True)
class Direction(Quantized):
    """Direction by PrivQuant over ± ``reach`` root mean squares, norm by ScalarDP; for rotated vectors.

    Clamping shrinks the mean of a coordinate, of a Gaussian one by erf(reach / √2). The estimate divides this
    out. A reach of √dim clamps nothing: fewer than 64 coordinates have it by default, and are unbiased. More
    are unbiased within 1 % after ``gaussian_rotation``
    (tests/schemes/test_few_dimensions.py::test_worst_vectors_keep_their_length). Norms above ``bound`` are
    clamped to it.
    """

    quantizer: PrivQuant
    norm: ScalarDP  # for norm / bound, so its maximum is 1
    reach: float = SIGNS

    @property
    def identity(self) -> str:
        return f"direction {self.reach!r} ({self.quantizer.identity}) ({self.norm.identity})"

    @property
    def own_reach(self) -> float:
        return self.reach

    def prepared(self, x: Vector, bound: float) -> tuple[Vector, float, float]:
        x = checks.shaped("x", x, self.dim)
        norm = checks.finite_size("x", l2_norm(x))
        vector = x, self.reach * norm / math.sqrt(self.dim), norm / bound
        zero = np.zeros_like(x), 1.0, 0.0  # computed in any case, so that the time is the same
        return zero if norm < 1e-6 * bound else vector

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        norm, total = bound * self.norm.estimate(int(columns[1][0])), np.zeros(self.dim, np.float32)
        correction = self.reach / kept_share(self.reach, self.dim)
        end = norm * correction / (math.sqrt(self.dim) * self.quantizer.scale)  # of the range
        self.quantizer.add_levels(columns[0], end, total)
        return total.astype(np.float64)

    def relative_error(self, share: float) -> float:
        return (1 + self.norm.variance(share) / share**2) * self._energy - 1

    @cached_property
    def _energy(self) -> float:
        kept = kept_share(self.reach, self.dim)
        return self.quantizer.coordinate_energy(self.reach, self.dim) / kept**2

    def along(self, share: float) -> float:
        """The noise of the norm lies along the vector."""
        return (1 + (self._energy - 1) / self.dim) / self._energy


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
    rotation: Rotation = "client",
    average: float = 0.0,
) -> Scheme:
    """Sends the positions and signs of some coordinates of a rotated block, using a residual on the client.

    The parameter ``code`` can be signs, levels or sparse match codes. By default, the code with the smallest
    predicted error is used. With ``rotation="round"``, the rotation and the block are shared by all clients
    in a round, while ``"client"`` uses different ones for each client.

    All parameters of the code are optimised by default. You can set the number of ``levels`` and their range
    (``reach``), the number of ``coordinates`` in a report, and the budget for the norm (``norm_epsilon``).

    If ``average`` is set to 0.9, the reports are based on the entire vector instead of a block, and encode a
    running average of approximately the last ten gradients (worker momentum, Karimireddy et al. 2021). This
    reduces the variance due to sampling batches without using outdated gradients.
    """
    average = checks.real("average", average, 0.0, 0.999)
    if average:
        given = {"code": code, "levels": levels, "coordinates": coordinates, "reach": reach}
        whole = sqsgd_stateless(dim, epsilon, bytes, **given, norm_epsilon=norm_epsilon, rotation=rotation)
        return replace(whole, name="sqsgd", keeps_state=True, average=average)
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    options = (code, levels, coordinates, reach, norm_epsilon)
    mechanism = Request(dim, epsilon, bits_of(bytes), True, *options).mechanism()
    size = mechanism.dim
    rotate = _rotation(min(size, dim), mechanism)
    return Scheme(
        name="sqsgd",
        dim=dim,
        transforms=rotated_by(rotation, (rotate,) if size >= dim else (Subsample(size=size), rotate)),
        mechanism=mechanism,
        keeps_state=size < dim,
    )


@wraps(sqsgd, assigned=())  # the same options
def sqsgd_stateless(
    dim: int, epsilon: float, bytes: int, *, rotation: Rotation = "client", **options: Any
) -> Scheme:
    """Sends the same codes as sqsgd for the entire vector, without keeping any state on the client.

    All options of ``sqsgd`` except ``average`` are supported. Sparse codes select from all coordinates, while
    signs and levels are based on a random sample.
    """
    if average := options.pop("average", 0.0):
        raise ValueError(f"average = {average!r}: clients of sqsgd-stateless keep nothing; use sqsgd")
    dim = checks.integer("dim", dim, 1, 2**31)
    mechanism = Request(dim, epsilon, bits_of(bytes), False, **options).mechanism()
    whole = rotated_sample(dim, mechanism.dim, _rotation(dim, mechanism))
    return Scheme(
        name="sqsgd-stateless",
        dim=dim,
        transforms=rotated_by(rotation, whole),
        mechanism=mechanism,
        first_bound=_FIRST_BOUND if mechanism.traits.fixed_length else 1.0,
    )


def _rotation(dim: int, mechanism: Direction | SparseMatches) -> Rotate:
    """Signs and levels of fewer than 64 coordinates need no Gaussian ones, and no padding."""
    if isinstance(mechanism, SparseMatches):
        return gaussian_rotation(dim, mechanism.law.near)
    return Rotate(rounds=2) if padded(dim) < FEWEST else gaussian_rotation(dim)


def code_of(mechanism: Mechanism) -> Code:
    if isinstance(mechanism, SparseMatches):
        return "sparse"
    return "signs" if mechanism.layout[0].alphabet == 2 else "levels"


@dataclass(frozen=True)
class Request:
    """A budget and options. The least predicted error decides those that are None."""

    dim: int
    epsilon: float
    bits: int
    block: bool  # a power of two; else any number of rotated coordinates
    code: str | None = None
    levels: int | None = None
    coordinates: int | None = None
    reach: float | None = None
    norm_epsilon: float | None = None

    def mechanism(self) -> Direction | SparseMatches:
        """More bits never make it worse: tests/schemes/test_sqsgd.py::test_more_bytes_never_hurt."""
        checks.real("epsilon", self.epsilon, 0.01, 1e5)
        counts = self._level_counts()
        tries: list[Callable[[], Direction | SparseMatches]] = []
        if counts:
            tries.append(lambda: self._direction(counts))
        if self.code == "sparse" or (self.code is None and self.levels is None and self.reach is None):
            tries.append(self._sparse)
        found, errors = [], []
        for attempt in tries:
            try:
                found.append(attempt())
            except ValueError as error:
                errors.append(error)
        if not found:
            raise errors[0]
        return min(found, key=self._cost)

    def _cost(self, mechanism: Direction | SparseMatches) -> float:
        whole, size = padded(self.dim), mechanism.dim
        if self.dim < FEWEST:  # sparse codes are of the padded vector
            error = (1 + mechanism.relative_error(1.0)) * whole / min(size, whole) - 1
            along = mechanism.along(1.0) if size >= whole else None
            error = Rotate(least=max(size, whole)).error_before(error, self.dim, along)
            return round(math.log(error), _DIGITS)
        factor = visits(whole, size) if self.block else whole / size
        return round(math.log((1 + mechanism.relative_error(1.0)) * factor), _DIGITS)

    def _level_counts(self) -> tuple[int, ...]:
        """Return the numbers of levels to try. Raises ValueError for options that do not go together."""
        code, levels = self.code, self.levels
        if code not in (None, *get_args(Code)):
            raise ValueError(f"code = {code!r} must be one of {', '.join(get_args(Code))}")
        if code == "sparse":
            if not (levels is None and self.reach is None):
                raise ValueError("code = 'sparse' has neither levels nor reach: leave them out")
            return ()
        if levels is None:
            return (2,) if code == "signs" else LEVELS[1:] if code == "levels" else LEVELS
        levels = checks.integer("levels", levels, 2, 256)
        if code == "signs" and levels != 2:
            raise ValueError(f"code = 'signs' has two levels, not {levels}: leave levels out")
        if code == "levels" and levels == 2:
            raise ValueError("code = 'levels' needs levels of three or more; two are code = 'signs'")
        return (levels,)

    def _given_size(self, least: int, most: int) -> int | None:
        if self.coordinates is None:
            return None
        size = checks.integer("coordinates", self.coordinates, least, most)
        if self.block and size.bit_count() > 1:
            raise ValueError(f"coordinates = {size} must be a power of two, for the rotation")
        return size

    def _direction(self, levels: tuple[int, ...]) -> Direction:
        left, norm = split(self.epsilon, self.norm_epsilon)
        reach = None if self.reach is None else checks.real("reach", self.reach, 1e-6, 20.0)
        size = self._given_size(1, affordable(self.bits, levels[0], self.dim))
        best = best_of(
            choices(self.dim, left, self.bits, levels=levels, reach=reach, coordinates=size, block=self.block)
        )
        quantizer = PrivQuant(best.coordinates, best.levels, left)
        return Direction(quantizer=quantizer, norm=norm, reach=best.reach)

    def _sparse(self) -> SparseMatches:
        """Return the block with the least error times ``visits``, else the whole vector or a sample.

        Without ``norm_epsilon`` (None or 0) vectors shorter than the bound toss a coin, which costs no ε.
        """
        left, norm = split(self.epsilon, self.norm_epsilon) if self.norm_epsilon else (self.epsilon, None)
        whole = min(padded(max(self.dim, FEWEST)), MOST_SIZE)
        if self.coordinates is not None and not self.block:
            raise ValueError("code = 'sparse' codes the whole vector here: leave coordinates out")
        size = self._given_size(FEWEST, whole)
        powers = (1 << power for power in reversed(range(whole.bit_length())))
        sizes = [size] if size else [power for power in powers if power >= FEWEST]
        best, best_cost = None, math.inf
        for size in sizes:
            choice = best_sparse(size, left, self.bits)
            if choice is None:
                continue
            if self.block:
                cost = round(choice.loss + math.log(visits(whole, size)), _DIGITS)
            else:
                cost = choice.energy / size
                if cost > best_cost:
                    break
            if cost <= best_cost:
                best, best_cost = choice, cost
        if best is None:
            raise too_few_bytes(self.bits, "a sparse code", SignedSubset(1, sizes[-1]).bits)
        return SparseMatches(law=best.law, norm=norm)


def visits(whole: int, size: int) -> float:
    """D / n for a block of n, times what its size costs in training: the factor of its error.

    A residual adds up D / n gradients, whose noise grows with the root only: smaller blocks carry less of it,
    larger ones are sent before they are out of date. The minimum at D / 64 agrees with trainings of LeNet-5
    (docs/results). In smaller models blocks stay above 2,048 and short vectors are sent whole.
    """
    noise = _GRADIENT_NOISE * min(1.0, whole / _MEASURED) ** 2
    return whole / size * (1 + noise * size / whole + whole / size / _PATIENCE)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Levels, coordinates n and reach; ``error`` is (D / n) E|ŷ|² / |y|², norm known: 1 + NMSE."""

    levels: int
    coordinates: int
    reach: float
    error: float


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
    """The best choice for each number of levels that the budget allows; ``epsilon`` is the direction's."""
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
        usual = (reach,) if reach is not None else (SIGNS,) if count == 2 else REACHES
        yield best_of(
            _of_size(whole, size, count, epsilon, usual if reach or size >= FEWEST else (math.sqrt(size),))
            for size in sizes
        )


@lru_cache(maxsize=512)  # the planner repeats these calls
def _of_size(whole: int, size: int, levels: int, epsilon: float, reaches: tuple[float, ...]) -> Choice:
    quantizer = PrivQuant(size, levels, epsilon)

    def error(reach: float) -> float:
        return whole / size * quantizer.coordinate_energy(reach, size) / kept_share(reach, size) ** 2

    made = partial(Choice, levels=levels, coordinates=size)
    return best_of(made(reach=reach, error=error(reach)) for reach in reaches)


def best_of(candidates: Iterable[Choice]) -> Choice:
    """The candidate with the least error, the earlier of equals. Stops once errors have risen too far."""
    best: Choice | None = None
    for candidate in candidates:
        if best is None or candidate.error < _BETTER * best.error:
            best = candidate
        elif candidate.error > _WORSE * best.error:
            break
    if best is None:
        raise ValueError("no candidates to choose from")
    return best


@dataclass(frozen=True, kw_only=True)
class SparseChoice:
    """A law for codes of N coordinates; ``energy`` is E|v / m|² = t / m², with a known norm."""

    law: SparseLaw
    energy: float

    @property
    def loss(self) -> float:
        """ln(energy), rounded so that the choice is the same on every machine."""
        return round(math.log(self.energy), _DIGITS) if math.isfinite(self.energy) else math.inf


def most_coordinates(size: int, bits: int) -> int:
    """Return the largest t whose codes fit in ``bits``, at most half of the coordinates; 0 if none does."""

    def log2_codes(count: int) -> float:  # at most two bits too few
        log = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
        return log / math.log(2) + count

    counts = range(min(size // 2 or 1, MOST_COUNT) + 1)
    most = max(0, bisect_right(counts, bits - 2.0, key=log2_codes) - 1)
    while most < counts[-1] and SignedSubset(most + 1, size).bits <= bits:
        most += 1
    return most


@lru_cache(maxsize=256)
def best_sparse(size: int, epsilon: float, bits: int) -> SparseChoice | None:
    """Return the best choice for codes of ``size`` = N coordinates in ``bits`` bits, or None if no code fits.

    Around t ln(2N / s) = ε: tests/schemes/test_sqsgd.py::test_the_search_is_near_the_exhaustive_best.
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
    count = best.law.count
    wide, step = count // 10, max(1, count // 80)  # the error has several minima, a few t apart
    beside = range(count - wide, min(count + wide, most) + 1, step)
    found = (_best_near(size, count, epsilon) for count in beside)
    return min(found, key=lambda each: each.loss, default=best)


def _best_near(size: int, count: int, epsilon: float) -> SparseChoice:
    """Return the best s for a given t: the best of a coarse scan, then steps of a factor down to 1 %."""
    tried: dict[int, SparseChoice] = {}

    def choice(near: float) -> SparseChoice:
        key = min(max(round(near), 1), size)
        if key not in tried:
            tried[key] = of_counts(size, key, count, epsilon)
        return tried[key]

    best = min((choice(count * 4.0**power) for power in range(-1, 9)), key=lambda each: each.loss)
    factor = 2.0
    while factor > 1.01:
        near = best.law.near
        found = min((choice(near * factor), choice(near / factor)), key=lambda each: each.loss)
        if found.loss < best.loss:
            best = found
        else:
            factor = math.sqrt(factor)
    return best


def of_counts(size: int, near: int, count: int, epsilon: float) -> SparseChoice:
    """Return the τ with the largest μ(τ) = (e^ε - 1) τ W_τ / (1 + (e^ε - 1) P(l >= τ)), for given s and t.

    W_l as in ``SparseLaw.masses``. It is log-concave, so where (e^ε - 1) P is large, μ falls for lower τ.
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
    law = SparseLaw(size=size, near=near, count=count, threshold=threshold, epsilon=epsilon)
    return SparseChoice(law=law, energy=count / scale**2 if scale > 0 else math.inf)
