"""Draws from given words: rounding, scrambling, adjusting, subsets and vertices, against plain twins."""

import importlib.util
import sys
from collections import Counter

import numba
import numpy as np
import pytest
import reference
from random_words import NUMBERS, words

from sqsgd._internal.kernels import sampling
from sqsgd._internal.kernels.sampling import (
    adjust,
    draw_codes,
    draw_vertices,
    round_and_scramble_bytes,
    round_and_scramble_pairs,
    round_randomly,
    scramble_bytes,
    scramble_pairs,
    select_largest,
    select_signed,
    select_signed_rows,
)


@pytest.mark.parametrize("levels", [2, 3, 16, 256])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 1000, 40000])
def test_rounding_matches_the_reference_except_for_ties(levels, size):
    x = (2 * NUMBERS.standard_normal(size)).astype(np.float32)
    factor = offset = (levels - 1) / 2
    noise, spare = words(size, "u2"), words(8 * -(-size // 256), "u4")
    codes = np.empty(size, np.uint8)
    assert round_randomly(x, factor, offset, noise, spare, codes)
    expected, tied = reference.round_fixed(x, factor, offset, noise)
    assert np.array_equal(codes[~tied], expected[~tied])
    assert ((codes[tied] == expected[tied]) | (codes[tied] == expected[tied] + 1)).all()
    assert codes.max() < levels


def test_ties_are_settled_by_the_spare_words():
    # t = 1/2 + 2^-17 exactly: sixteen bits see 1/2, and the rest, 1/2 of the last bit, must decide.
    x = np.full(256, 2.0**-17, np.float32)
    noise = np.full(256, 32767, np.uint16)  # 32768 + 32767 = 65535: every coordinate ties
    up, down = np.zeros(8, np.uint32), np.full(8, 2**32 - 1, np.uint32)
    codes = np.empty(256, np.uint8)
    assert round_randomly(x, 1.0, 0.5, noise, up, codes)
    assert (codes == 1).all()
    assert round_randomly(x, 1.0, 0.5, noise, down, codes)
    assert (codes == 0).all()


@pytest.mark.parametrize("kind", ["u1", "u2"])
@pytest.mark.parametrize("size", [1, 7, 256, 1001])
@pytest.mark.parametrize("wanted", [-1, 0, 1])
def test_the_fused_kernels_equal_their_parts(kind, size, wanted):
    """Each of the three parts has its own range of words."""
    x, bits, width = NUMBERS.standard_normal(size).astype(np.float32), 2, np.dtype(kind).itemsize
    keep = (2 ** (8 * width - bits) // 3) << bits
    scrambling, rounding, spare = words(size, kind), words(size, "u2"), words(8 * -(-size // 256), "u4")
    tries = words(64 * size + 64, "u8")
    parts = (scrambling, rounding, spare, tries)
    if kind == "u1":
        lengths = [-(-part.nbytes // 8) * 8 for part in parts]
    else:  # the first two have the same width and share one padding
        lengths = [2 * size, 2 * size + (-4 * size & 7), spare.nbytes, tries.nbytes]
    joined = np.zeros(sum(lengths), np.uint8)
    for part, start in zip(parts, np.cumsum([0, *lengths]), strict=False):
        joined[start : start + part.nbytes] = part.view(np.uint8)

    codes, out = np.empty(size, np.uint8), np.empty(size, np.uint8)
    assert round_randomly(x, 1.5, 1.5, rounding, spare, codes)
    matches = (scramble_bytes if kind == "u1" else scramble_pairs)(codes, bits, keep, scrambling, out)
    if wanted >= 0:
        matches = adjust(codes, out, matches, wanted, 4, tries)
        assert matches == wanted

    fused = round_and_scramble_bytes if kind == "u1" else round_and_scramble_pairs
    found = np.empty((2, size), np.uint8)
    assert fused(x, 1.5, 1.5, keep, bits, joined, found[0], found[1], wanted) == matches
    assert np.array_equal(found, [codes, out])
    x[-1] = np.nan
    assert fused(x, 1.5, 1.5, keep, bits, joined, found[0], found[1], wanted) == -1


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

    before = sys.gettrace()  # of a measurement of coverage
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return counted


@pytest.fixture
def plain(monkeypatch):
    """The module without its compiler."""
    monkeypatch.setattr(numba, "njit", lambda **options: lambda function: function)
    spec = importlib.util.spec_from_file_location("plain_selecting", sampling.__file__)
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


def slow_draw(near, count, size, right, wrong, words):
    """draw_codes in plain Python; None if the words do not suffice."""
    words, near = iter(words), list(near)

    def below(bound):
        for word in words:
            if word < 2**64 - 2**64 % bound:
                return word % bound
        return None

    for i in range(min(len(near), count)):
        step = below(len(near) - i)
        if step is None:
            return None
        near[i], near[i + step] = near[i + step], near[i]
    taken, outside = {code >> 1 for code in near}, []
    while len(outside) < min(count, size - len(near)):
        code = below(2 * size)
        if code is None:
            return None
        if code >> 1 not in taken:
            taken.add(code >> 1)
            outside.append(code)
    return [*near[:right], *(code ^ 1 for code in near[right : right + wrong]), *outside][:count]


@pytest.mark.parametrize("size", [5, 64, 100])
def test_draws_are_those_of_the_plain_twin(size):
    numbers = np.random.default_rng(size)
    for _ in range(200):
        near_count, count = int(numbers.integers(1, size)), int(numbers.integers(1, size))
        fewest = max(0, near_count + count - size)
        hits = int(numbers.integers(fewest, min(near_count, count) + 1))
        right = int(numbers.integers(0, hits + 1))
        near = 2 * numbers.choice(size, near_count, replace=False) + numbers.integers(0, 2, near_count)
        words = numbers.integers(0, 2**64, int(numbers.integers(1, 12 * size)), dtype=np.uint64)
        words[numbers.random(words.size) < 0.1] = 2**64 - 1  # rejected for most bounds
        codes, marks = np.zeros(count, np.uint32), np.zeros(-(-size // 64), np.uint64)
        done = draw_codes(near.astype(np.uint32), codes, size, right, hits - right, words, marks)
        expected = slow_draw(near.tolist(), count, size, right, hits - right, words.tolist())
        assert done == (expected is not None)
        if done:
            assert codes.tolist() == expected


def vertex(row, nearest, reverse, side, rank):
    """All nearest vertices and all others in rising order; ties count from the front."""
    places = np.sort(np.argsort(-np.abs(row), kind="stable")[:nearest])
    near = 2 * places + (row[places] < 0)
    near ^= reverse
    others = np.setdiff1d(np.arange(2 * row.size), near)
    return (others, near)[side][rank]


def drawn_vertices(x, nearest, reverse, sides, ranks):
    codes, near = np.empty(len(x), np.uint32), np.empty((len(x), nearest), np.uint32)
    select_signed_rows(x.view(np.uint32), near)
    draw_vertices(near ^ reverse.astype(np.uint32)[:, None], sides, ranks, codes)
    return codes


@pytest.mark.parametrize(
    ("size", "nearest"),
    [(1, 1), (2, 1), (2, 2), (7, 3), (64, 64), (65, 10), (1000, 1), (4096, 25), (4096, 4096), (70_000, 400)],
)
@pytest.mark.parametrize("ties", [False, True])
def test_the_vertex_of_every_rank(size, nearest, ties):
    draw, rows = np.random.default_rng(size), 60 if size < 10_000 else 4
    x = draw.standard_normal((rows, size)).astype(np.float32)
    if ties:
        x = np.round(x)
        x[0] = 0
        x[1] = -0.0
    sides, reverse = draw.integers(0, 2, (2, rows))
    counts = np.where(sides, nearest, 2 * size - nearest)
    ranks = np.where(draw.random(rows) < 0.3, counts - 1, draw.integers(0, counts))
    ranks[: rows // 4] = 0
    codes = drawn_vertices(x, nearest, reverse, sides, ranks)
    for i in range(rows):
        assert codes[i] == vertex(x[i], nearest, reverse[i], sides[i], ranks[i])
