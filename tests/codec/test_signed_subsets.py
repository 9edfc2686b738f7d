"""Signed subsets as one number, and wire format 2."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsgd import MalformedReport, Task, codec, seeded_rng
from sqsgd.codec import Column, SignedSubset
from sqsgd.core import Scheme
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse_law import SparseLaw
from sqsgd.mechanisms.sparse_matches import SparseMatches
from sqsgd.transforms import Rotate

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


# ---------------------------------------------------------------- wire format 2

TASK = Task(round=5, client=7, seed=11, dim=1000, bound=2.5)


def scheme():
    law = SparseLaw(size=1024, near=24, count=16, threshold=16, epsilon=94.0)
    mechanism = SparseMatches(law=law, norm=ScalarDP(1.0, 6.0))
    return Scheme(name="sparse", dim=1000, transforms=(Rotate(rounds=2),), mechanism=mechanism, wire=2)


def message():
    x = np.random.default_rng(4).standard_normal(1000).astype(np.float32)
    return scheme().encode(x / np.float32(np.linalg.norm(x)), TASK, seeded_rng(3))


def test_the_envelope_has_five_bytes():
    made = scheme()
    assert len(message()) == made.bits // 8 == 5 + -(-made.code_bits // 8) + 1
    assert message()[0] == 2


def test_golden_bytes():
    assert message().hex() == GOLDEN


GOLDEN = "0201833b4d48934961c9f44ab86d797b603e38c9690703"


@pytest.mark.parametrize("change", [{"round": 6}, {"client": 8}, {"seed": 12}, {"bound": 2.0}, {"clip": 1.0}])
def test_a_report_fits_no_other_task(change):
    other = Task(**{"round": 5, "client": 7, "seed": 11, "dim": 1000, "bound": 2.5, **change})
    scheme().decode(message(), TASK)
    with pytest.raises(MalformedReport) as refused:
        scheme().decode(message(), other)
    assert refused.value.reason == "checksum"


def test_no_damaged_message_is_accepted():
    made, sent = scheme(), message()
    for place in range(8 * len(sent)):
        damaged = bytearray(sent)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(MalformedReport):
            made.decode(bytes(damaged), TASK)
    for length in range(len(sent)):
        with pytest.raises(MalformedReport):
            made.decode(sent[:length], TASK)


def test_versions_are_not_mixed_up():
    layout, columns = (Column(3, 4),), (np.array([1, 2, 3], np.uint8),)
    head = {"scheme": 1, "round": 2, "binding": b"x"}
    for written, read in ((1, 2), (2, 1)):
        sent = codec.seal(layout, columns, **head, version=written) + bytes(11)
        with pytest.raises(MalformedReport):
            codec.unseal(sent, layout, **head, version=read)
