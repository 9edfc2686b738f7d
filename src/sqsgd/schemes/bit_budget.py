"""What fits into a budget of bits."""

from __future__ import annotations

from sqsgd import checks
from sqsgd.codec import Column
from sqsgd.core import Transform
from sqsgd.mechanisms.privquant import MOST_DIM
from sqsgd.transforms import Subsample, padded

MOST_CODES = 2**32 - 1


def codes_that_fit(bits: int, alphabet: int) -> int:
    """How many codes of an alphabet a column of so many bits holds.

    >>> codes_that_fit(2016, 3), codes_that_fit(2016, 16)
    (1270, 504)
    """
    size, width, _ = Column(1, alphabet).group
    groups, rest = divmod(max(bits, 0), width)
    partial = next(count for count in reversed(range(size)) if (alphabet**count - 1).bit_length() <= rest)
    return min(groups * size + partial, MOST_CODES)


def affordable(bits: int | None, levels: int, dim: int) -> int:
    """How many codes of a vector of length dim, padded for its rotation, fit into a budget of bits."""
    bits = checks.integer("bits", bits, 1, 2**40)
    codes = min(codes_that_fit(bits, levels), padded(dim))
    if codes == 0:
        raise ValueError(f"bits = {bits} do not hold one code of levels = {levels}")
    if codes > MOST_DIM:
        most = Column(MOST_DIM, levels).bits
        raise ValueError(
            f"bits = {bits} would send {codes} coordinates; at most {MOST_DIM} can be privatised: "
            f"ask for {most} bits ({most // 8} bytes) or fewer"
        )
    return codes


def block_size(dim: int, codes: int) -> int:
    """How many coordinates to send: all, if they fit once padded for the rotation; else a power of two."""
    return dim if padded(dim) <= codes else 1 << (codes.bit_length() - 1)


def rescaled_sample(dim: int, size: int) -> tuple[Transform, ...]:
    """``size`` coordinates by the public seed, each client its own, rescaled; all of them where they fit."""
    return () if size == dim else (Subsample(size=size, rescale=True),)
