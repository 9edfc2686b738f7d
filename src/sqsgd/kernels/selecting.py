"""Sorted subsets from public words, through a bitmap; the largest numbers of an array."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from sqsgd.kernels.compiling import compiled


@intrinsic
def _lowest_bit(typing: Any, word: Any) -> Any:
    """The index of the lowest set bit."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), build


@compiled
def mark(marks, dim, missing, words):
    """Mark numbers drawn from 0..dim-1 until none is missing or the words end; returns how many are."""
    half, low, one = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(1)
    uneven = np.uint64(4294967296) % dim
    for word in words:
        if missing == 0:
            break
        product = np.uint64(word) * dim
        if (product & low) < uneven:
            continue
        number = product >> half
        bit = one << (number & np.uint64(63))
        place = number >> np.uint64(6)
        if not marks[place] & bit:
            marks[place] |= bit
            missing -= 1
    return missing


@compiled
def marked(marks, dim, which, chosen):
    """Write the numbers below dim that are marked (or, if ``which`` is false, not marked), in order."""
    count = 0
    for place in range(marks.size):
        word = marks[place] if which else ~marks[place]
        while word:
            number = 64 * place + np.int64(_lowest_bit(word))
            if number >= dim:
                break
            chosen[count] = number
            count += 1
            word &= word - np.uint64(1)


@compiled
def select_largest(bits, chosen):
    """Write the indices of the chosen.size largest numbers: those above the least one, then ties, in order.

    The numbers are not negative and passed as the bits of float32, which order them. The time depends on the
    two sizes alone: one pass over the array for each bit of the least number, and one for the indices.
    """
    count = chosen.size
    least = np.uint32(0)
    for place in range(30, -1, -1):
        raised = least | np.uint32(np.uint32(1) << np.uint32(place))
        enough = np.int64(0)
        for number in bits:
            enough += np.int64(number >= raised)
        least = raised if enough >= count else least
    above, equal = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    tops = ties = 0
    for i in range(bits.size):
        above[tops] = i
        equal[ties] = i
        tops += np.int64(bits[i] > least)
        ties = min(ties + np.int64(bits[i] == least), count)
    for i in range(count):
        chosen[i] = above[i] if i < tops else equal[i - tops]


@compiled
def nth_marked(marks, rank):
    """The index of the rank-th mark (from 0) among bytes that are 0 or 1; the time depends on the size."""
    seen, index = np.int64(0), np.int64(0)
    for mark in marks:
        seen += np.int64(mark)
        index += np.int64(seen <= rank)
    return index
