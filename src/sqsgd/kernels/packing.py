"""Codes to bits and back. Eight codes at a time, or groups written as one number in base K."""

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
    """Write a 64-bit word at any byte."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _word_at(context, builder, signature.args[0], args[0], args[1]), align=1)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.uint64), build


@intrinsic
def _load(typing: Any, packed: Any, at: Any) -> Any:
    """Read a 64-bit word at any byte."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_word_at(context, builder, signature.args[0], args[0], args[1]), align=1)

    return types.uint64(packed, types.intp), build


@inlined
def _fold(codes, bits, out):
    """Each 64-bit word holds eight codes, one a byte: pack them into ``bits`` bytes, the first code lowest.

    Neighbours are joined three times: bytes to pairs, pairs to quadruples, quadruples to eight.
    ``out`` holds words of ``bits`` bytes where that is a machine width; else bytes, and eight more
    than are needed, because a whole word is written for each group and the next one covers its end.
    """
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    low = np.uint64(0xFFFFFFFF)
    singles, pairs = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    width = out.itemsize
    for i in range(codes.size):
        word = codes[i]
        word = (word & singles) | (((word >> np.uint64(8)) & singles) << one)
        word = (word & pairs) | (((word >> np.uint64(16)) & pairs) << two)
        word = (word & low) | ((word >> np.uint64(32)) << four)
        if width == bits:
            out[i] = word
        else:
            _store(out, bits * i, word)


@inlined
def _expand(packed, bits, codes):
    """The inverse of _fold, with the same room for eight more bytes."""
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    ones = ((np.uint64(1) << one) - np.uint64(1)) * np.uint64(0x0001000100010001)
    twos = ((np.uint64(1) << two) - np.uint64(1)) * np.uint64(0x0000000100000001)
    fours = (np.uint64(1) << four) - np.uint64(1)
    width = packed.itemsize
    for i in range(codes.size):
        word = np.uint64(packed[i]) if width == bits else _load(packed, bits * i)
        word = (word & fours) | (((word >> four) & fours) << np.uint64(32))
        word = (word & twos) | (((word >> two) & twos) << np.uint64(16))
        codes[i] = (word & ones) | (((word >> one) & ones) << np.uint64(8))


def _kernels(kind: Any) -> tuple[Any, Any]:
    """fold and expand for packed words of one type; all arrays are handed in as bytes."""

    def fold(codes, bits, target):
        size = (codes.size >> 3) * bits
        out = target[:size].view(kind) if kind_bytes > 1 else target.view(kind)
        _fold(codes.view(np.uint64), bits, out)

    def expand(source, bits, codes):
        size = (codes.size >> 3) * bits
        packed = source[:size].view(kind) if kind_bytes > 1 else source.view(kind)
        _expand(packed, bits, codes.view(np.uint64))

    kind_bytes = np.dtype(kind).itemsize
    return variant(fold, f"fold_{kind_bytes}"), variant(expand, f"expand_{kind_bytes}")


# By the bytes of eight codes: 2, 4 and 8 are machine words, any other number goes byte by byte.
FOLD, EXPAND = {}, {}
for _kind in (np.uint8, np.uint16, np.uint32, np.uint64):
    _width = np.dtype(_kind).itemsize
    FOLD[_width], EXPAND[_width] = _kernels(_kind)


@compiled
def fold_groups(codes, alphabet, group, width, last, out):
    """Each ``group`` codes become one number in base ``alphabet``, first code lowest, ``width`` bits wide.

    The last number is ``last`` bits wide. ``out`` starts as zeros.
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
    """The inverse of fold_groups; returns the first group that holds a number too large, or -1."""
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
