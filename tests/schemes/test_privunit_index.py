"""PrivUnit as an index: the error of PrivUnit in two bytes, with exact probabilities."""

import numpy as np
import pytest
from reference import g_test

from sqsgd import make_scheme, seeded_rng
from sqsgd.schemes.privunit import sphere_cap
from sqsgd.schemes.privunit_index import NearestVertices, best_nearest, largest_sum


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("dim", [64, 1024, 4096])
def test_the_error_is_that_of_privunit(dim, epsilon):
    """PrivUnit sends 32 bits per coordinate; this sends log2(2 dim) in total."""
    error = make_scheme("privunit-index", dim=dim, epsilon=epsilon).nmse
    best = sphere_cap(dim, epsilon).error
    assert 0.99 * best < error < (1.02 if dim == 4096 else 1.3) * best


@pytest.mark.parametrize(("dim", "count"), [(64, 1), (64, 10), (64, 64), (1024, 30), (4096, 4000)])
def test_the_largest_coordinates_add_up_as_expected(dim, count):
    vectors = np.random.default_rng(1).standard_normal((2000, dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sums = np.sort(np.abs(vectors), axis=1)[:, dim - count :].sum(axis=1)
    assert (
        abs(np.mean(sums) / largest_sum(dim, count) - 1)
        < 0.006 + 4 * np.std(sums) / np.mean(sums) / 2000**0.5
    )


@pytest.mark.parametrize("epsilon", [0.1, 3.0, 8.0, 30.0])
def test_no_other_number_of_vertices_is_better(epsilon):
    best = NearestVertices(dim=256, epsilon=epsilon, nearest=best_nearest(256, epsilon)).scale
    for count in range(1, 257):
        assert NearestVertices(dim=256, epsilon=epsilon, nearest=count).scale < 1.002 * best


def test_always_sending_a_nearest_vertex_is_caught(monkeypatch):
    """With p = 1 nothing is private, and the G-test of the contract fails."""
    mechanism = NearestVertices(dim=4, epsilon=2.0, nearest=2)
    x = np.array([0.5, -0.3, 0.2, 0.1], np.float32)
    expected = [4000 * np.exp(mechanism.log_density((np.array([c], np.uint32),), x, 0.8)) for c in range(8)]

    def counts():
        rng, seen = seeded_rng(5), np.zeros(8)
        for _ in range(4000):
            seen[int(mechanism.randomize(x, 0.8, rng)[0][0])] += 1
        return seen

    assert g_test(counts(), expected) > 1e-6
    monkeypatch.setattr(type(mechanism._is_near), "draw", lambda self, rng: 1)
    assert g_test(counts(), expected) < 1e-6
