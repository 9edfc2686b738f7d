"""Random signs and the Walsh-Hadamard transform, vectorised explicitly for LLVM."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from sqsgd.kernels.compiling import compiled, inlined

LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8  # floats in one vector
BASE = 64  # floats transformed inside registers

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTEGERS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)


def _butterflies(builder: Any, rows: list[Any]) -> list[Any]:
    """H over the list of vectors: a power of two of them, combined lane by lane."""
    step = 1
    while step < len(rows):
        for start in range(0, len(rows), 2 * step):
            for i in range(start, start + step):
                low, high = rows[i], rows[i + step]
                rows[i], rows[i + step] = builder.fadd(low, high), builder.fsub(low, high)
        step *= 2
    return rows


def _lane_butterflies(builder: Any, row: Any) -> Any:
    """H over the lanes of one vector: lane i gets (partner + i) or (partner - i)."""
    step = 1
    while step < LANES:
        partner = ir.Constant(ir.VectorType(_INT, LANES), [i ^ step for i in range(LANES)])
        signs = ir.Constant(_VECTOR, [-1.0 if i & step else 1.0 for i in range(LANES)])
        swapped = builder.shuffle_vector(row, ir.Constant(_VECTOR, ir.Undefined), partner)
        row = builder.fadd(builder.fmul(row, signs), swapped)
        step *= 2
    return row


def _vectors(context: Any, builder: Any, kind: Any, array: Any, starts: list[Any]) -> list[Any]:
    data = context.make_array(kind)(context, builder, array).data
    return [builder.bitcast(builder.gep(data, [at]), _VECTOR.as_pointer()) for at in starts]


def _splat(builder: Any, kind: Any, value: Any) -> Any:
    vector = _VECTOR if kind is _FLOAT else _INTEGERS
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES))


def _flips(builder: Any, signs: Any, which: int) -> Any:
    """The sign bits to change in a vector, from its bits of a 64-bit word."""
    bits = builder.trunc(builder.lshr(signs, ir.Constant(signs.type, LANES * which)), _INT)
    to_sign_bit = ir.Constant(_INTEGERS, [31 - i for i in range(LANES)])
    sign_bit = ir.Constant(_INTEGERS, [1 << 31] * LANES)
    return builder.and_(builder.shl(_splat(builder, _INT, bits), to_sign_bit), sign_bit)


def _combine(radix: int) -> Any:
    """An intrinsic (x, at, stride): H over the ``radix`` vectors at ``at``, ``at + stride``, ..."""

    @intrinsic
    def combine(typing: Any, x: Any, at: Any, stride: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            starts = [args[1]]
            for _ in range(radix - 1):
                starts.append(builder.add(starts[-1], args[2]))
            places = _vectors(context, builder, signature.args[0], args[0], starts)
            rows = _butterflies(builder, [builder.load(place, align=4) for place in places])
            for place, row in zip(places, rows, strict=True):
                builder.store(row, place, align=4)
            return context.get_dummy_value()

        return types.void(x, types.intp, types.intp), build

    return combine


_combine2, _combine4, _combine8 = _combine(2), _combine(4), _combine(8)


@intrinsic
def _transform64(typing: Any, source: Any, target: Any, at: Any, signs: Any, scale: Any, most: Any) -> Any:
    """target = scale H D source over 64 adjacent floats, in registers; bit i of signs negates element i.

    Returns a nonzero value if the bits of any magnitude exceed ``most``.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, signs, scale, most = args[2:]
        starts = [builder.add(start, ir.Constant(start.type, i)) for i in range(0, BASE, LANES)]
        sources = _vectors(context, builder, signature.args[0], args[0], starts)
        targets = _vectors(context, builder, signature.args[1], args[1], starts)
        factor = _splat(builder, _FLOAT, scale)
        limit, odd = _splat(builder, _INT, most), None
        rows = []
        for i, place in enumerate(sources):
            row = builder.bitcast(builder.load(place, align=4), _INTEGERS)
            size = builder.and_(row, ir.Constant(_INTEGERS, [0x7FFFFFFF] * LANES))
            beyond = builder.icmp_unsigned(">", size, limit)  # as integers, infinity and NaN are largest
            odd = beyond if odd is None else builder.or_(odd, beyond)
            flipped = builder.xor(row, _flips(builder, signs, i))
            scaled = builder.fmul(builder.bitcast(flipped, _VECTOR), factor)
            rows.append(_lane_butterflies(builder, scaled))
        for place, row in zip(targets, _butterflies(builder, rows), strict=True):
            builder.store(row, place, align=4)
        return builder.zext(builder.bitcast(odd, ir.IntType(LANES)), _INT)

    kinds = (source, target, types.intp, types.uint64, types.float32, types.uint32)
    return types.uint32(*kinds), build


