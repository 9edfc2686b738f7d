"""Checking, rounding to levels, moving to an exact number of matches, summing."""

from __future__ import annotations

import numpy as np

from sqsgd.kernels.compiling import compiled, inlined


@compiled
def within(x, limit):
    """Whether every |x[i]| <= limit; a NaN is not."""
    odd = np.uint8(0)
    most = np.float32(limit)
    for i in range(x.size):
        odd = np.uint8(odd | np.uint8(not np.abs(x[i]) <= most))
    return odd == 0


@compiled
def round_randomly(x, factor, offset, noise, spare, codes):
    """codes[i] is floor(t) or floor(t) + 1 with mean t = factor x[i] + offset, clamped to 0..2 offset.

    In 16-bit fixed point t + noise carries with the right probability but for what lies below the
    sixteenth bit; that decides when all sixteen bits of the sum are ones, with 32 spare bits (eight
    such for each run of 256). Returns whether all of x is finite.
    """
    odd = np.uint8(0)
    factor, offset = np.float32(factor), np.float32(offset)
    top = np.float32(2) * offset
    for first in range(0, x.size, 256):
        last = min(first + 256, x.size)
        here, words, target = x[first:last], noise[first:last], codes[first:last]
        tied = np.uint8(0)
        for i in range(here.size):
            t = np.float32(np.float32(factor * here[i]) + offset)
            t = t if t > np.float32(0) else np.float32(0)
            t = t if t < top else top
            total = np.int32(np.int32(t * np.float32(65536)) + np.int32(words[i]))
            target[i] = np.uint8(total >> 16)
            tied = np.uint8(tied | np.uint8(np.uint16(total) == np.uint16(65535)))
            odd = np.uint8(odd | np.uint8(np.float32(here[i] - here[i]) != np.float32(0)))
        if tied:
            at = first >> 3  # 32 spare bytes for 256 coordinates
            for i in range(here.size):
                t = np.float32(np.float32(factor * here[i]) + offset)
                t = t if t > np.float32(0) else np.float32(0)
                t = t if t < top else top
                fixed = t * np.float32(65536)
                total = np.int32(np.int32(fixed) + np.int32(words[i]))
                if np.uint16(total) == np.uint16(65535):
                    word = 0.0
                    for k in range(4):
                        word = 256.0 * word + spare[at + k]
                    at = (first >> 3) + ((at + 4) & 31)
                    rest = np.float64(fixed - np.float32(np.int32(fixed))) * 4294967296.0
                    target[i] = np.uint8((total >> 16) + np.int32(word < rest))
    return odd == 0


@inlined
def _scramble_bits(codes, bits, keep, noise, out):
    """For 2^bits levels: keep a code if its noise is below ``keep``, else take the noise's low bits.

    ``keep``, of the noise's type, is a multiple of 2^bits, so both parts of the noise are
    independent. Returns how many codes match. Coordinates are alike and independent: the matches
    are exchangeable, and a code that does not match is uniform over the others.
    """
    mask = np.uint8((1 << bits) - 1)
    matches = 0
    for first in range(0, codes.size, 128):  # so that a count fits a byte
        last = min(first + 128, codes.size)
        here, words, target = codes[first:last], noise[first:last], out[first:last]
        count = np.uint8(0)
        for i in range(here.size):
            code = here[i]
            new = code if words[i] < keep else np.uint8(np.uint8(words[i]) & mask)
            target[i] = new
            count = np.uint8(count + np.uint8(new == code))
        matches += count
    return matches


@compiled
def scramble_bytes(codes, bits, keep, noise, out):
    """With one byte of noise for a coordinate."""
    return _scramble_bits(codes, bits, np.uint8(keep), noise, out)


@compiled
def scramble_pairs(codes, bits, keep, noise, out):
    """With two bytes of noise for a coordinate."""
    return _scramble_bits(codes, bits, np.uint16(keep), noise, out)


