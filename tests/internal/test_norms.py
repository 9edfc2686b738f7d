"""Norms and clipping."""

import numpy as np
import pytest
from cases import CASES, task, unit_vector

from sqsgd import seeded_rng
from sqsgd._internal.geometry import clipped, l2_norm, row_norms


def test_clipping_keeps_the_direction():
    x = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    norm = l2_norm(x)
    assert clipped(x, None) is x
    assert np.array_equal(clipped(x, 2 * norm), x)
    assert np.isclose(l2_norm(clipped(x, norm / 2)), norm / 2)
    assert np.allclose(clipped(x, norm / 2) * 2, x, rtol=1e-5)


def test_norms_of_tiny_and_huge_vectors():
    x = np.random.default_rng(1).standard_normal(100).astype(np.float32)
    for factor in (1e-25, 1e-12, 1.0, 1e12):
        assert np.isclose(l2_norm(x * np.float32(factor)), l2_norm(x) * factor)


@pytest.mark.parametrize("case", [case for case in CASES if case.notion != "per-weight"], ids=str)
def test_every_scheme_clips_to_the_task(case):
    """A long vector with a clip gives the same message as the vector clipped by hand.

    Not where single weights are protected: clipping is refused there (tests/schemes/test_coordinatewise.py).
    """
    scheme, x = case.make(), 50 * unit_vector(300)
    with_clip, without = task(scheme, clip=0.01), task(scheme)
    columns = [
        scheme.open(scheme.encode(vector, t, seeded_rng(1)), t)
        for vector, t in ((x, with_clip), (clipped(x, 0.01), without))
    ]
    for one, other in zip(*columns, strict=True):
        assert np.array_equal(one, other)


def test_norms_of_rows_are_those_of_single_vectors():
    x = np.random.default_rng(5).standard_normal((50, 130)).astype(np.float32)
    x[3] = 0
    x[4, 7] = np.inf
    assert row_norms(x).tolist() == [l2_norm(row) for row in x]
