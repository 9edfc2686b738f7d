"""Signed subsets as one number."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsgd import MalformedReport
from sqsgd.core.codec import SignedSubset

SMALL = [(2, 5), (3, 6), (4, 4), (1, 7), (5, 6), (1, 1)]


def every(column):
    """All subsets of a column, as codes."""
    return [
        [2 * place + sign for place, sign in zip(places, signs, strict=True)]
        for places in itertools.combinations(range(column.size), column.count)
        for signs in itertools.product((0, 1), repeat=column.count)
    ]


@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_each_subset_has_its_number_and_no_other_number_is_read(shape):
    column = SignedSubset(*shape)
    packed = {bytes(column.pack(np.array(codes, np.uint32))): codes for codes in every(column)}
    assert len(packed) == math.comb(column.size, column.count) * 2**column.count
    for number in range(1 << (8 * column.length)):
        body = number.to_bytes(column.length, "little")
        if body in packed:
            assert column.unpack(memoryview(body)).tolist() == packed[body]
        else:
            with pytest.raises(MalformedReport, match="no subset has"):
                column.unpack(memoryview(body))


@pytest.mark.parametrize("size", [1, 2, 3, 64, 1000, 4096, 131072, 2**21, 2**24])
def test_a_subset_takes_at_most_one_bit_more_than_it_must(size):
    for count in (1, 2, 3, 5, 17, 64, 255, 1000):
        if count <= size:
            least = (math.comb(size, count) << count) - 1
            more = SignedSubset(count, size).bits - least.bit_length()
            assert 0 <= more <= (1 if 2 * count <= size else 8)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 1000, 131072])
def test_the_bits_are_those_of_the_largest_number(size):
    """The bound from binomial coefficients decides only what the rule itself would."""
    for count in range(1, min(size, 60) + 1):
        numbers = 1 << count
        for n in range(count, 0, -1):
            numbers = -(-numbers // n) * (size - n + 1)
        assert SignedSubset(count, size).bits == (numbers - 1).bit_length()


@given(st.integers(1, 2**21), st.integers(1, 300), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_random_subsets_come_back(size, count, seed):
    numbers = np.random.default_rng(seed)
    count = min(count, size)
    places = np.sort(numbers.choice(size, count, replace=False))
    codes = (2 * places + numbers.integers(0, 2, count)).astype(np.uint32)
    column = SignedSubset(count, size)
    body = column.pack(codes)
    assert len(body) == column.length
    assert column.unpack(body).tolist() == codes.tolist()


def slow_number(codes, size):
    """The rule of the wire format in whole numbers of any length."""
    number = sum((code & 1) << i for i, code in enumerate(codes))
    left = [code >> 1 for code in codes]
    for n in range(len(codes), 0, -1):
        number, i = divmod(number, n)
        number = number * (size - n + 1) + left.pop(i) - i
    return number


@pytest.mark.parametrize(("count", "size"), [(3, 6), (60, 64), (90, 90), (40, 4096), (500, 2**21)])
def test_the_kernel_follows_the_rule(count, size):
    numbers = np.random.default_rng(count)
    codes = 2 * np.sort(numbers.choice(size, count, replace=False)) + numbers.integers(0, 2, count)
    body = SignedSubset(count, size).pack(codes.astype(np.uint32))
    assert int.from_bytes(body, "little") == slow_number(codes.tolist(), size)
