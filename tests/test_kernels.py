"""Each kernel equals its plain twin in reference.py."""

import numpy as np
import pytest
import reference
from scipy.linalg import hadamard

from sqsgd import Task, make_scheme, seeded_rng
from sqsgd.codec import Column
from sqsgd.kernels import packing, privatising, rotation, selecting
from sqsgd.kernels.packing import EXPAND, FOLD
from sqsgd.kernels.privatising import (
    accumulate,
    adjust,
    round_randomly,
    scramble,
    scramble_bytes,
    scramble_pairs,
    within,
)
from sqsgd.kernels.rotation import flip_signs, rotate

NUMBERS = np.random.default_rng(20260101)


def words(count, kind):
    return NUMBERS.integers(0, 2 ** (8 * np.dtype(kind).itemsize), count, dtype=kind)


@pytest.mark.parametrize("exponent", [*range(15), 17])
def test_rotate_is_signs_then_hadamard(exponent):
    size = 1 << exponent
    x = NUMBERS.standard_normal(size).astype(np.float32)
    signs = words(-(-size // 64), "u8")
    y = np.empty_like(x)
    assert rotate(x, signs, size**-0.5, y, 1e13)
    expected = reference.hadamard(reference.signs_of(signs, size) * x.astype(np.float64)) / size**0.5
    assert np.abs(y - expected).max() < 1e-5
    in_place = x.copy()
    assert rotate(in_place, signs, size**-0.5, in_place, 1e13)
    assert np.array_equal(in_place, y)


@pytest.mark.parametrize("size", [2, 64, 1024, 32768])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf, 2e13, -2e13])
def test_rotate_reports_what_is_not_finite_or_too_large(size, bad):
    signs, y = words(-(-size // 64), "u8"), np.empty(size, np.float32)
    for at in (0, size // 2, size - 1):
        x = np.full(size, 1e13, np.float32)
        assert rotate(x, signs, 1.0, y, 1e13)
        x[at] = bad
        assert not rotate(x, signs, 1.0, y, 1e13)


def test_reference_hadamard_is_scipys():
    assert np.array_equal(reference.hadamard(np.eye(16)[3]), hadamard(16)[3])


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_flip_signs(size):
    x, signs = NUMBERS.standard_normal(size).astype(np.float32), words(-(-size // 64), "u8")
    y = x.copy()
    flip_signs(y.view(np.uint32), signs)
    assert np.array_equal(y, x * reference.signs_of(signs, size).astype(np.float32))


@pytest.mark.parametrize("levels", [2, 3, 16, 256])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 1000, 40000])
def test_rounding_matches_the_twin_but_for_ties(levels, size):
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


def test_one_version_each():
    """Kernels of one type of arguments each: numba's cache may mix up several (see compiling.py)."""
    kernels = [*packing.FOLD.values(), *packing.EXPAND.values()]
    for module in (packing, privatising, rotation, selecting):
        named = {name: value for name, value in vars(module).items() if hasattr(value, "signatures")}
        kernels += [
            value for name, value in named.items() if not name.startswith("_")
        ]  # not the inlined ones
    rng = seeded_rng(1)
    for levels in (2, 3, 4, 16, 128, 256):
        for x in every_kind_of_vector():
            scheme = make_scheme(
                "sqsgd-paper", dim=200, epsilon=100.0, bits=4096, levels=levels, rule="optimal"
            )
            tasks = [Task(round=0, client=client, seed=0, dim=200, bound=1.0) for client in range(2)]
            scheme.aggregate([(task, scheme.encode(x, task, rng)) for task in tasks])
            q = scheme.mechanism.quantizer
            for codes in (np.zeros(256, int), np.zeros(512, np.uint8)[::2]):
                codes.setflags(write=False)
                q.estimate(q.privatize(codes, rng), 1.0)
    used = [kernel for kernel in kernels if kernel.signatures]
    assert len(used) > 15
    assert {kernel.__name__: len(kernel.signatures) for kernel in used if len(kernel.signatures) > 1} == {}


def every_kind_of_vector():
    x = np.linspace(-1, 1, 400).astype(np.float32)
    frozen = x[:200].copy()
    frozen.setflags(write=False)
    unaligned = np.frombuffer(b"x" + x[:200].tobytes(), np.uint8)[1:].view(np.float32)
    return [
        x[:200],
        x[::2],
        frozen,
        x[:200].astype(float),
        x[:200].astype(">f4"),
        x[:200].astype("f2"),
        unaligned,
    ]
