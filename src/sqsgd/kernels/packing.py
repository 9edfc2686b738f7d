"""Pack codes into bits and unpack them: eight codes at a time, or groups as one number in base K."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from sqsgd.kernels.compiling import compiled, inlined, variant


def _word_at(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), ir.IntType(64).as_pointer())


@intrinsic
def _store(typing: Any, out: Any, at: Any, word: Any) -> Any:
    """Write a 64-bit word at any byte offset."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _word_at(context, builder, signature.args[0], args[0], args[1]), align=1)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.uint64), build


@intrinsic
def _load(typing: Any, packed: Any, at: Any) -> Any:
    """Read a 64-bit word at any byte offset."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_word_at(context, builder, signature.args[0], args[0], args[1]), align=1)

    return types.uint64(packed, types.intp), build


@inlined
def _join(codes, bits, out):
    """Pack the eight codes of each 64-bit word, one per byte, into its low bits, the first code lowest.

    Neighbours are joined three times: bytes to pairs, pairs to quadruples, quadruples to eight.
    """
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    low = np.uint64(0xFFFFFFFF)
    singles, pairs = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    for i in range(codes.size):
        word = codes[i]
        word = (word & singles) | (((word >> np.uint64(8)) & singles) << one)
        word = (word & pairs) | (((word >> np.uint64(16)) & pairs) << two)
        out[i] = (word & low) | ((word >> np.uint64(32)) << four)


@inlined
def _part(packed, bits, codes):
    """The inverse of _join."""
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    ones = ((np.uint64(1) << one) - np.uint64(1)) * np.uint64(0x0001000100010001)
    twos = ((np.uint64(1) << two) - np.uint64(1)) * np.uint64(0x0000000100000001)
    fours = (np.uint64(1) << four) - np.uint64(1)
    for i in range(codes.size):
        word = np.uint64(packed[i])
        word = (word & fours) | (((word >> four) & fours) << np.uint64(32))
        word = (word & twos) | (((word >> two) & twos) << np.uint64(16))
        codes[i] = (word & ones) | (((word >> one) & ones) << np.uint64(8))


@compiled
def fold_any(codes, bits, target):
    """Pack each eight codes into ``bits`` bytes. Each write is a whole word; the next overwrites its end."""
    words, joined = codes.view(np.uint64), np.empty(512, np.uint64)
    for first in range(0, words.size, 512):  # joining apart from storing, so that it vectorises
        last = min(first + 512, words.size)
        _join(words[first:last], bits, joined)
        for i in range(first, last):
            _store(target, bits * i, joined[i - first])


@compiled
def expand_any(source, bits, codes):
    """The inverse of fold_any."""
    words, joined = codes.view(np.uint64), np.empty(512, np.uint64)
    for first in range(0, words.size, 512):
        last = min(first + 512, words.size)
        for i in range(first, last):
            joined[i - first] = _load(source, bits * i)
        _part(joined, bits, words[first:last])


def _kernels(kind: Any) -> tuple[Any, Any]:
    """fold and expand where eight codes fill one machine word; all arrays are passed as bytes."""

    def fold(codes, bits, target):
        _join(codes.view(np.uint64), bits, target[: (codes.size >> 3) * bits].view(kind))

    def expand(source, bits, codes):
        _part(source[: (codes.size >> 3) * bits].view(kind), bits, codes.view(np.uint64))

    width = np.dtype(kind).itemsize
    return variant(fold, f"fold_{width}"), variant(expand, f"expand_{width}")


# Keyed by the bits of a code. Packed arrays are bytes, eight more than needed.
FOLD: dict[int, Any] = dict.fromkeys(range(1, 9), fold_any)
EXPAND: dict[int, Any] = dict.fromkeys(range(1, 9), expand_any)
for _bits, _kind in ((1, np.uint8), (2, np.uint16), (4, np.uint32), (8, np.uint64)):
    FOLD[_bits], EXPAND[_bits] = _kernels(_kind)


@compiled
def fold_groups(codes, alphabet, group, width, last, out):
    """Each ``group`` codes become one number in base ``alphabet``, first code lowest, ``width`` bits wide.

    The last number is ``last`` bits wide. ``out`` must be zero.
    """
    at = np.int64(0)
    for first in range(0, codes.size, group):
        number = np.uint64(0)
        for i in range(min(first + group, codes.size) - 1, first - 1, -1):
            number = number * np.uint64(alphabet) + np.uint64(codes[i])
        left = width if first + group < codes.size else last
        while left > 0:
            shift = at & 7
            out[at >> 3] |= np.uint8((number << np.uint64(shift)) & np.uint64(255))
            taken = min(8 - shift, left)
            number >>= np.uint64(taken)
            at += taken
            left -= taken


@compiled
def expand_groups(packed, alphabet, group, width, last, codes):
    """The inverse of fold_groups; returns the first group whose number is out of range, or -1."""
    at = np.int64(0)
    for first in range(0, codes.size, group):
        number = np.uint64(0)
        got = 0
        wide = width if first + group < codes.size else last
        while got < wide:
            shift = at & 7
            taken = min(8 - shift, wide - got)
            piece = (np.uint64(packed[at >> 3]) >> np.uint64(shift)) & np.uint64((1 << taken) - 1)
            number |= piece << np.uint64(got)
            at += taken
            got += taken
        for i in range(first, min(first + group, codes.size)):
            codes[i] = number % np.uint64(alphabet)
            number //= np.uint64(alphabet)
        if number:
            return first // group
    return -1
