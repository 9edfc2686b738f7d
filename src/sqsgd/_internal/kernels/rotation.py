"""Vectors: random signs and the Walsh-Hadamard transform, sums of squares, and sums of vectors.

The transform of 64 numbers is vectorised explicitly for LLVM, which does not find the shuffles that it needs:
with plain loops the whole transform takes more than twice as long.
"""

from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from sqsgd._internal.kernels import compiled, inlined

LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8  # floats in one vector
BASE = 64  # floats transformed inside registers
LEAF = 4096  # floats transformed inside the first cache

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTEGERS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)


def _butterflies(builder: Any, rows: list[Any]) -> list[Any]:
    """H of 64 numbers in vectors: strides within a vector by shuffles, then those between vectors."""
    step = 1
    while step < LANES:  # lane i gets (partner + i) or (partner - i)
        partner = ir.Constant(_INTEGERS, [i ^ step for i in range(LANES)])
        signs = ir.Constant(_VECTOR, [-1.0 if i & step else 1.0 for i in range(LANES)])
        for i, row in enumerate(rows):
            swapped = builder.shuffle_vector(row, ir.Constant(_VECTOR, ir.Undefined), partner)
            rows[i] = builder.fadd(builder.fmul(row, signs), swapped)
        step *= 2
    step = 1
    while step < len(rows):
        for i in (i for i in range(len(rows)) if not i & step):
            low, high = rows[i], rows[i + step]
            rows[i], rows[i + step] = builder.fadd(low, high), builder.fsub(low, high)
        step *= 2
    return rows


def _splat(builder: Any, vector: Any, value: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(_INTEGERS, [0] * LANES))


def _flipped(builder: Any, row: Any, signs: Any, offset: int) -> Any:
    """Return a vector, as integers, with the signs changed that bits from ``offset`` on of a word say."""
    bits = builder.trunc(builder.lshr(signs, ir.Constant(signs.type, offset)), _INT)
    to_sign_bit = ir.Constant(_INTEGERS, [31 - i for i in range(LANES)])
    flips = builder.shl(_splat(builder, _INTEGERS, bits), to_sign_bit)
    flips = builder.and_(flips, ir.Constant(_INTEGERS, [1 << 31] * LANES))
    return builder.bitcast(builder.xor(row, flips), _VECTOR)


