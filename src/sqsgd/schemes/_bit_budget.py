"""Budgets: checking them, and what fits into a number of bits."""

from __future__ import annotations

from sqsgd import checks
from sqsgd.codec import Column
from sqsgd.core import Transform
from sqsgd.mechanisms.privquant import MOST_DIM
from sqsgd.transforms import Subsample, padded

MOST_CODES = 2**32 - 1


def checked_bits(bits: int | None) -> int | None:
    """A budget of bits, or None where nothing limits the message."""
    return None if bits is None else checks.integer("bits", bits, 1, 2**40)


def checked_budget(
    dim: int, epsilon: float, bits: int | None, most_dim: int = 2**31
) -> tuple[int, float, int | None]:
    """The arguments that every private scheme takes, within their limits."""
    dim, epsilon = checks.integer("dim", dim, 1, most_dim), checks.real("epsilon", epsilon, 0.01, 1e5)
    return dim, epsilon, checked_bits(bits)


def too_few_bits(bits: int | None, content: str, least: int) -> ValueError:
    """The error of a budget that cannot hold the least that a report needs."""
    return ValueError(f"bits = {bits} cannot hold {content}; at least {least} are needed")


def codes_that_fit(bits: int, alphabet: int) -> int:
    """How many codes of an alphabet fit into a column of this many bits.

    >>> codes_that_fit(2016, 3), codes_that_fit(2016, 16)
    (1270, 504)
    """
    size, width, _ = Column(1, alphabet).group
    groups, rest = divmod(max(bits, 0), width)
    partial = next(count for count in reversed(range(size)) if (alphabet**count - 1).bit_length() <= rest)
    return min(groups * size + partial, MOST_CODES)


def affordable(bits: int | None, levels: int, dim: int) -> int:
    """How many codes of a vector of length ``dim``, padded for its rotation, fit into a budget of bits."""
    bits = checks.integer("bits", bits, 1, 2**40)
    codes = min(codes_that_fit(bits, levels), padded(dim))
    if codes == 0:
        raise too_few_bits(bits, f"one code of levels = {levels}", Column(1, levels).bits)
    if codes > MOST_DIM:
        most = Column(MOST_DIM, levels).bits
        raise ValueError(
            f"bits = {bits} would send {codes} coordinates; at most {MOST_DIM} can be privatised: "
            f"use at most {most} bits ({most // 8} bytes)"
        )
    return codes


def block_size(dim: int, codes: int) -> int:
    """How many coordinates to send: all, if they fit when padded for the rotation; else a power of two."""
    return dim if padded(dim) <= codes else 1 << (codes.bit_length() - 1)


def rescaled_sample(dim: int, size: int) -> tuple[Transform, ...]:
    """Keep ``size`` coordinates, drawn for each client from the public seed, and rescale them."""
    return () if size == dim else (Subsample(size=size, rescale=True),)
