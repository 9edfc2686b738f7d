"""Check, round to levels, privatise to an exact number of matches, and sum."""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from sqsgd.kernels.compiling import compiled, inlined


@compiled
def within(x, limit):
    """Whether every |x[i]| <= limit; false for NaN."""
    odd = np.uint8(0)
    most = np.float32(limit)
    for i in range(x.size):
        odd = np.uint8(odd | np.uint8(not np.abs(x[i]) <= most))
    return odd == 0


@intrinsic
def _round16(typing: Any, x: Any, noise: Any, codes: Any, at: Any, factor: Any, offset: Any) -> Any:
    """Sixteen coordinates of round_randomly; bit i of the result marks a tie, bit 16 + i NaN or ∞."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def place(which: int, kind: Any) -> Any:
            data = context.make_array(signature.args[which])(context, builder, args[which]).data
            return builder.bitcast(builder.gep(data, [args[3]]), kind.as_pointer())

        def splat(value: Any) -> Any:
            undefined = ir.Constant(floats, ir.Undefined)
            one = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(one, undefined, ir.Constant(integers, [0] * 16))

        floats, integers = ir.VectorType(ir.FloatType(), 16), ir.VectorType(ir.IntType(32), 16)
        shorts, octets = ir.VectorType(ir.IntType(16), 16), ir.VectorType(ir.IntType(8), 16)
        zero, top = ir.Constant(floats, [0.0] * 16), splat(builder.fadd(args[5], args[5]))
        here = builder.load(place(0, floats), align=4)
        t = builder.fadd(builder.fmul(here, splat(args[4])), splat(args[5]))
        t = builder.select(builder.fcmp_ordered(">", t, zero), t, zero)
        t = builder.select(builder.fcmp_ordered("<", t, top), t, top)
        fixed = builder.fptosi(builder.fmul(t, ir.Constant(floats, [65536.0] * 16)), integers)
        words = builder.zext(builder.load(place(1, shorts), align=2), integers)
        total = builder.add(fixed, words)
        levels = builder.trunc(builder.lshr(total, ir.Constant(integers, [16] * 16)), octets)
        builder.store(levels, place(2, octets), align=1)
        ones = ir.Constant(shorts, [65535] * 16)
        ties = builder.bitcast(
            builder.icmp_unsigned("==", builder.trunc(total, shorts), ones), ir.IntType(16)
        )
        nothing = builder.fsub(here, here)
        odd = builder.bitcast(builder.fcmp_unordered("uno", nothing, nothing), ir.IntType(16))
        high = builder.shl(builder.zext(odd, ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.or_(builder.zext(ties, ir.IntType(32)), high)

    signature = types.uint32(x, noise, codes, types.intp, types.float32, types.float32)
    return signature, build


@inlined
def _round_one(value, factor, offset, noise, fine):
    """One coordinate of round_randomly, with 32 more bits to resolve a tie."""
    t = np.float32(np.float32(factor * value) + offset)
    t = t if t > np.float32(0) else np.float32(0)
    t = t if t < np.float32(2) * offset else np.float32(2) * offset
    fixed = t * np.float32(65536)
    total = np.int32(np.int32(fixed) + np.int32(noise))
    rest = np.float64(fixed - np.float32(np.int32(fixed))) * 4294967296.0
    settled = np.int32(np.uint16(total) == np.uint16(65535) and np.float64(fine) < rest)
    return np.uint8((total >> 16) + settled)


@compiled
def round_randomly(x, factor, offset, noise, spare, codes):
    """codes[i] is floor(t) or floor(t) + 1 with mean t = factor x[i] + offset, clamped to 0..2 offset.

    In 16-bit fixed point, t + noise carries with the right probability up to the fraction below the
    sixteenth bit. If all sixteen bits of the sum are ones, 32 spare bits decide by that fraction. There are
    eight spare words for each run of 256 coordinates. Returns whether all of x is finite.
    """
    factor, offset = np.float32(factor), np.float32(offset)
    odd = False
    used = 0  # spare words of this run
    whole = x.size & ~15
    for at in range(0, whole, 16):
        if at & 255 == 0:
            used = 0
        flags = _round16(x, noise, codes, at, factor, offset)
        if flags:
            odd = odd or (flags >> np.uint32(16)) != 0
            for i in range(16):
                if (flags >> np.uint32(i)) & np.uint32(1):
                    fine = spare[8 * (at >> 8) + (used & 7)]
                    codes[at + i] = _round_one(x[at + i], factor, offset, noise[at + i], fine)
                    used += 1
    for i in range(whole, x.size):
        odd = odd or not np.abs(x[i]) < np.inf
        fine = spare[8 * (i >> 8) + (i & 7)]
        codes[i] = _round_one(x[i], factor, offset, noise[i], fine)
    return not odd


@inlined
def _scramble_bits(codes, bits, keep, whole, noise, out):
    """For 2^bits levels: keep a code if its noise is below ``keep``, else take the noise's low bits.

    ``keep``, of the noise's type, is a multiple of 2^bits, so both parts of the noise are
    independent. ``whole`` keeps every code, in the same time. Returns how many codes match. Coordinates
    are alike and independent: the matches are exchangeable, and a code that does not match is uniform over
    the others.
    """
    mask = np.uint8((1 << bits) - 1)
    matches = 0
    for first in range(0, codes.size, 128):  # so that a count fits a byte
        last = min(first + 128, codes.size)
        here, words, target = codes[first:last], noise[first:last], out[first:last]
        count = np.uint8(0)
        for i in range(here.size):
            code = here[i]
            new = code if (words[i] < keep) | whole else np.uint8(np.uint8(words[i]) & mask)
            target[i] = new
            count = np.uint8(count + np.uint8(new == code))
        matches += count
    return matches


@compiled
def scramble_bytes(codes, bits, keep, noise, out):
    """Scramble with one byte of noise per coordinate. A negative ``keep`` keeps every code."""
    return _scramble_bits(codes, bits, np.uint8(max(keep, 0)), keep < 0, noise, out)


@compiled
def scramble_pairs(codes, bits, keep, noise, out):
    """Scramble with two bytes of noise per coordinate."""
    return _scramble_bits(codes, bits, np.uint16(max(keep, 0)), keep < 0, noise, out)


@compiled
def scramble(codes, levels, keep, noise, out):
    """Like scramble_bytes for any number of levels: multiply-and-shift maps the low half of the noise.

    Where that map would be uneven, the code is kept. All coordinates still behave alike, which is all that
    the exact adjustment afterwards needs.
    """
    uneven = np.uint32(65536 % levels)
    factor = np.uint32(levels)
    least = np.uint32(keep if keep >= 0 else 65536)
    matches = 0
    for i in range(codes.size):
        product = np.uint32(np.uint32(noise[i] & np.uint32(65535)) * factor)
        even = np.uint32(product & np.uint32(65535)) >= uneven
        stay = (np.uint32(noise[i] >> np.uint32(16)) < least) | (not even)
        new = codes[i] if stay else np.uint8(product >> np.uint32(16))
        out[i] = new
        matches += np.int64(new == codes[i])
    return matches


@compiled
def adjust(codes, out, matches, wanted, levels, words):
    """Change uniformly drawn coordinates until the number of matches is ``wanted``; returns the number.

    Each 64-bit word is one try: its upper half gives a coordinate and its lower half another code, both by
    multiply-and-shift with rejection. Call again with new words until the number is right. The time depends
    on the number of words alone: a try that changes nothing writes what was there.
    """
    size, others = np.uint64(codes.size), np.uint64(levels - 1)
    half = np.uint64(32)
    low = np.uint64(0xFFFFFFFF)
    uneven_size = np.uint64(4294967296 % codes.size)
    uneven_others = np.uint64(4294967296 % (levels - 1))
    for word in words:
        place, shift = np.uint64(word >> half) * size, np.uint64(word & low) * others
        i = np.int64(place >> half)
        code, here = codes[i], out[i]
        other = np.int64(code) + 1 + np.int64(shift >> half)
        other -= levels if other >= levels else 0
        even, matching = np.int64((place & low) >= uneven_size), np.int64(here == code)
        up = even & (1 - matching) & np.int64(matches < wanted)
        down = even & matching & np.int64(matches > wanted) & np.int64((shift & low) >= uneven_others)
        # Sums instead of branches, whose time would depend on what is drawn.
        out[i] = np.uint8(np.int64(here) + up * (np.int64(code) - here) + down * (other - here))
        matches += up - down
    return matches


@compiled
def round_and_scramble_bytes(x, factor, offset, keep, bits, words, codes, out, wanted):
    """round_randomly, scramble_bytes and adjust over (a piece of) x; the matches, or -1 if x is not finite.

    ``words`` holds the noise of all three in this order: scrambling, rounding, spare bits of rounding, tries
    of adjusting. A negative ``wanted`` skips the adjustment.
    """
    size = x.size
    rounding = size + (-size & 7)
    spares = rounding + 2 * size + (-2 * size & 7)
    tries = spares + 32 * ((size + 255) // 256)
    noise = words[rounding : rounding + 2 * size].view(np.uint16)
    finite = round_randomly(x, factor, offset, noise, words[spares:tries].view(np.uint32), codes)
    matches = scramble_bytes(codes, bits, keep, words[:size], out)
    if wanted >= 0:
        rest = words[tries:].view(np.uint64)
        matches = adjust(codes, out, matches, wanted, 1 << bits, rest)
    return matches if finite else -1


@compiled
def round_and_scramble_pairs(x, factor, offset, keep, bits, words, codes, out, wanted):
    """Like round_and_scramble_bytes, with scramble_pairs: two bytes of noise per coordinate."""
    size = x.size
    spares = 4 * size + (-4 * size & 7)
    tries = spares + 32 * ((size + 255) // 256)
    noise = words[2 * size : 4 * size].view(np.uint16)
    finite = round_randomly(x, factor, offset, noise, words[spares:tries].view(np.uint32), codes)
    matches = scramble_pairs(codes, bits, keep, words[: 2 * size].view(np.uint16), out)
    if wanted >= 0:
        rest = words[tries:].view(np.uint64)
        matches = adjust(codes, out, matches, wanted, 1 << bits, rest)
    return matches if finite else -1


@compiled
def accumulate(codes, factor, offset, total):
    """total += factor codes + offset."""
    factor, offset = np.float32(factor), np.float32(offset)
    for i in range(codes.size):
        total[i] += np.float32(factor * np.float32(codes[i])) + offset
