"""Signed subsets of coordinates: random ones, and their enumerative code."""

from __future__ import annotations

import numpy as np

from sqsgd.kernels.compiling import compiled, inlined


@inlined
def _limit(bound):
    """Words below this are uniform modulo ``bound``; zero: all are."""
    return np.uint64(0) - (np.uint64(0) - bound) % bound


@compiled
def draw_codes(near, codes, size, right, wrong, words, marks):
    """Codes 2 place + sign of a random signed subset, first those in ``near``, which holds codes.

    The first ``right`` have the sign of ``near``, the next ``wrong`` the opposite one, the others are
    uniform outside it. All that could be needed is drawn, whatever ``right`` and ``wrong`` are. Returns
    False if the words do not suffice; accepted words do not depend on rejected ones, so starting again
    with new words is unbiased.
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


@compiled
def spread(codes, unit, whole):
    """whole[place] = unit or -unit for each code 2 place + sign; places beyond its end are left out."""
    for code in codes:
        if code >> 1 < whole.size:
            whole[code >> 1] = -unit if code & 1 else unit


@inlined
def _divide(limbs, used, divisor):
    """limbs //= divisor, which is below 2^32; returns the remainder."""
    half, carry = np.uint64(32), np.uint64(0)
    for k in range(used - 1, -1, -1):
        now = (carry << half) | np.uint64(limbs[k])
        limbs[k] = now // divisor
        carry = now % divisor
    return carry


@inlined
def _multiply(limbs, used, factor, carry):
    """limbs = limbs factor + carry, both below 2^32; returns what is beyond the ``used`` limbs."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    for k in range(used):
        now = np.uint64(limbs[k]) * factor + carry
        limbs[k] = now & low
        carry = now >> half
    return carry


@inlined
def _batch(size, n, step, last):
    """(steps, Π n, Π (size - n + 1)) of n, n + step, ..., at most ``last``: as many as fit in 32 bits.

    A step maps Q n + r to Q f + r', whatever Q is. So several take one long division by the product of
    their n and one long multiplication by that of their f, and treat only the remainder one by one.
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
    """``expand_subset`` of each row; False if any row is no subset's number."""
    fine = True
    for i in range(codes.shape[0]):
        fine = expand_subset(limbs[i], size, codes[i]) and fine
    return fine
