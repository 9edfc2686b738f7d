"""Packing equals the plain bit stream, and unpacking is its inverse."""

import numpy as np
import pytest
import reference
from random_words import words

from sqsgd.codec import Column
from sqsgd.kernels.packing import EXPAND, FOLD, expand_groups, fold_groups


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 1001])
def test_fold_is_the_plain_bit_stream(bits, size):
    codes = words(size, "u1") & np.uint8(2**bits - 1)
    packed = Column(size, 2**bits).pack(codes)
    assert packed == reference.pack_bits(codes, bits)
    assert np.array_equal(Column(size, 2**bits).unpack(packed), codes)


def test_fold_and_expand_are_inverse_on_words():
    codes = words(8 * 100, "u1") & np.uint8(127)
    packed, back = np.zeros(7 * 100 + 8, np.uint8), np.empty_like(codes)
    FOLD[7](codes, 7, packed)
    EXPAND[7](packed, 7, back)
    assert np.array_equal(back, codes)


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