@intrinsic
def _flip64(typing: Any, x: Any, at: Any, signs: Any) -> Any:
    """Negate element i of 64 adjacent floats where bit i of signs is set."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, signs = args[1:]
        starts = [builder.add(start, ir.Constant(start.type, i)) for i in range(0, BASE, LANES)]
        for i, place in enumerate(_vectors(context, builder, signature.args[0], args[0], starts)):
            row = builder.bitcast(builder.load(place, align=4), _INTEGERS)
            flipped = builder.xor(row, _flips(builder, signs, i))
            builder.store(builder.bitcast(flipped, _VECTOR), place, align=4)
        return context.get_dummy_value()

    return types.void(x, types.intp, types.uint64), build


@compiled
def _combine_cached(x, start, size):
    """Combine transformed runs of 64 into one of ``size``."""
    run = 64
    while run * 8 <= size:
        for block in range(start, start + size, 8 * run):
            for at in range(block, block + run, LANES):
                _combine8(x, at, run)
        run *= 8
    if run * 4 <= size:
        for block in range(start, start + size, 4 * run):
            for at in range(block, block + run, LANES):
                _combine4(x, at, run)
    elif run * 2 <= size:
        for block in range(start, start + size, 2 * run):
            for at in range(block, block + run, LANES):
                _combine2(x, at, run)


@compiled
def _rotate_small(source, signs, scale, target):
    for i in range(target.size):
        value = source[i] * scale
        target[i] = -value if (signs[0] >> np.uint64(i)) & np.uint64(1) else value
    run = 1
    while run < target.size:
        for block in range(0, target.size, 2 * run):
            for i in range(block, block + run):
                low, high = target[i], target[i + run]
                target[i], target[i + run] = low + high, low - high
        run *= 2


@inlined
def _rotate(source, whole, signs, scale, target, largest):
    """``rotate`` of a vector whose numbers from ``whole`` on, a multiple of 64, are in the target."""
    size, scale = target.size, np.float32(scale)
    most = np.array([largest], np.float32).view(np.uint32)[0]
    odd = np.uint32(0)
    leaf = size
    while leaf > 4096:
        leaf //= 8
    for k in range(size // leaf):
        for at in range(k * leaf, (k + 1) * leaf, 64):
            odd |= _transform64(source if at < whole else target, target, at, signs[at >> 6], scale, most)
        _combine_cached(target, k * leaf, leaf)
        done, run = k + 1, leaf
        while done % 8 == 0 and run < size:
            first = (k + 1) * leaf - 8 * run
            for at in range(first, first + run, LANES):
                _combine8(target, at, run)
            done //= 8
            run *= 8
    return odd == 0


@compiled
def rotate(source, signs, scale, target, largest):
    """target = scale H D source, D the signs (bit i of the 64-bit words), H Walsh-Hadamard in natural order.

    Returns whether every magnitude in the source is at most ``largest`` (false for NaN). Source and target
    have the same power-of-two size and may be the same array. The order of blocks is depth first: eight
    finished siblings are combined while they are still in cache. It is iterative because a cached recursive
    numba function crashes when another cached one calls it.

    Every number passes through the strides 1, 2, 4, ... in this order, whatever the processor, so that
    encoders in other languages find the same bits (docs/encoder.md):
    tests/kernels/test_rotation.py::test_the_rounding_is_the_documented_one.
    """
    if target.size < 64:
        fine = True
        for value in source:
            fine = fine and np.abs(value) <= np.float32(largest)
        _rotate_small(source, signs, np.float32(scale), target)
        return fine
    return _rotate(source, target.size, signs, scale, target, largest)


@compiled
def flip_signs(x, signs):
    """Negate x[i] where bit i of the 64-bit words is set."""
    whole = x.size - x.size % BASE
    for at in range(0, whole, BASE):
        _flip64(x, at, signs[at >> 6])
    for i in range(whole, x.size):
        if (signs[i >> 6] >> np.uint64(i & 63)) & np.uint64(1):
            x[i] = -x[i]


@compiled
def rotate_rows(source, first, second, scale, target, largest, fine):
    """Each row of the target = the rotation of the source's row, padded with zeros; a row of signs for each.

    A second round follows if ``second`` has rows. ``fine`` tells which rows ``rotate`` accepts.
    """
    width, size = source.shape[1], target.shape[1]
    for i in range(target.shape[0]):
        row = target[i]
        whole = width - width % 64
        row[whole:width] = source[i, whole:]
        row[width:] = np.float32(0)
        if size < 64:
            fine[i] = rotate(row, first[i], scale, row, largest)
        else:
            fine[i] = _rotate(source[i], whole, first[i], scale, row, largest)
        if second.shape[0]:
            rotate(row, second[i], scale, row, largest)


def _column_signs() -> Any:
    """Bit j of word k is set where the Hadamard matrix of 64 coordinates is negative in row j, column k."""
    return np.array([sum(((j & k).bit_count() & 1) << j for j in range(64)) for k in range(64)], np.uint64)


_COLUMN_SIGNS = _column_signs()


@inlined
def _add_column(code, signs):
    """signs ^= those of the column of H, or of its negative, that a code 2 column + sign stands for."""
    column = code >> 1
    for word in range(signs.size):
        parity = word & (column >> 6)
        for shift in (16, 8, 4, 2, 1):
            parity ^= parity >> shift
        flips = np.uint64(0) - np.uint64((parity ^ code) & 1)
        signs[word] ^= _COLUMN_SIGNS[column & 63] ^ flips


@compiled
def unrotate_codes(codes, first, second, scale, x):
    """Each row of x = the inverse rotation of the vector with ± 1 at the places of codes 2 place + sign.

    A single place needs no transform for the last round of the rotation: its image is a column of H, whose
    entries are all ± scale.
    """
    size = x.shape[1]
    even, signs = np.full(size, np.float32(scale), np.float32), np.empty(first.shape[1], np.uint64)
    for i in range(x.shape[0]):
        row = x[i]
        if codes.shape[1] == 1 and second.shape[0]:
            signs[:] = second[i]
            _add_column(np.int64(codes[i, 0]), signs)
            rotate(even, signs, scale, row, np.inf)
        else:
            row[:] = np.float32(0)
            for code in codes[i]:
                row[code >> 1] = np.float32(1 - 2 * np.int64(code & 1))
            signs[:] = np.uint64(0)
            rotate(row, signs, scale, row, np.inf)
            if second.shape[0]:
                rotate(row, second[i], scale, row, np.inf)
        flip_signs(row, first[i])


@compiled
def add_rows(x, factors, total):
    """total += factor x[i] for each row i, one after the other and as far as the total goes.

    The sums are those of adding one vector at a time in float64, to the last bit.
    """
    for i in range(x.shape[0]):
        row, factor = x[i], factors[i]
        for j in range(total.size):
            total[j] += np.float64(row[j]) * factor


@compiled
def narrow(y, bits, x):
    """x = y / factor in float32; returns the factor, the largest magnitude of y (one if y is zero).

    ``bits`` are those of y: as integers, their largest is found by a vectorised loop.
    """
    largest = np.int64(0)
    for i in range(bits.size):
        largest = max(largest, bits[i] & np.int64(0x7FFFFFFFFFFFFFFF))
    factor = np.array([largest]).view(np.float64)[0] if largest else 1.0
    for i in range(y.size):
        x[i] = y[i] / factor
    return factor


@compiled
def add_scaled(x, factor, total):
    """total += factor x for the first total.size numbers of x."""
    for i in range(total.size):
        total[i] += np.float64(x[i]) * factor