@compiled
def scramble(codes, levels, keep, noise, out):
    """As scramble_bytes for any number of levels: the low half of the noise is mapped by multiply-and-shift.

    Where that map would be uneven, the code is kept: every coordinate still behaves alike, which is
    all that the exact adjustment after it needs.
    """
    uneven = np.uint32(65536 % levels)
    factor = np.uint32(levels)
    least = np.uint32(keep)
    matches = 0
    for i in range(codes.size):
        product = np.uint32(np.uint32(noise[i] & np.uint32(65535)) * factor)
        stay = np.uint32(noise[i] >> np.uint32(16)) < least or np.uint32(product & np.uint32(65535)) < uneven
        new = codes[i] if stay else np.uint8(product >> np.uint32(16))
        out[i] = new
        matches += np.int64(new == codes[i])
    return matches


@compiled
def adjust(codes, out, matches, wanted, levels, words):
    """Move to the wanted number of matches, one uniformly drawn coordinate at a time; returns where it got.

    Each 64-bit word is one try: a coordinate from its upper half, another code from its lower half,
    both by multiply-and-shift with rejection. Call again with new words while the count is off.
    """
    size, others = np.uint64(codes.size), np.uint64(levels - 1)
    half = np.uint64(32)
    low = np.uint64(0xFFFFFFFF)
    uneven_size = np.uint64(4294967296 % codes.size)
    uneven_others = np.uint64(4294967296 % (levels - 1))
    for word in words:
        if matches == wanted:
            break
        place = np.uint64(word >> half) * size
        if (place & low) < uneven_size:
            continue
        i = np.int64(place >> half)
        if matches < wanted:
            if out[i] != codes[i]:
                out[i] = codes[i]
                matches += 1
        elif out[i] == codes[i]:
            shift = np.uint64(word & low) * others
            if (shift & low) < uneven_others:
                continue
            out[i] = np.uint8((np.int64(codes[i]) + 1 + np.int64(shift >> half)) % levels)
            matches -= 1
    return matches


@compiled
def round_and_scramble_bytes(x, factor, offset, keep, bits, words, codes, out, wanted):
    """round_randomly, scramble_bytes and adjust over (a piece of) x; the matches, or -1 if x is not finite.

    ``words`` holds the noise of all three, in this order: scrambling, rounding, spare bits of
    rounding, tries of adjusting. A negative ``wanted`` adjusts nothing.
    """
    size = x.size
    rounding, spares = size + (-size & 7), 3 * size + (-size & 7)
    tries = spares + 32 * ((size + 255) // 256)
    noise = words[rounding:spares].view(np.uint16)
    finite = round_randomly(x, factor, offset, noise, words[spares:tries], codes)
    matches = scramble_bytes(codes, bits, keep, words[:size], out)
    if wanted >= 0:
        rest = words[tries + (-tries & 7) :].view(np.uint64)
        matches = adjust(codes, out, matches, wanted, 1 << bits, rest)
    return matches if finite else -1


@compiled
def round_and_scramble_pairs(x, factor, offset, keep, bits, words, codes, out, wanted):
    """The same with scramble_pairs, which takes two bytes for a coordinate."""
    size = x.size
    spares = 4 * size
    tries = spares + 32 * ((size + 255) // 256)
    noise = words[2 * size : spares].view(np.uint16)
    finite = round_randomly(x, factor, offset, noise, words[spares:tries], codes)
    matches = scramble_pairs(codes, bits, keep, words[: 2 * size].view(np.uint16), out)
    if wanted >= 0:
        rest = words[tries + (-tries & 7) :].view(np.uint64)
        matches = adjust(codes, out, matches, wanted, 1 << bits, rest)
    return matches if finite else -1


@compiled
def accumulate(codes, factor, offset, total):
    """total += factor codes + offset."""
    factor, offset = np.float32(factor), np.float32(offset)
    for i in range(codes.size):
        total[i] += np.float32(factor * np.float32(codes[i])) + offset
