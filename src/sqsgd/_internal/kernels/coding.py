"""Codes to bytes and back: packed codes, and the enumerative code of signed subsets."""

import numpy as np

from sqsgd._internal.kernels import compiled, inlined


@compiled
def fold(codes, bits, target):
    """Pack each eight codes into ``bits`` bytes, the first code in the lowest bits; codes fill whole eights.

    The target consists of 64-bit words, one more than needed. The first must be zero.
    """
    words, one, two, four = codes.view(np.uint64), np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    singles, pairs = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
    joined, place = np.empty(512, np.uint64), np.uint64(0)
    for first in range(0, words.size, 512):  # joining apart from storing, so that it vectorises
        here = words[first : first + 512]
        for i in range(here.size):
            word = here[i]
            word = (word & singles) | (((word >> np.uint64(8)) & singles) << one)
            word = (word & pairs) | (((word >> np.uint64(16)) & pairs) << two)
            joined[i] = (word & np.uint64(0xFFFFFFFF)) | ((word >> np.uint64(32)) << four)
        for i in range(here.size):
            at, low = place >> np.uint64(6), place & np.uint64(63)
            target[at] |= joined[i] << low
            target[at + np.uint64(1)] = (joined[i] >> np.uint64(1)) >> (np.uint64(63) - low)
            place += np.uint64(8) * one


@compiled
def expand(source, bits, codes):
    """The inverse of fold. The source has one word more than needed."""
    words, one, two, four = codes.view(np.uint64), np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    ones = ((np.uint64(1) << one) - np.uint64(1)) * np.uint64(0x0001000100010001)
    twos = ((np.uint64(1) << two) - np.uint64(1)) * np.uint64(0x0000000100000001)
    fours = (np.uint64(1) << four) - np.uint64(1)
    joined, place = np.empty(512, np.uint64), np.uint64(0)
    for first in range(0, words.size, 512):
        here = words[first : first + 512]
        for i in range(here.size):
            at, low = place >> np.uint64(6), place & np.uint64(63)
            high = (source[at + np.uint64(1)] << np.uint64(1)) << (np.uint64(63) - low)
            joined[i] = (source[at] >> low) | high
            place += np.uint64(8) * one
        for i in range(here.size):
            word = joined[i]
            word = (word & fours) | (((word >> four) & fours) << np.uint64(32))
            word = (word & twos) | (((word >> two) & twos) << np.uint64(16))
            here[i] = (word & ones) | (((word >> one) & ones) << np.uint64(8))


@compiled
def fold_groups(codes, alphabet, group, width, last, out):
    """Each ``group`` codes as one number in base ``alphabet`` of ``width`` bits, the last of ``last``."""
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
    """The inverse of fold_groups. Returns the first group whose number is out of range, or -1."""
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


# ---------------------------------------------------------------- signed subsets


@inlined
def _divide(limbs, used, divisor):
    """limbs //= divisor, which is below 2^32. Returns the remainder."""
    half, carry = np.uint64(32), np.uint64(0)
    for k in range(used - 1, -1, -1):
        now = (carry << half) | np.uint64(limbs[k])
        limbs[k] = now // divisor
        carry = now % divisor
    return carry


@inlined
def _multiply(limbs, used, factor, carry):
    """limbs = limbs factor + carry, both below 2^32. Returns what is beyond the ``used`` limbs."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    for k in range(used):
        now = np.uint64(limbs[k]) * factor + carry
        limbs[k] = now & low
        carry = now >> half
    return carry


@inlined
def _batch(size, n, step, last):
    """(steps, Π n, Π (size - n + 1)) of n, n + step, ..., at most ``last``: as many as fit in 32 bits.

    A step maps Q n + r to Q f + r' for every Q. So several take one long division by the product of
    their n and one long multiplication by the product of their f, and treat only the remainder one by one.
    """
    low = np.uint64(0xFFFFFFFF)
    steps, counts, ranks = 0, np.uint64(1), np.uint64(1)
    while (last - n) * step >= 0:
        more, free = counts * np.uint64(n), ranks * np.uint64(size - n + 1)
        if steps and (more > low or free > low):
            break
        steps, counts, ranks, n = steps + 1, more, free, n + step
    return steps, counts, ranks


@compiled
def fold_subset(codes, size, limbs):
    """A subset of rising codes 2 place + sign as a number: its 32-bit limbs, the lowest first.

    The number starts as the signs, z < 2^t. For n = t, ..., 1: i = z mod n picks the i-th of the n places
    that are left, and z becomes (z // n) (size - n + 1) + place - i, where place - i is the rank of the
    place among those that the n - 1 others leave free. Every step is a bijection of whole numbers.
    """
    count = codes.size
    left = np.empty(count, np.int64)
    for i in range(count):
        left[i] = codes[i] >> 1
        limbs[i >> 5] |= np.uint32(codes[i] & 1) << np.uint32(i & 31)
    used, n = -(-count // 32), count
    while n:
        steps, counts, ranks = _batch(size, n, -1, 1)
        rest = _divide(limbs, used, counts)
        for _ in range(steps):
            i = np.int64(rest % np.uint64(n))
            place = left[i]
            for k in range(i, n - 1):
                left[k] = left[k + 1]
            rest = (rest // np.uint64(n)) * np.uint64(size - n + 1) + np.uint64(place - i)
            n -= 1
        carry = _multiply(limbs, used, ranks, rest)
        if carry:
            limbs[used] = carry
            used += 1


@compiled
def expand_subset(limbs, size, codes):
    """The inverse of ``fold_subset``; False if no subset has this number."""
    count, used = codes.size, limbs.size
    places = np.empty(count, np.int64)
    n = 1
    while n <= count:
        steps, counts, ranks = _batch(size, n, 1, count)
        rest = _divide(limbs, used, ranks)
        for _ in range(steps):
            rank = np.int64(rest % np.uint64(size - n + 1))
            first, last = 0, n - 1  # of the places so far, those with places[k] - k <= rank lie below
            while first < last:
                middle = (first + last) >> 1
                if places[middle] - middle <= rank:
                    first = middle + 1
                else:
                    last = middle
            for k in range(n - 1, first, -1):
                places[k] = places[k - 1]
            places[first] = rank + first
            rest = (rest // np.uint64(size - n + 1)) * np.uint64(n) + np.uint64(first)
            n += 1
        carry = _multiply(limbs, used, counts, rest)
        if carry and used == limbs.size:
            return False
        if carry:
            limbs[used] = carry
            used += 1
        while used > 1 and limbs[used - 1] == 0:
            used -= 1
    for i in range(count):
        codes[i] = 2 * places[i] + ((limbs[i >> 5] >> np.uint32(i & 31)) & 1)
        limbs[i >> 5] &= ~(np.uint32(1) << np.uint32(i & 31))
    rest = np.uint32(0)
    for k in range(used):
        rest |= limbs[k]
    return rest == 0


@compiled
def fold_subsets(codes, size, limbs):
    """``fold_subset`` of each row."""
    for i in range(codes.shape[0]):
        fold_subset(codes[i], size, limbs[i])


@compiled
def expand_subsets(limbs, size, codes):
    """``expand_subset`` of each row; False if a row is not the number of a subset."""
    fine = True
    for i in range(codes.shape[0]):
        fine = expand_subset(limbs[i], size, codes[i]) and fine
    return fine
