"""Reference implementations of the kernels in plain NumPy and Python, slow and readable."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import comb

import numpy as np
from scipy import stats


def signs_of(words: np.ndarray, size: int) -> np.ndarray:
    """+1 or -1 for each bit of 64-bit words, lowest bit first."""
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")[:size]
    return 1.0 - 2.0 * bits


def round_fixed(x, factor, offset, noise):
    """Rounding by sixteen bits, and where they tie (for the caller to decide)."""
    t = np.clip(np.float32(factor) * x + np.float32(offset), np.float32(0), np.float32(2 * offset))
    fixed = np.floor(t.astype(np.float32) * np.float32(65536)).astype(np.int64)
    total = fixed + noise.astype(np.int64)
    return total >> 16, (total & 65535) == 65535


def pack_bits(codes: np.ndarray, bits: int) -> bytes:
    """Codes one after the other, lowest bit first."""
    planes = (codes[:, None].astype(np.int64) >> np.arange(bits)) & 1
    return np.packbits(planes.astype(np.uint8).reshape(-1), bitorder="little").tobytes()


def pack_groups(codes, alphabet, group, width, last) -> bytes:
    """Groups of codes as numbers in base ``alphabet``, one after the other, in one big integer."""
    codes = [int(code) for code in codes]
    total, at = 0, 0
    for start in range(0, len(codes), group):
        part = codes[start : start + group]
        total |= sum(code * alphabet**i for i, code in enumerate(part)) << at
        at += width if start + group < len(codes) else last
    return total.to_bytes(-(-at // 8), "little")


def subset(words, dim: int, size: int) -> list[int]:
    """A sorted subset from an iterator of 32-bit words, by multiply-and-shift with rejection."""
    drawn = min(size, dim - size)
    chosen: set[int] = set()
    while len(chosen) < drawn:
        product = int(next(words)) * dim
        if product % 2**32 >= 2**32 % dim:
            chosen.add(product // 2**32)
    return sorted(chosen if drawn == size else set(range(dim)) - chosen)


def largest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest numbers, the largest first; ties keep their order."""
    return np.argsort(-magnitudes.astype(np.float64), kind="stable")[:count]


def side_sizes(dim: int, levels: int, threshold: int) -> tuple[int, int]:
    """(N_hi, N_lo) by exact sums."""
    weights = [comb(dim, count) * (levels - 1) ** (dim - count) for count in range(dim + 1)]
    return sum(weights[threshold:]), sum(weights[:threshold])


def densities(dim: int, levels: int, threshold: int, keep: Fraction) -> tuple[Fraction, Fraction]:
    """(A, B), exactly."""
    high, low = side_sizes(dim, levels, threshold)
    return keep / high, (1 - keep) / low


def all_codes(dim: int, levels: int) -> np.ndarray:
    """Every vector of codes, one per row."""
    return np.array(list(itertools.product(range(levels), repeat=dim)), np.uint8)


def g_test(observed, expected) -> float:
    """The p-value of a G-test; cells with an expected count below five are merged up to it, in that order."""
    order = np.argsort(expected)
    observed, expected = np.asarray(observed, float)[order], np.asarray(expected, float)[order]
    small = int(np.searchsorted(expected, 5.0))
    starts, total = [], 5.0
    for place, count in enumerate(expected[:small]):
        if total >= 5.0 and (place == 0 or expected[place:small].sum() >= 5.0):
            starts, total = [*starts, place], 0.0
        total += count
    starts += range(small, expected.size)
    observed, expected = np.add.reduceat(observed, starts), np.add.reduceat(expected, starts)
    seen = observed > 0
    statistic = 2 * np.sum(observed[seen] * np.log(observed[seen] / expected[seen]))
    return float(stats.chi2.sf(statistic, expected.size - 1))
