"""Sorted subsets from public words, through a bitmap; the largest numbers of an array."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from sqsgd.kernels.compiling import compiled, inlined


@intrinsic
def _lowest_bit(typing: Any, word: Any) -> Any:
    """The index of the lowest set bit."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), build


@compiled
def mark(marks, dim, missing, words):
    """Mark numbers drawn from 0..dim-1 until none is missing or the words end; returns how many are."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    uneven = np.uint64(4294967296) % dim
    for word in words:
        if missing == 0:
            break
        product = np.uint64(word) * dim
        number = product >> half
        place, at = number >> np.uint64(6), number & np.uint64(63)
        bit, old = np.uint64((product & low) >= uneven) << at, marks[place]  # no bit if the word is rejected
        missing -= np.int64((bit & ~old) >> at)
        marks[place] = old | bit
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
def add_at(total, places, values, scale):
    """total[places] += values scale; the places differ."""
    for i in range(places.size):
        total[places[i]] += values[i] * scale


@inlined
def _pick(numbers, count, picked):
    """Write the indices of the ``count`` largest numbers in rising order; returns the least of the numbers.

    One pass for each bit of the least number, which is the greatest that ``count`` numbers reach, and two for
    the indices, for which ``picked`` has room for one more.
    """
    least = above = np.uint32(0)
    for place in range(30, -1, -1):
        raised, enough = np.uint32(least | np.uint32(np.uint32(1) << np.uint32(place))), np.uint32(0)
        for i in range(numbers.size):  # by index: loops over an array itself are not vectorised
            enough = np.uint32(enough + np.uint32(numbers[i] >= raised))
        least = raised if enough >= count else least
    for i in range(numbers.size):
        above = np.uint32(above + np.uint32(numbers[i] > least))
    ties, at = count - np.int64(above), 0
    for i in range(numbers.size):
        equal = np.int64(numbers[i] == least)
        picked[at] = i
        at += np.int64(numbers[i] > least) | (equal & np.int64(ties > 0))
        ties -= equal
    return least


@inlined
def _fours(numbers, maxima):
    """The maximum of every four neighbours; of fewer at the end."""
    whole = numbers.size // 4
    for k in range(whole):
        low, high = max(numbers[4 * k], numbers[4 * k + 1]), max(numbers[4 * k + 2], numbers[4 * k + 3])
        maxima[k] = max(low, high)
    for i in range(4 * whole, numbers.size):
        maxima[whole] = max(maxima[whole], numbers[i])


@inlined
def _tournament(numbers, count, picked):
    """``_pick`` in fewer steps.

    Every four neighbours send their maximum one level up, until few are left. From the top down, each level
    then picks the ``count`` largest of the 4 count numbers below those that were picked on the level above.
    """
    ends, levels, size = np.zeros(20, np.int64), 0, numbers.size
    while size > 8 * count:
        size = (size + 3) // 4
        levels += 1
        ends[levels] = ends[levels - 1] + size
    maxima = np.zeros(ends[levels], np.uint32)
    below = numbers
    for level in range(levels):
        here = maxima[ends[level] : ends[level + 1]]
        _fours(below, here)
        below = here
    inside = np.empty(count + 1 if levels else 0, np.int64)
    few = np.empty(4 * count if levels else 0, np.uint32)
    least = _pick(below, count, picked)
    for level in range(levels - 1, -1, -1):
        below = maxima[ends[level - 1] : ends[level]] if level else numbers
        for k in range(4 * count):
            i = 4 * picked[k >> 2] + (k & 3)
            few[k] = below[i] if i < below.size else 0  # beyond the end: after all others
        least = _pick(few, count, inside)
        for k in range(count):
            inside[k] = 4 * picked[inside[k] >> 2] + (inside[k] & 3)
        for k in range(count):
            picked[k] = inside[k]
    return least


@compiled
def select_largest(bits, chosen):
    """Write the indices of the chosen.size largest numbers: those above the least one, then ties, in order.

    The numbers are not negative and passed as the bits of float32, which order them. How many steps are made
    depends on the two sizes alone; which numbers are read more than once depends on the numbers.
    """
    count = chosen.size
    picked = np.empty(count + 1, np.int64)
    least, tops = _tournament(bits, count, picked), 0
    for k in range(count):
        tops += np.int64(bits[picked[k]] > least)
    above, equal = 0, tops
    for k in range(count):
        top = np.int64(bits[picked[k]] > least)
        chosen[above if top else equal] = picked[k]
        above += top
        equal += 1 - top


@compiled
def select_signed(bits, codes):
    """Write 2 index + sign of the codes.size largest magnitudes, in rising order; the sign of -0 counts as +.

    The numbers are passed as the bits of float32. The work is that of ``select_largest``.
    """
    count = codes.size
    magnitudes, picked = np.empty(bits.size, np.uint32), np.empty(count + 1, np.int64)
    for i in range(bits.size):
        magnitudes[i] = bits[i] & np.uint32(0x7FFFFFFF)
    _tournament(magnitudes, count, picked)
    for k in range(count):
        codes[k] = 2 * picked[k] + np.int64(bits[picked[k]] > np.uint32(0x80000000))


@compiled
def select_signed_rows(bits, codes):
    """``select_signed`` of each row."""
    for i in range(bits.shape[0]):
        select_signed(bits[i], codes[i])


@compiled
def nth_marked(marks, rank):
    """The index of the rank-th mark (from 0) among bytes that are 0 or 1; the time depends on the size."""
    seen, index = np.int64(0), np.int64(0)
    for mark in marks:
        seen += np.int64(mark)
        index += np.int64(seen <= rank)
    return index
