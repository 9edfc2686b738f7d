"""Random draws from given words: rounding and privatising codes, subsets, and the largest numbers."""

import numpy as np

from sqsgd._internal.kernels import compiled, inlined


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

    In 16-bit fixed point, t + noise carries with the right probability up to the fraction below the last bit.
    If all bits of the sum are ones, 32 spare bits decide by it: eight spare words for each run of 256
    coordinates. Returns whether all of x is finite.
    """
    factor, offset = np.float32(factor), np.float32(offset)
    top, zero = np.float32(2) * offset, np.float32(0)
    bits, largest = x.view(np.int32), np.int32(0)
    for start in range(0, x.size, 1024):  # four runs; numba would widen sums and maxima to 64 bits
        end = start + 1024
        here, words, target = x[start:end], noise[start:end], codes[start:end]
        sizes, last_bits = bits[start:end], np.int32(0)
        for i in range(here.size):  # ``_round_one`` without ties: maxima and no branches, so it vectorises
            t = np.float32(np.float32(factor * here[i]) + offset)
            t = t if t > zero else zero
            t = t if t < top else top
            total = np.int32(np.int32(t * np.float32(65536)) + np.int32(words[i]))
            target[i] = np.uint8(total >> np.int32(16))
            last_bits = np.int32(max(last_bits, np.int32(total & np.int32(65535))))
            largest = np.int32(max(largest, np.int32(sizes[i] & np.int32(0x7FFFFFFF))))
        if last_bits == 65535:
            for i in range(here.size):
                fine = spare[8 * ((start + i) >> 8) + (i & 7)]
                target[i] = _round_one(here[i], factor, offset, words[i], fine)
    return largest < np.int32(0x7F800000)  # as integers, infinity and NaN are largest


@inlined
def _scramble_bits(codes, bits, keep, whole, noise, out):
    """For 2^bits levels: keep a code if its noise is below ``keep``, else take the noise's low bits.

    ``keep``, of the noise's type, is a multiple of 2^bits, so both parts of the noise are independent.
    ``whole`` keeps every code, in the same time. Returns how many codes match.
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

    Where that map would be uneven, the code is kept; coordinates are still alike, as ``adjust`` needs.
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
    """Change uniformly drawn coordinates until the number of matches is ``wanted``. Returns the number.

    Each 64-bit word is one try: its upper half gives a coordinate and its lower half another code. Call again
    with new words until the number is right. The time depends on the number of words alone.
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


@inlined
def _one_pass(x, factor, offset, keep, bits, scrambling, rounding, spare, tries, codes, out, wanted):
    """Round, scramble and adjust (if ``wanted`` >= 0). Returns the matches, or -1 if x is not finite."""
    finite = round_randomly(x, factor, offset, rounding, spare, codes)
    matches = _scramble_bits(codes, bits, scrambling.dtype.type(max(keep, 0)), keep < 0, scrambling, out)
    if wanted >= 0:
        matches = adjust(codes, out, matches, wanted, 1 << bits, tries)
    return matches if finite else -1


@compiled
def round_and_scramble_bytes(x, factor, offset, keep, bits, words, codes, out, wanted):
    """round_randomly, scramble_bytes and adjust over (a piece of) x; the matches, or -1 if x is not finite.

    ``words``: the noise of scrambling, rounding, its spare bits, tries. ``wanted`` < 0: do not adjust.
    """
    size = x.size
    first = size + (-size & 7)
    second = first + 2 * size + (-2 * size & 7)
    third = second + 32 * ((size + 255) // 256)
    rounding, spare = words[first : first + 2 * size].view(np.uint16), words[second:third].view(np.uint32)
    tries = words[third:].view(np.uint64)
    return _one_pass(x, factor, offset, keep, bits, words[:size], rounding, spare, tries, codes, out, wanted)


@compiled
def round_and_scramble_pairs(x, factor, offset, keep, bits, words, codes, out, wanted):
    """Like round_and_scramble_bytes, with scramble_pairs: two bytes of noise per coordinate."""
    size = x.size
    second = 4 * size + (-4 * size & 7)
    third = second + 32 * ((size + 255) // 256)
    scrambling, rounding = words[: 2 * size].view(np.uint16), words[2 * size : 4 * size].view(np.uint16)
    spare, tries = words[second:third].view(np.uint32), words[third:].view(np.uint64)
    return _one_pass(x, factor, offset, keep, bits, scrambling, rounding, spare, tries, codes, out, wanted)


# ---------------------------------------------------------------- subsets


@compiled
def mark(marks, dim, missing, words):
    """Mark numbers drawn from 0..dim-1 until none is missing or the words end. Returns how many are."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    uneven = np.uint64(4294967296) % dim
    for word in words:
        if missing == 0:
            break
        product = np.uint64(word) * dim
        number = product >> half
        place, at = number >> np.uint64(6), number & np.uint64(63)
        bit, old = np.uint64((product & low) >= uneven) << at, marks[place]  # no bit for a rejected word
        missing -= np.int64((bit & ~old) >> at)
        marks[place] = old | bit
    return missing


