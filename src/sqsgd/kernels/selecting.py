"""Sorted subsets from public words, through a bitmap."""

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
