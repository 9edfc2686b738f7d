"""The vertices of a cross-polytope near to a vector, by sorting."""

import numpy as np
import pytest

from sqsgd.kernels.vertices import draw_vertices


def expected(row, nearest, reverse, side, rank):
    """All nearest vertices and all others in rising order; ties count from the front."""
    places = np.sort(np.argsort(-np.abs(row), kind="stable")[:nearest])
    near = 2 * places + (row[places] < 0)
    near ^= reverse
    others = np.setdiff1d(np.arange(2 * row.size), near)
    return (others, near)[side][rank]


def drawn(x, bound, nearest, uniforms, sides, ranks, slack=1e-9):
    codes, unsure = np.empty(len(x), np.uint32), np.empty(len(x), np.bool_)
    draw_vertices(x, bound, nearest, uniforms, sides, ranks, slack, codes, unsure)
    return codes, unsure


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
    sides = draw.integers(0, 2, rows)
    counts = np.where(sides, nearest, 2 * size - nearest)
    ranks = np.where(draw.random(rows) < 0.3, counts - 1, draw.integers(0, counts))
    ranks[: rows // 4] = 0
    bound, uniforms = 1.5 * size**0.5, draw.random(rows)
    codes, unsure = drawn(x, bound, nearest, uniforms, sides, ranks)
    assert not unsure.any()
    for i in range(rows):
        share = min(np.linalg.norm(x[i].astype(float)) / bound, 1.0)
        reverse = int(uniforms[i] >= (1 + share) / 2)
        assert codes[i] == expected(x[i], nearest, reverse, sides[i], ranks[i])


def test_what_rounding_could_change_is_unsure():
    x = np.zeros((6, 64), np.float32)
    x[:, 3] = [1.0, 1.0, 1.0, np.nan, np.inf, 3e38]
    uniforms = np.array([0.75, 0.7501, 0.751, 0.1, 0.1, 0.1])
    sides = ranks = np.zeros(6, np.int64)
    _, unsure = drawn(x, 2.0, 5, uniforms, sides, ranks, slack=0.001)
    assert unsure.tolist() == [True, True, False, True, True, False]
