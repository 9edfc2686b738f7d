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
    """The count-th largest of the 16-bit numbers, bit by bit."""
    value = np.uint16(0)
    for place in range(15, -1, -1):
        raised = np.uint16(value | np.uint16(np.uint16(1) << np.uint16(place)))
        value = raised if _at_least(numbers, raised) >= count else value
    return value


@inlined
def _equal(halves, high, bits, places, lows):
    """How many upper halves are equal to ``high``; also writes their places and their lower halves."""
    found = 0
    for start in range(0, halves.size, _BLOCK):
        piece, hits = halves[start : start + _BLOCK], np.uint8(0)
        for j in range(piece.size):
            hits = np.uint8(hits + np.uint8(piece[j] == high))
        if hits:
            for j in range(piece.size):
                places[found] = start + j
                lows[found] = np.uint16(bits[start + j] & np.uint32(0xFFFF))
                found += np.int64(piece[j] == high)
    return found


@inlined
def _least_near(bits, count, halves, places, lows):
    """The count-th largest number without its sign bit, and the last place of an equal one that counts.

    First its upper half is found, then the lower one among the numbers with this upper half.
    """
    for j in range(bits.size):
        halves[j] = np.uint16((bits[j] >> np.uint32(16)) & np.uint32(0x7FFF))
    high = _rank_value(halves, count)
    left = count - _at_least(halves, np.uint16(high + np.uint16(1)))
    few = lows[: _equal(halves, high, bits, places, lows)]
    low = _rank_value(few, left)
    for j in range(few.size):
        left -= np.int64(few[j] > low)
    last = 0
    for j in range(few.size):
        tie = few[j] == low
        last = places[j] if tie and left > 0 else last
        left -= np.int64(tie)
    return np.uint32(np.uint32(high) << np.uint32(16)) | np.uint32(low), last


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

    Where ``reverse`` is 1, the nearest ones are those of the opposite vector. The time depends on the
    vectors, but not on which vertex is drawn.
    """
    size = x.shape[1]
    halves, lows = np.empty(size, np.uint16), np.empty(size + 1, np.uint16)
    places, marks = np.empty(size + 1, np.int64), np.empty(size, np.uint8)
    for i in range(x.shape[0]):
        row = x[i]
        bits = row.view(np.uint32)
        least, last = _least_near(bits, nearest, halves, places, lows)
        for j in range(size):
            number = bits[j] & np.uint32(0x7FFFFFFF)
            marks[j] = np.uint8((number > least) | ((number == least) & (j <= last)))
        near = _reached(marks, min(ranks[i], nearest - 1))[0]
        negative = np.int64(row[near] < 0) ^ reverse[i]
        for j in range(size):
            marks[j] = np.uint8(2) - marks[j]
        far, before = _reached(marks, ranks[i])
        far = min(far, size - 1)
        step = ranks[i] - before
        step = (np.int64(row[far] < 0) ^ reverse[i] ^ 1) if marks[far] == 1 else step
        codes[i] = 2 * near + negative if sides[i] else 2 * far + step
