"""Packing, the code of subsets and checksums: against plain twins."""

import zlib

import numpy as np
import pytest
import reference
from random_words import words

from sqsgd._internal.kernels.coding import checksums, expand_groups, expand_subset, fold_groups, fold_subset
from sqsgd.core.codec import Column


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 1001])
def test_fold_is_the_plain_bit_stream(bits, size):
    codes = words(size, "u1") & np.uint8(2**bits - 1)
    packed = Column(size, 2**bits).pack(codes)
    assert packed == reference.pack_bits(codes, bits)
    assert np.array_equal(Column(size, 2**bits).unpack(packed), codes)


@pytest.mark.parametrize("alphabet", [3, 255, 1000, 2**32 - 1])
@pytest.mark.parametrize("size", [1, 4, 41, 300])
def test_groups_are_numbers_one_after_the_other(alphabet, size):
    codes = words(size, "u4") % np.uint32(alphabet)
    column = Column(size, alphabet)
    packed = np.zeros(column.length + 8, np.uint8)
    fold_groups(codes, alphabet, *column.group, packed)
    assert packed[: column.length].tobytes() == reference.pack_groups(codes, alphabet, *column.group)
    assert not packed[column.length :].any()
    back = np.empty_like(codes)
    assert expand_groups(packed, alphabet, *column.group, back) == -1
    assert np.array_equal(back, codes)


def test_the_first_group_with_a_number_too_large_is_named():
    """Five codes of three levels are below 243; a byte of 243 or more is invalid."""
    packed, codes = np.array([242, 243, 255], np.uint8), np.empty(15, np.uint32)
    assert expand_groups(packed, 3, 5, 8, 8, codes) == 1
    assert codes[:5].tolist() == [2] * 5


def test_folding_and_expanding_are_inverse():
    numbers = np.random.default_rng(1)
    for size, count in ((1, 1), (7, 3), (70, 33), (5000, 200)):
        places = np.sort(numbers.choice(size, count, replace=False))
        codes = (2 * places + numbers.integers(0, 2, count)).astype(np.uint32)
        limbs, back = np.zeros(128, np.uint32), np.zeros(count, np.uint32)
        fold_subset(codes, size, limbs)
        assert expand_subset(limbs.copy(), size, back)
        assert back.tolist() == codes.tolist()
        limbs[-1] = 1  # far beyond any subset's number
        assert not expand_subset(limbs, size, back)


@pytest.mark.parametrize(("middle", "length"), [(0, 0), (32, 2), (5, 300)])
def test_checksums_are_zlibs(middle, length):
    draw = np.random.default_rng(length)
    numbers = np.array([0, 1, 2**64 - 1, *draw.integers(0, 2**64, 20, np.uint64)], np.uint64)
    between = draw.integers(0, 256, middle, np.uint8)
    bodies = draw.integers(0, 256, (numbers.size, length), np.uint8)
    start, results = zlib.crc32(b"before"), np.empty(numbers.size, np.uint32)
    checksums(np.uint32(start), numbers, between, bodies, results)
    for number, body, result in zip(numbers, bodies, results, strict=True):
        message = int(number).to_bytes(8, "little") + between.tobytes() + body.tobytes()
        assert result == zlib.crc32(message, start)
