"""Argument validation: valid values come back in one form, invalid ones are named."""

import math

import numpy as np
import pytest
from refusing import refuse

from sqsgd import PrivQuant, Task, make_scheme, seeded_rng
from sqsgd._internal import checks

BAD_VECTORS = [
    (np.zeros(7, np.float32), r"x has shape \(7,\)"),
    (np.zeros((8, 1), np.float32), r"x has shape \(8, 1\)"),
    (np.zeros(8, np.int64), "x has dtype int64"),
    (np.zeros(8, complex), "x has dtype complex128"),
    (np.array(["a"] * 8), "x has dtype"),
    (None, "x has dtype object"),
    ([[1.0], [1.0, 2.0]], "x must be a vector"),
    (np.array([0, 0, np.nan, 0, 0, 0, 0, 0]), r"x\[2\] = nan"),
    (np.array([0, 0, 0, np.inf, 0, 0, 0, 0]), r"x\[3\] = inf"),
    (np.array([1e300, 0, 0, 0, 0, 0, 0, 0]), r"x\[0\] = 1e\+300"),
    (np.full(8, 1e30), r"x\[0\] = 1e\+30 must be finite and within"),
]


@pytest.mark.parametrize(("x", "match"), BAD_VECTORS)
def test_vectors(x, match):
    q, rng = PrivQuant(8, 4, 5.0), seeded_rng(1)
    refuse(match, lambda: checks.vector("x", x, 8))
    refuse(match, lambda: q.quantize(x, 1.0, rng))
    refuse(match, lambda: q.variance(x, 1.0))
    scheme = make_scheme("sqsgd", dim=8, epsilon=9.0, bytes=1)
    refuse(match, lambda: scheme.encode(x, Task(round=0, client=0, seed=0, dim=8, bound=1.0), rng))
    assert rng.word() == seeded_rng(1).word()  # nothing was drawn


WRONG = [True, np.True_, "1", None, 1j, [1], math.nan, -math.inf, 10**400]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:9])
def test_every_check_rejects_what_is_not_a_finite_number(wrong):
    refuse("^n = .* must be a whole number from 0 to 9$", lambda: checks.integer("n", wrong, 0, 9))
    refuse("^r = .* must be a number from 0 to 1e", lambda: checks.real("r", wrong, 0, 1e308))
    refuse("^r = .* must be a finite number$", lambda: checks.real("r", wrong, -math.inf, math.inf))
    refuse("^p = .* must be a finite number above 0$", lambda: checks.positive("p", wrong))


def test_ends_belong_to_a_range_unless_it_is_open():
    assert [checks.integer("n", end, 2, 5) for end in (2, 5)] == [2, 5]
    assert [checks.real("r", end, 0.0, 1.0) for end in (0.0, 1.0)] == [0.0, 1.0]
    for end in (0.0, 1.0):
        refuse("strictly between 0 and 1$", lambda end=end: checks.real("r", end, 0.0, 1.0, open_ends=True))
    for outside in (1, 6):
        refuse("from 2 to 5$", lambda outside=outside: checks.integer("n", outside, 2, 5))
    refuse("p = 0", lambda: checks.positive("p", 0))


def test_vectors_come_back_as_kernels_take_them():
    """Contiguous float32 in native byte order; such a vector is not copied."""
    right = np.linspace(-1, 1, 8, dtype=np.float32)
    assert checks.vector("x", right, 8) is right
    spread, unaligned = np.repeat(right, 2)[::2], np.frombuffer(b"x" + right.tobytes(), "u1")[1:].view("f4")
    for value in (right.astype(float), right.astype(">f4"), spread, unaligned, list(map(float, right))):
        found = checks.vector("x", value, 8)
        assert (found.dtype, found.flags.carray) == (np.float32, True)
        assert np.array_equal(found, right)


def test_wider_numbers_are_rounded_down():
    """float() rounds a long double to nearest: an epsilon must not grow by it."""
    for text in ("0.1", "1.3", "399.99999999999999999"):
        wide = np.longdouble(text)
        number = checks.real("epsilon", wide, 0.01, 1e5)
        assert np.longdouble(number) <= wide < np.longdouble(math.nextafter(number, math.inf))
    assert checks.real("x", 2**53 + 3, 0, 1e20) == 2.0**53 + 2
    assert checks.real("x", np.int64(2**53 + 3), 0, 1e20) == 2.0**53 + 2
    assert checks.real("x", np.float32(0.1), 0, 1) == float(np.float32(0.1))
