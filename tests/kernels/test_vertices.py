"""The vertices of a cross-polytope near to a vector, by sorting."""

import numpy as np
import pytest
from sqsgd.kernels.sampling import draw_vertices


def expected(row, nearest, reverse, side, rank):
    """All nearest vertices and all others in rising order; ties count from the front."""
    places = np.sort(np.argsort(-np.abs(row), kind="stable")[:nearest])
    near = 2 * places + (row[places] < 0)
    near ^= reverse
    others = np.setdiff1d(np.arange(2 * row.size), near)
    return (others, near)[side][rank]


def drawn(x, nearest, reverse, sides, ranks):
    codes = np.empty(len(x), np.uint32)
    draw_vertices(x, nearest, reverse, sides, ranks, codes)
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
    codes = drawn(x, nearest, reverse, sides, ranks)
    for i in range(rows):
        assert codes[i] == expected(x[i], nearest, reverse[i], sides[i], ranks[i])
