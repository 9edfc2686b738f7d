"""Rounding, scrambling, adjusting and summing equal their NumPy references."""

import numpy as np
import pytest
import reference
from random_words import NUMBERS, words

from sqsgd.kernels.privatising import (
    accumulate,
    adjust,
    round_and_scramble_bytes,
    round_and_scramble_pairs,
    round_randomly,
    scramble,
    scramble_bytes,
    scramble_pairs,
    within,
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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 270, 299])
def test_rounding_reports_what_is_not_finite(bad, at):
    x = np.zeros(300, np.float32)
    x[at] = bad
    codes = np.empty(300, np.uint8)
    assert not round_randomly(x, 1.0, 1.0, words(300, "u2"), words(16, "u4"), codes)


@pytest.mark.parametrize(("bits", "kind"), [(1, "u1"), (1, "u2"), (3, "u2"), (8, "u2")])
def test_scramble_bits(bits, kind):
    codes, noise = words(5000, "u1") & np.uint8(2**bits - 1), words(5000, kind)
    keep = (2 ** (8 * noise.dtype.itemsize - bits) // 3) << bits
    out = np.empty_like(codes)
    count = (scramble_bytes if kind == "u1" else scramble_pairs)(codes, bits, keep, noise, out)
    expected = np.where(noise < keep, codes, (noise & (2**bits - 1)).astype(np.uint8))
    assert np.array_equal(out, expected)
    assert count == np.count_nonzero(out == codes)


@pytest.mark.parametrize("levels", [2, 3, 5, 100, 255])
def test_scramble_any(levels):
    codes, noise = words(5000, "u1") % np.uint8(levels), words(5000, "u4")
    out = np.empty_like(codes)
    count = scramble(codes, levels, 20000, noise, out)
    product = (noise.astype(np.int64) & 65535) * levels
    kept = (noise >> 16 < 20000) | (product & 65535 < 65536 % levels)
    assert np.array_equal(out, np.where(kept, codes, product >> 16))
    assert count == np.count_nonzero(out == codes)


@pytest.mark.parametrize("levels", [2, 3, 256])
@pytest.mark.parametrize("wanted", [0, 1, 150, 299, 300])
def test_adjust_reaches_the_count_and_changes_nothing_else(levels, wanted):
    codes = words(300, "u1") % np.uint8(levels) if levels < 256 else words(300, "u1")
    out = codes.copy()
    out[:150] = (out[:150].astype(int) + 1) % levels
    before, count = out.copy(), 150
    while count != wanted:
        count = adjust(codes, out, count, wanted, levels, words(50, "u8"))
    assert np.count_nonzero(out == codes) == wanted
    assert np.count_nonzero(out != before) == abs(wanted - 150)
    assert out.max() < levels


def test_accumulate():
    codes, total = words(1000, "u1"), NUMBERS.standard_normal(1000).astype(np.float32)
    expected = total + (np.float32(0.25) * codes.astype(np.float32)).astype(np.float64) - 3.0
    accumulate(codes, 0.25, -3.0, total)
    assert np.allclose(total, expected, rtol=1e-6, atol=1e-5)


def test_within():
    x = np.array([1.0, -2.0, 0.0], np.float32)
    assert within(x, 2.0)
    assert not within(x, 1.5)
    for bad in (np.nan, np.inf, -np.inf):
        assert not within(np.array([0.0, bad], np.float32), 1e30)


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
