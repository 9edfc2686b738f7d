"""Privacy and communication budgets: checking them, and what fits into a number of bytes."""

import math

from sqsgd._internal import checks
from sqsgd.core import Transform
from sqsgd.core.codec import Column
from sqsgd.core.transforms import Subsample, padded
from sqsgd.mechanisms.privquant import MOST_DIM

MOST_BYTES = 2**37
MOST_CODES = 2**32 - 1


def bits_of(bytes: int) -> int:
    return 8 * checks.integer("bytes", bytes, 1, MOST_BYTES)


def optional_bits(bytes: int | None) -> int | None:
    return None if bytes is None else bits_of(bytes)


def checked_budget(
    dim: int, epsilon: float, bytes: int | None, most_dim: int = 2**31
) -> tuple[int, float, int | None]:
    """Return the arguments that every private scheme takes, within their limits, and the budget in bits."""
    dim, epsilon = checks.integer("dim", dim, 1, most_dim), checks.real("epsilon", epsilon, 0.01, 1e5)
    return dim, epsilon, optional_bits(bytes)


def too_few_bytes(bits: int | None, content: str, least_bits: int) -> ValueError:
    """Return the error of a budget that cannot hold the least that a report needs."""
    given = None if bits is None else bits // 8
    return ValueError(f"bytes = {given} cannot hold {content}; at least {-(-least_bits // 8)} are needed")


def codes_that_fit(bits: int, alphabet: int) -> int:
    """Return how many codes of an alphabet fit into a column of this many bits."""
    size, width, _ = Column(1, alphabet).group
    groups, rest = divmod(max(bits, 0), width)
    partial = next(count for count in reversed(range(size)) if (alphabet**count - 1).bit_length() <= rest)
    return min(groups * size + partial, MOST_CODES)


def affordable(bits: int, levels: int, dim: int) -> int:
    """How many codes of a vector of length ``dim``, padded for its rotation, fit into a budget of bits."""
    codes = min(codes_that_fit(bits, levels), padded(dim))
    if codes == 0:
        raise too_few_bytes(bits, f"one code of levels = {levels}", Column(1, levels).bits)
    if codes > MOST_DIM:
        raise ValueError(
            f"bytes = {bits // 8} would send {codes} coordinates; at most {MOST_DIM} can be privatised: "
            f"use at most {Column(MOST_DIM, levels).bits // 8} bytes"
        )
    return codes


def full_reach(reach: float, dim: int, most: float) -> float:
    """Return a range in root mean squares, but not beyond √dim: no coordinate is that large."""
    return min(checks.real("reach", reach, 0.1, most), math.sqrt(dim))


def rescaled_sample(dim: int, size: int) -> tuple[Transform, ...]:
    """Keep ``size`` coordinates, drawn for each client from the public seed, and rescale them."""
    return () if size == dim else (Subsample(size=size, rescale=True),)