_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # the upper six bits of its product with 2^i differ for all i
_PLACES = np.zeros(64, np.int64)
for _i in range(64):
    _PLACES[((1 << _i) * int(_DE_BRUIJN) % 2**64) >> 58] = _i


@compiled
def marked(marks, dim, which, chosen):
    """Write the numbers below dim that are marked (or, if ``which`` is false, not marked), in order."""
    count = 0
    for place in range(marks.size):
        word = marks[place] if which else ~marks[place]
        while word:
            rest = word & (word - np.uint64(1))  # without the lowest bit
            number = 64 * place + _PLACES[((word ^ rest) * _DE_BRUIJN) >> np.uint64(58)]
            if number >= dim:
                break
            chosen[count] = number
            count += 1
            word = rest


@inlined
def _limit(bound):
    """Words below this are uniform modulo ``bound``; zero: all are."""
    return np.uint64(0) - (np.uint64(0) - bound) % bound


@compiled
def draw_codes(near, codes, size, right, wrong, words, marks):
    """Codes 2 place + sign of a random signed subset, first those in ``near``, which holds codes.

    The first ``right`` have the sign of ``near``, the next ``wrong`` the opposite one, the others are
    uniform outside it. As much is drawn for any ``right`` and ``wrong``. Returns False if the words do not
    suffice; starting again with new ones is unbiased.
    """
    one, six, low = np.uint64(1), np.uint64(6), np.uint64(63)
    used, hits, count = 0, min(near.size, codes.size), codes.size
    for i in range(near.size):
        place = np.uint64(near[i] >> 1)
        marks[place >> six] |= one << (place & low)
    for i in range(hits):
        bound = np.uint64(near.size - i)
        limit = _limit(bound)
        while used < words.size and limit and words[used] >= limit:
            used += 1
        if used >= words.size:
            return False
        other = i + np.int64(words[used] % bound)
        used += 1
        near[i], near[other] = near[other], near[i]
    bound = np.uint64(2 * size)
    limit = _limit(bound)
    outside = np.empty(min(count, size - near.size), np.uint32)
    found = 0
    while found < outside.size:
        if used >= words.size:
            return False
        word = words[used]
        used += 1
        if limit and word >= limit:
            continue
        code = word % bound
        place = code >> one
        if marks[place >> six] & (one << (place & low)):
            continue
        marks[place >> six] |= one << (place & low)
        outside[found] = code
        found += 1
    for i in range(count):
        if i < right:
            codes[i] = near[i]
        elif i < right + wrong:
            codes[i] = near[i] ^ 1
        else:
            codes[i] = outside[i - right - wrong]
    return True


@compiled
def draw_many_codes(near, codes, size, right, wrong, words, fine):
    """``draw_codes`` of each row; ``fine`` tells for which rows the words suffice."""
    marks = np.empty((size + 63) // 64, np.uint64)
    for i in range(codes.shape[0]):
        marks[:] = np.uint64(0)
        fine[i] = draw_codes(near[i], codes[i], size, right[i], wrong[i], words[i], marks)


# ---------------------------------------------------------------- the largest numbers


@inlined
def _pick(numbers, count, picked):
    """Write the indices of the ``count`` largest numbers in rising order. Returns the least of the numbers.

    One pass for each bit of the least number, and two for the indices; ``picked`` has room for one more.
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

    The numbers are not negative and passed as the bits of float32. The steps depend on the sizes alone.
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
    """Write 2 index + sign of the codes.size largest float32, in rising order. The sign of -0 counts as +."""
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
def draw_vertices(near, sides, ranks, codes):
    """For each row the rank-th of its near codes, which rise, if ``sides`` is 1; else of all other codes."""
    for i in range(codes.size):
        inside, outside = np.int64(0), ranks[i]
        for k in range(near.shape[1]):
            code = np.int64(near[i, k])
            inside = code if k == ranks[i] else inside
            outside += np.int64(code <= outside)
        codes[i] = inside if sides[i] else outside
