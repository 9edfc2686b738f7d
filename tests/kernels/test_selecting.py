"""Marking and listing follow the specified map, for any length of the pieces."""

import numpy as np
import pytest
import reference
from random_words import words

from sqsgd.kernels.selecting import mark, marked, nth_marked, select_largest


def listed(marks, dim, which):
    """With room for every bit, so that extra marks are noticed."""
    chosen = np.full(64 * marks.size, -1, np.int64)
    marked(marks, dim, which, chosen)
    return [number for number in chosen.tolist() if number >= 0]


@pytest.mark.parametrize("dim", [1, 63, 64, 65, 128, 1000])
def test_marks_match_the_reference_for_any_piece_length(dim):
    drawn, size = words(20_000, "u4"), -(-dim // 3)
    found = []
    for piece in (1, 7, drawn.size):
        marks, missing = np.zeros((dim + 63) // 64, np.uint64), size
        for start in range(0, drawn.size, piece):
            missing = mark(marks, np.uint64(dim), missing, drawn[start : start + piece])
            if missing == 0:
                break
        found.append(listed(marks, dim, True))
    twin = set()
    for word in drawn.tolist():
        if word * dim % 2**32 >= 2**32 % dim and len(twin) < size:
            twin.add(word * dim // 2**32)
    assert found == [sorted(twin)] * 3


def test_uneven_words_are_rejected():
    """With dim = 3, one word of 2^32 is rejected: 0."""
    marks = np.zeros(1, np.uint64)
    assert 2**32 % 3 == 1
    assert mark(marks, np.uint64(3), 1, np.zeros(9, np.uint32)) == 1
    assert mark(marks, np.uint64(3), 1, np.ones(1, np.uint32)) == 0
    assert listed(marks, 3, True) == [0] == reference.subset(iter([0, 1]), 3, 1)


@pytest.mark.parametrize("dim", [1, 64, 65, 127, 200])
def test_the_complement_ends_at_dim(dim):
    """The bits beyond dim are unmarked too, but are not part of the complement."""
    marks = np.zeros((dim + 63) // 64, np.uint64)
    marks[0] = 1
    assert listed(marks, dim, True) == [0]
    assert listed(marks, dim, False) == list(range(1, dim))


@pytest.mark.parametrize("kind", ["random", "ties", "zeros", "tiny", "huge"])
@pytest.mark.parametrize("size", [1, 2, 17, 1000])
def test_the_largest_in_the_order_of_their_places(kind, size):
    numbers = np.random.default_rng(size)
    magnitudes = {
        "random": numbers.standard_exponential(size),
        "ties": numbers.integers(0, 3, size),
        "zeros": np.zeros(size),
        "tiny": numbers.integers(0, 4, size) * 1e-45,
        "huge": numbers.standard_exponential(size) * 1e37,
    }[kind].astype(np.float32)
    for count in {1, (size + 1) // 2, size}:
        chosen = np.empty(count, np.int64)
        select_largest(magnitudes.view(np.uint32), chosen)
        least = np.sort(magnitudes)[size - count]
        above = np.flatnonzero(magnitudes > least)
        equal = np.flatnonzero(magnitudes == least)[: count - above.size]
        assert chosen.tolist() == [*above, *equal]


def test_the_nth_mark():
    marks = np.random.default_rng(1).integers(0, 2, 300).astype(np.uint8)
    places = np.flatnonzero(marks)
    assert [nth_marked(marks, rank) for rank in range(places.size)] == places.tolist()
