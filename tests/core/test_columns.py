"""Columns: round trips, sizes, and many rows at once."""

import math
import struct

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuse

from sqsgd import MalformedReport
from sqsgd.core.codec import Column, SignedSubset


@pytest.mark.parametrize("alphabet", range(2, 257))
def test_packed_size(alphabet):
    column = Column(100_000, alphabet)
    ideal = 100_000 * math.log2(alphabet)
    if alphabet & (alphabet - 1) == 0:
        assert column.bits == round(ideal)
    else:
        assert ideal <= column.bits <= 1.02 * ideal
    for count in (1, 7, 50):  # short columns lose at most the rounding of their last group
        assert Column(count, alphabet).bits <= 1.02 * count * math.log2(alphabet) + 1


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_round_trip(data):
    alphabet = data.draw(st.one_of(st.integers(2, 300), st.integers(2, 2**32)))
    values = data.draw(st.lists(st.integers(0, alphabet - 1), min_size=1, max_size=200))
    column = Column(len(values), alphabet)
    packed = column.pack(np.array(values, np.uint32 if alphabet > 256 else np.uint8))
    assert len(packed) == column.length
    assert column.unpack(packed).tolist() == values
    if not column.code_bits:
        assert packed == reference.pack_groups(values, alphabet, *column.group)


def test_float_column():
    values = np.array([1.5, -2.25, 0.0], np.float32)
    column = Column(3, None)
    assert column.pack(values) == struct.pack("<3f", *values)
    assert np.array_equal(column.unpack(column.pack(values)), values)
    for bad in (np.nan, np.inf):
        with pytest.raises(MalformedReport, match="not finite"):
            column.unpack(memoryview(struct.pack("<3f", 1.0, bad, 2.0)))


@pytest.mark.parametrize("arguments", [(0, 2), (5, 1), (5, 2**33), (2.0, 2)])
def test_columns(arguments):
    refuse(r"count = |alphabet = ", lambda: Column(*arguments))


@pytest.mark.parametrize(
    "column",
    [
        Column(1, 8192), Column(1, 2), Column(1, 256), Column(1, 30), Column(1, 2**32), Column(5, 16),
        Column(7, 3), SignedSubset(1, 4096), SignedSubset(40, 4096), SignedSubset(3, 5),
    ],
    ids=str,
)  # fmt: skip
def test_many_rows_are_packed_and_unpacked_as_single_ones(column):
    numbers = np.random.default_rng(3)
    if isinstance(column, SignedSubset):
        places = [np.sort(numbers.choice(column.size, column.count, replace=False)) for _ in range(30)]
        rows = np.array([2 * each + numbers.integers(0, 2, column.count) for each in places], np.uint32)
    else:
        rows = numbers.integers(0, column.alphabet, (30, column.count))
        rows = rows.astype(np.uint8 if column.alphabet <= 256 else np.uint32)
    packed = column.pack_many(rows)
    assert [row.tobytes() for row in packed] == [bytes(column.pack(row)) for row in rows]
    unpacked = column.unpack_many(packed)
    assert np.array_equal(unpacked, rows)
    assert unpacked.dtype == column.unpack(memoryview(packed[0].tobytes())).dtype


@pytest.mark.parametrize(
    "column", [Column(1, 8191), Column(1, 30), Column(7, 3), SignedSubset(3, 5)], ids=str
)
def test_a_row_that_no_column_has_is_refused_among_many(column):
    bodies = np.zeros((9, column.length), np.uint8)
    column.unpack_many(bodies)
    bodies[4] = 255
    with pytest.raises(MalformedReport):
        column.unpack_many(bodies)


def test_floats_of_many_rows():
    rows = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    column = Column(3, None)
    assert np.array_equal(column.unpack_many(column.pack_many(rows)), rows)