@intrinsic
def _transform64(typing: Any, source: Any, target: Any, at: Any, signs: Any, scale: Any, most: Any) -> Any:
    """target = scale H D source over 64 adjacent floats, in registers; bit i of signs negates element i.

    Returns a nonzero value if the bits of any magnitude exceed ``most``.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def place(which: int, offset: int) -> Any:
            start = builder.add(args[2], ir.Constant(args[2].type, offset))
            data = context.make_array(signature.args[which])(context, builder, args[which]).data
            return builder.bitcast(builder.gep(data, [start]), _VECTOR.as_pointer())

        signs, scale, most = args[3:]
        factor, limit = _splat(builder, _VECTOR, scale), _splat(builder, _INTEGERS, most)
        rows, odd = [], ir.Constant(ir.VectorType(ir.IntType(1), LANES), [0] * LANES)
        for offset in range(0, BASE, LANES):
            row = builder.bitcast(builder.load(place(0, offset), align=4), _INTEGERS)
            size = builder.and_(row, ir.Constant(_INTEGERS, [0x7FFFFFFF] * LANES))
            # as integers, infinity and NaN are largest
            odd = builder.or_(odd, builder.icmp_unsigned(">", size, limit))
            rows.append(builder.fmul(_flipped(builder, row, signs, offset), factor))
        for i, row in enumerate(_butterflies(builder, rows)):
            builder.store(row, place(1, i * LANES), align=4)
        return builder.zext(builder.bitcast(odd, ir.IntType(LANES)), _INT)

    kinds = (source, target, types.intp, types.uint64, types.float32, types.uint32)
    return types.uint32(*kinds), build


@inlined
def _eights(x, run):
    """Combine each eight neighbouring runs that are transformed. Slices of x let the loop vectorise."""
    for at in range(0, x.size, 8 * run):
        p0, p1, p2, p3 = x[at : at + run], x[at + run :], x[at + 2 * run :], x[at + 3 * run :]
        p4, p5, p6, p7 = x[at + 4 * run :], x[at + 5 * run :], x[at + 6 * run :], x[at + 7 * run :]
        for i in range(run):
            a0, a1, a2, a3 = p0[i] + p1[i], p0[i] - p1[i], p2[i] + p3[i], p2[i] - p3[i]
            a4, a5, a6, a7 = p4[i] + p5[i], p4[i] - p5[i], p6[i] + p7[i], p6[i] - p7[i]
            b0, b1, b2, b3 = a0 + a2, a1 + a3, a0 - a2, a1 - a3
            b4, b5, b6, b7 = a4 + a6, a5 + a7, a4 - a6, a5 - a7
            p0[i], p1[i], p2[i], p3[i] = b0 + b4, b1 + b5, b2 + b6, b3 + b7
            p4[i], p5[i], p6[i], p7[i] = b0 - b4, b1 - b5, b2 - b6, b3 - b7


@inlined
def _twos(x, run):
    """Combine each two neighbouring runs."""
    for at in range(0, x.size, 2 * run):
        first, second = x[at : at + run], x[at + run :]
        for i in range(run):
            low, high = first[i], second[i]
            first[i], second[i] = low + high, low - high


@inlined
def _rotate(source, whole, signs, scale, target, largest):
    """``rotate`` of a vector whose numbers from ``whole`` on, a multiple of 64, are in the target."""
    size, scale = target.size, np.float32(scale)
    most = np.array([largest], np.float32).view(np.uint32)[0]
    odd, leaf = np.uint32(0), size
    while leaf > LEAF:
        leaf //= 8
    for k in range(size // leaf):
        for at in range(k * leaf, (k + 1) * leaf, 64):
            odd |= _transform64(source if at < whole else target, target, at, signs[at >> 6], scale, most)
        run, part = 64, target[k * leaf : (k + 1) * leaf]
        while run * 8 <= leaf:
            _eights(part, run)
            run *= 8
        while run < leaf:
            _twos(part, run)
            run *= 2
        done = k + 1
        while done % 8 == 0 and run < size:
            _eights(target[(k + 1) * leaf - 8 * run : (k + 1) * leaf], run)
            done //= 8
            run *= 8
    return odd == 0


@compiled
def rotate(source, signs, scale, target, largest):
    """target = scale H D source, D the signs (bit i of the 64-bit words), H Walsh-Hadamard in natural order.

    Returns whether every magnitude in the source is at most ``largest`` (false for NaN). Source and target
    have the same power-of-two size and may be the same array. Depth first: eight finished siblings are
    combined while they are in cache. A cached recursive numba function would crash.

    The strides are 1, 2, 4, ... in this order on any processor, as docs/encoder.md says:
    tests/internal/test_rotation.py::test_the_rounding_is_the_documented_one.
    """
    if target.size >= 64:
        return _rotate(source, target.size, signs, scale, target, largest)
    fine = True
    for i in range(target.size):
        value = source[i] * np.float32(scale)
        fine = fine and np.abs(source[i]) <= np.float32(largest)
        target[i] = -value if (signs[0] >> np.uint64(i)) & np.uint64(1) else value
    run = 1
    while run < target.size:
        _twos(target, run)
        run *= 2
    return fine


@compiled
def flip_signs(x, signs):
    """Negate x[i] where bit i of the 64-bit words is set."""
    bits = x.view(np.uint32)
    for at in range(0, x.size, 64):
        word, here = signs[at >> 6], bits[at : at + 64]
        for i in range(here.size):
            here[i] ^= np.uint32((word >> np.uint64(i)) & np.uint64(1)) << np.uint32(31)


@compiled
def rotate_rows(source, signs, scale, target, largest, fine):
    """``rotate`` of each row, padded with zeros, once for each row of signs; ``fine``: its first answers."""
    width, size = source.shape[1], target.shape[1]
    for i in range(target.shape[0]):
        row = target[i]
        whole = width - width % 64
        row[whole:width] = source[i, whole:]
        row[width:] = np.float32(0)
        if size < 64:
            fine[i] = rotate(row, signs[0, i], scale, row, largest)
        else:
            fine[i] = _rotate(source[i], whole, signs[0, i], scale, row, largest)
        for r in range(1, signs.shape[0]):
            rotate(row, signs[r, i], scale, row, largest)


# Bit j of word k is set where the Hadamard matrix of 64 coordinates is negative in row j, column k.
_COLUMN_SIGNS = np.array(
    [sum(((j & k).bit_count() & 1) << j for j in range(64)) for k in range(64)], np.uint64
)


@inlined
def _add_column(code, signs):
    """signs ^= the signs of the column of H, or of its negative, for a code 2 column + sign."""
    column = code >> 1
    for word in range(signs.size):
        parity = word & (column >> 6)
        for shift in (16, 8, 4, 2, 1):
            parity ^= parity >> shift
        flips = np.uint64(0) - np.uint64((parity ^ code) & 1)
        signs[word] ^= _COLUMN_SIGNS[column & 63] ^ flips


@compiled
def unrotate_codes(codes, signs, scale, x):
    """Each row of x = the inverse rotation of the vector with ± 1 at the places of codes 2 place + sign.

    A single place needs no transform for the last round: its image is a column of H.
    """
    size, rounds = x.shape[1], signs.shape[0]
    even, own = np.full(size, np.float32(scale), np.float32), np.empty(signs.shape[2], np.uint64)
    for i in range(x.shape[0]):
        row = x[i]
        done = rounds - 1
        if codes.shape[1] == 1 and done:
            own[:] = signs[done, i]
            _add_column(np.int64(codes[i, 0]), own)
            rotate(even, own, scale, row, np.inf)
            done -= 1
        else:
            row[:] = np.float32(0)
            for code in codes[i]:
                row[code >> 1] = np.float32(1 - 2 * np.int64(code & 1))
            own[:] = np.uint64(0)
            rotate(row, own, scale, row, np.inf)
        for r in range(done, 0, -1):
            rotate(row, signs[r, i], scale, row, np.inf)
        flip_signs(row, signs[0, i])


@compiled
def add_rows(x, factors, total):
    """total += factor x[i] for each row i, one after the other, in float64 and as far as the total goes."""
    for i in range(x.shape[0]):
        row, factor = x[i], factors[i]
        for j in range(total.size):
            total[j] += np.float64(row[j]) * factor


@compiled
def narrow(y, bits, x):
    """x = y / factor in float32. Returns the factor, the largest of |y| (or one); ``bits``: the bits of y."""
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


@compiled
def add_at(total, places, values, scale):
    """total[places] += values scale; the places differ."""
    for i in range(places.size):
        total[places[i]] += values[i] * scale


@compiled
def accumulate(codes, factor, offset, total):
    """total += factor codes + offset."""
    factor, offset = np.float32(factor), np.float32(offset)
    for i in range(codes.size):
        total[i] += np.float32(factor * np.float32(codes[i])) + offset


@compiled
def within(x, limit):
    """Whether every |x[i]| <= limit; false for NaN."""
    odd = np.uint8(0)
    most = np.float32(limit)
    for i in range(x.size):
        odd = np.uint8(odd | np.uint8(not np.abs(x[i]) <= most))
    return odd == 0


@compiled
def square_sum(x):
    """Σ x², as 64 interleaved sums: a single one cannot be vectorised, because additions do not commute."""
    sums = np.zeros(64)
    whole = x.size - x.size % 64
    for start in range(0, whole, 64):
        for i in range(64):
            value = np.float64(x[start + i])
            sums[i] += value * value
    for i in range(whole, x.size):
        value = np.float64(x[i])
        sums[i - whole] += value * value
    return sums.sum()


@compiled
def square_sums(x, sums):
    """``square_sum`` of each row."""
    for i in range(x.shape[0]):
        sums[i] = square_sum(x[i])
