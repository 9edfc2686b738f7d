"""Sparse codes: the near set, the number of coordinates and the threshold with the least predicted error."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sqsgd import checks
from sqsgd.codec import SignedSubset
from sqsgd.mechanisms.budget_split import split
from sqsgd.mechanisms.sparse_law import MOST_COUNT, MOST_SIZE, SparseLaw
from sqsgd.mechanisms.sparse_matches import SparseMatches
from sqsgd.numerics.gaussian import largest_sum
from sqsgd.schemes._bit_budget import too_few_bits
from sqsgd.transforms import padded

_DIGITS = 7
_SLACK = 7 / 6  # a block's error over the least one: smaller blocks collect more gradients for each report
_SHARE = 0.75  # of the bound: the length at which the ways to report a norm are compared
_SMALLEST_BLOCK = 64
_FAR, _NEAR = 40.0, 10.0  # -ln and ln of the odds e^ε P beyond which no threshold is the best


@dataclass(frozen=True, kw_only=True)
class SparseChoice:
    """s, t and τ for codes of N coordinates; ``energy`` is E|v / m|² = t / m², with a known norm."""

    size: int
    near: int
    count: int
    threshold: int
    energy: float


def most_coordinates(size: int, bits: int) -> int:
    """The largest t whose codes fit in ``bits``, at most half of the coordinates; 0 if none does.

    Codes take at most two bits more than log2 C(N, t) + t, so whole numbers have few t left to decide.
    """
    counts = range(min(size // 2 or 1, MOST_COUNT) + 1)
    most = max(0, bisect_right(counts, bits - 2.0, key=lambda count: _log2_codes(size, count)) - 1)
    while most < counts[-1] and SignedSubset(most + 1, size).bits <= bits:
        most += 1
    return most


def _log2_codes(size: int, count: int) -> float:
    """log2 C(N, t) + t."""
    log = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return log / math.log(2) + count


@lru_cache(maxsize=256)
def best_sparse(size: int, epsilon: float, bits: int) -> SparseChoice | None:
    """The best choice for codes of ``size`` = N coordinates in ``bits`` bits; None if no code fits.

    t is tried around the number of matches that ε pays for, t ln(2N / s) = ε, one by one where it is small;
    s by smaller and smaller steps for each t. More bits allow more t and never a worse choice.
    tests/schemes/test_sparse_choice.py::test_the_search_is_near_the_exhaustive_best.
    """
    most = most_coordinates(size, bits)
    if most == 0:
        return None
    paid = max(1, round(epsilon / max(1.0, math.log(2 * size / max(1.0, epsilon / 4)))))
    counts = sorted({min(most, count) for count in _counts(paid)})
    return min((_best_near(size, count, epsilon) for count in counts), key=_loss)


def _loss(choice: SparseChoice) -> float:
    """ln(energy), so rounded that machines whose logarithms differ in the last bit choose the same."""
    return round(math.log(choice.energy), _DIGITS) if math.isfinite(choice.energy) else math.inf


def _counts(paid: int) -> Iterator[int]:
    """Numbers of coordinates from half to thrice what ε pays for, at most 12 % apart."""
    count = max(1, paid // 2)
    while count <= 3 * paid:
        yield count
        count = max(count + 1, int(1.12 * count))


def _best_near(size: int, count: int, epsilon: float) -> SparseChoice:
    """The best s for a given t: the best of a coarse scan, then steps of a factor down to 1 %."""
    tried: dict[int, SparseChoice] = {}

    def choice(near: float) -> SparseChoice:
        key = min(max(round(near), 1), size)
        if key not in tried:
            tried[key] = of_counts(size, key, count, epsilon)
        return tried[key]

    best, factor = min((choice(count * 4.0**power) for power in range(-1, 9)), key=_loss), 2.0
    while factor > 1.01:
        found = min((choice(best.near * factor), choice(best.near / factor)), key=_loss)
        if _loss(found) < _loss(best):
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


def sparse_block(
    dim: int, epsilon: float, bits: int, coordinates: int | None, norm_epsilon: float | None
) -> SparseMatches:
    """The mechanism for a block of coordinates, whose rest the client keeps; the norm takes its share of ε.

    The block is the smallest whose error (D / n) t / m² is within a sixth of the least: it must be a power of
    two, at most the padded vector.
    """
    left, norm = split(checks.real("epsilon", epsilon, 0.01, 1e5), norm_epsilon)
    whole = min(padded(dim), MOST_SIZE)
    if coordinates is not None:
        sizes = [checks.integer("coordinates", coordinates, 1, whole)]
        if coordinates & (coordinates - 1):
            raise ValueError(f"coordinates = {coordinates} must be a power of two, for the rotation")
    else:
        powers = (1 << power for power in range(whole.bit_length()))
        sizes = [size for size in powers if size >= min(_SMALLEST_BLOCK, whole)]
    found = [choice for size in sizes if (choice := best_sparse(size, left, bits)) is not None]
    if not found:
        raise too_few_bits(bits, "a sparse code", SignedSubset(1, sizes[0]).bits)
    least = min(choice.energy / choice.size for choice in found)
    chosen = next(choice for choice in found if choice.energy / choice.size <= _SLACK * least)
    return SparseMatches(law=_law(chosen, left), norm=norm)


def sparse_whole(dim: int, epsilon: float, bits: int, norm_epsilon: float | None) -> SparseMatches:
    """The mechanism for a whole vector: with a norm symbol, or with the coin that costs no ε.

    Without ``norm_epsilon``, whichever has the smaller error for vectors at three quarters of the bound.
    """
    epsilon, size = checks.real("epsilon", epsilon, 0.01, 1e5), padded(dim)
    left, norm = split(epsilon, norm_epsilon)
    found = [
        SparseMatches(law=_law(choice, share), norm=symbol)
        for share, symbol in ((left, norm), (epsilon, None))
        if (choice := best_sparse(size, share, bits)) is not None and not (norm_epsilon and symbol is None)
    ]
    if not found:
        raise too_few_bits(bits, "a sparse code", SignedSubset(1, size).bits)
    return min(found, key=lambda mechanism: mechanism.relative_error(_SHARE))


def _law(choice: SparseChoice, epsilon: float) -> SparseLaw:
    return SparseLaw(
        size=choice.size,
        near=choice.near,
        count=choice.count,
        threshold=choice.threshold,
        epsilon=epsilon,
    )
