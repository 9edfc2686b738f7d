"""The vertices of a cross-polytope near to each of many vectors, and one of them or of the others."""

from __future__ import annotations

import numpy as np

from sqsgd.kernels.compiling import compiled, inlined

_PIECE = 1 << 15  # counts of this many numbers fit sixteen bits
_BLOCK = 64  # sums of this many numbers up to two fit eight bits


@inlined
def _at_least(numbers, bound):
    """How many of the 16-bit numbers are at least ``bound``."""
    total = 0
    for start in range(0, numbers.size, _PIECE):
        count, piece = np.uint16(0), numbers[start : start + _PIECE]
        for j in range(piece.size):
            count = np.uint16(count + np.uint16(piece[j] >= bound))
        total += np.int64(count)
    return total


@inlined
def _rank_value(numbers, count):
    """The count-th largest of the 16-bit numbers, bit by bit; the time depends on their number alone."""
    value = np.uint16(0)
    for place in range(15, -1, -1):
        raised = np.uint16(value | np.uint16(np.uint16(1) << np.uint16(place)))
        value = raised if _at_least(numbers, raised) >= count else value
    return value


@inlined
def _least_near(bits, count, halves):
    """The count-th largest of numbers of 31 bits: first its upper half, then the lower one."""
    for j in range(bits.size):
        halves[j] = np.uint16(bits[j] >> np.uint32(16))
    high = _rank_value(halves, count)
    for j in range(bits.size):
        upper = np.uint16(bits[j] >> np.uint32(16))
        lower = np.uint16(bits[j] & np.uint32(0xFFFF))
        lower = lower if upper == high else np.uint16(0)
        halves[j] = np.uint16(0xFFFF) if upper > high else lower
    return np.uint32(np.uint32(high) << np.uint32(16)) | np.uint32(_rank_value(halves, count))


@inlined
def _reached(weights, rank):
    """(p, s): s = weights[0] + ... + weights[p - 1] is the largest such sum of bytes that is at most rank."""
    block, before = 0, 0
    for start in range(0, weights.size, _BLOCK):
        piece, whole = weights[start : start + _BLOCK], np.uint8(0)
        for j in range(piece.size):
            whole = np.uint8(whole + piece[j])
        fits = before + np.int64(whole) <= rank and start == block
        block += _BLOCK if fits else 0
        before += np.int64(whole) if fits else 0
    piece, place, seen = weights[block : block + _BLOCK], block, before
    for j in range(piece.size):
        before += np.int64(piece[j])
        place += np.int64(before <= rank)
        seen = before if before <= rank else seen
    return place, seen


@compiled
def draw_vertices(x, nearest, reverse, sides, ranks, codes):
    """One vertex for each row: the rank-th of the nearest ones where ``sides`` is 1, else of the others.

    Where ``reverse`` is 1, the nearest ones are those of the opposite vector. The time does not depend on
    which vertex is drawn.
    """
    size = x.shape[1]
    bits, halves, marks = np.empty(size, np.uint32), np.empty(size, np.uint16), np.empty(size, np.uint8)
    for i in range(x.shape[0]):
        row = x[i]
        raw = row.view(np.uint32)
        for j in range(size):
            bits[j] = raw[j] & np.uint32(0x7FFFFFFF)
        least = _least_near(bits, nearest, halves)
        above = 0
        for j in range(size):
            marks[j] = np.uint8(bits[j] == least)
            above += np.int64(bits[j] > least)
        last = _reached(marks, nearest - above - 1)[0]  # ties count in rising order
        for j in range(size):
            marks[j] = np.uint8((bits[j] > least) | ((bits[j] == least) & (j <= last)))
        near = _reached(marks, min(ranks[i], nearest - 1))[0]
        negative = np.int64(row[near] < 0) ^ reverse[i]
        for j in range(size):
            marks[j] = np.uint8(2) - marks[j]
        far, before = _reached(marks, ranks[i])
        far = min(far, size - 1)
        step = ranks[i] - before
        step = (np.int64(row[far] < 0) ^ reverse[i] ^ 1) if marks[far] == 1 else step
        codes[i] = 2 * near + negative if sides[i] else 2 * far + step
