"""Marking and listing follow the specified map, for any length of the pieces."""

import importlib.util
import sys
from collections import Counter

import numba
import numpy as np
import pytest
import reference
from random_words import words

from sqsgd.kernels import selecting
from sqsgd.kernels.selecting import add_at, mark, marked, nth_marked, select_largest, select_signed


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


KINDS = {
    "random": lambda numbers, size: numbers.standard_exponential(size),
    "ties": lambda numbers, size: numbers.integers(0, 3, size),
    "few ties": lambda numbers, size: numbers.integers(0, size, size) // 3,
    "zeros": lambda numbers, size: np.zeros(size),
    "one": lambda numbers, size: np.eye(size)[-1],
    "tiny": lambda numbers, size: numbers.integers(0, 4, size) * 1e-45,
    "huge": lambda numbers, size: numbers.standard_exponential(size) * 1e37,
    "rising": lambda numbers, size: np.arange(size),
    "falling": lambda numbers, size: np.arange(size)[::-1],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 17, 40, 333, 1000, 4099])
def test_the_largest_in_the_order_of_their_places(kind, size):
    """Against sorting, with up to six levels of the tournament and with none."""
    magnitudes = KINDS[kind](np.random.default_rng(size), size).astype(np.float32)
    for count in {1, min(2, size), -(-size // 100), -(-size // 33), -(-size // 9), (size + 1) // 2, size}:
        chosen = np.empty(count, np.int64)
        select_largest(magnitudes.view(np.uint32), chosen)
        first = reference.largest(magnitudes, count)
        least = magnitudes[first].min()
        assert chosen.tolist() == [
            *np.sort(first[magnitudes[first] > least]),
            *np.sort(first[magnitudes[first] == least]),
        ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 17, 1000])
def test_signed_codes_of_the_largest(kind, size):
    """Negative zero counts as positive."""
    numbers = np.random.default_rng(size)
    x = (KINDS[kind](numbers, size) * numbers.choice([-1, 1], size)).astype(np.float32)
    for count in {1, -(-size // 50), size}:
        codes = np.empty(count, np.uint32)
        select_signed(x.view(np.uint32), codes)
        places = np.sort(reference.largest(np.abs(x), count))
        assert codes.tolist() == (2 * places + (x[places] < 0)).tolist()


def steps(function, *arguments):
    """How often each line ran."""
    counted = Counter()

    def trace(frame, event, _):
        if event == "line":
            counted[frame.f_code.co_name, frame.f_lineno] += 1
        return trace

    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(None)
    return counted


@pytest.fixture
def plain(monkeypatch):
    """The module without its compiler."""
    monkeypatch.setattr(numba, "njit", lambda **options: lambda function: function)
    spec = importlib.util.spec_from_file_location("plain_selecting", selecting.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [1, 3, 40])
def test_selecting_makes_the_same_steps_whatever_the_numbers(plain, count):
    """Every line runs equally often for all vectors; of a loop that ends early this is noticed."""

    def ends_early(bits, chosen):
        for number in bits:
            if number:
                break

    def different(function, kind):
        ways = set()
        for case in KINDS.values():
            bits = case(np.random.default_rng(1), 150).astype(np.float32).view(np.uint32)
            ways.add(frozenset(steps(function, bits, np.empty(count, kind)).items()))
        return len(ways)

    assert different(plain.select_largest, np.int64) == 1
    assert different(plain.select_signed, np.uint32) == 1
    assert different(ends_early, np.int64) > 1


def test_sums_at_places():
    numbers = np.random.default_rng(1)
    total, values, places = numbers.random(50), numbers.random(20), np.sort(numbers.choice(50, 20, False))
    expected = total.copy()
    expected[places] += 3.0 * values
    places.setflags(write=False)  # as those of a transform: a kernel has one type of arguments
    add_at(total, places, values, 3.0)
    assert np.array_equal(total, expected)


def test_the_nth_mark():
    marks = np.random.default_rng(1).integers(0, 2, 300).astype(np.uint8)
    places = np.flatnonzero(marks)
    assert [nth_marked(marks, rank) for rank in range(places.size)] == places.tolist()
