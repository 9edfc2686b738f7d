"""Direction mode: the levels, coordinates and range with the least predicted error under a budget."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from sqsgd import checks
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.numerics.gaussian import kept_share
from sqsgd.schemes._bit_budget import affordable, codes_that_fit
from sqsgd.transforms import padded

SIGNS = 2.0**-12  # a range so short that a code is the coordinate's sign
LEVELS = (2, 3, 4, 5, 6, 8, 12, 16, 32, 64, 128)
REACHES = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
FEWEST = 64  # shorter blocks are not quite Gaussian after their rotation, which biases the estimate
_WORSE = 1.25  # the search stops when the error exceeds the least one by this factor
_BETTER = 0.999  # a candidate must improve by this factor, so that rounding errors never decide


_GRADIENT_NOISE = 8.0  # energy of a gradient's noise over that of its mean, late in training
_PATIENCE = 512  # rounds between visits to a coordinate that double the error
_MEASURED = 2**17  # coordinates of the model that both were measured with


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


def choices(
    dim: int,
    epsilon: float,
    bits: int | None,
    *,
    levels: tuple[int, ...] = LEVELS,
    reach: float | None = None,
    coordinates: int | None = None,
    block: bool = False,
) -> Iterator[Choice]:
    """The best choice for each number of levels that the budget allows; ``epsilon`` is the direction's."""
    whole = padded(dim)
    for count in levels:
        if count > levels[0] and codes_that_fit(checks.integer("bits", bits, 1, 2**40), count) == 0:
            return
        most = affordable(bits, count, dim)
        sizes = _sizes(most, whole, epsilon, block) if coordinates is None else [coordinates]
        reaches = (reach,) if reach is not None else (SIGNS,) if count == 2 else REACHES
        yield best_of(_of_size(whole, size, count, epsilon, reaches) for size in sizes)


@lru_cache(maxsize=512)  # the planner repeats these calls
def _of_size(whole: int, size: int, levels: int, epsilon: float, reaches: tuple[float, ...]) -> Choice:
    """The best reach for a number of coordinates and levels; the scale does not depend on the reach."""
    quantizer = PrivQuant(size, levels, epsilon)
    return best_of(
        Choice(
            levels=levels,
            coordinates=size,
            reach=reach,
            error=whole / size * quantizer.gaussian_energy(reach) / kept_share(reach) ** 2,
        )
        for reach in reaches
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


def _sizes(most: int, whole: int, epsilon: float, block: bool) -> list[int]:
    """Numbers of coordinates to try: as many as the bits hold, and powers of two that suit ε.

    A block is a power of two, unless it is the whole vector.
    """
    largest = most if most == whole or not block else 1 << (most.bit_length() - 1)
    payable = 1 << int(8 * max(epsilon, FEWEST)).bit_length()
    fewer = [1 << power for power in reversed(range(32)) if FEWEST <= 1 << power < min(largest, payable)]
    return [largest, *fewer]
