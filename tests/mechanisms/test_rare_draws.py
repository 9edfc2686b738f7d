"""At a budget of hundreds no sample shows the unlikely side: here a script draws it, and it must be sent.

A program that left it out where it is rarer than one report in a hundred would have an infinite epsilon. The
words that lead there are in test_sampler_tables.py.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from sqsgd import PrivQuant, secure_rng
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches
from sqsgd.schemes.privunit_index import NearestVertices


def always(value):
    """In place of a table."""
    return SimpleNamespace(draw=lambda rng: value, draw_many=lambda count, rng: np.full(count, value))


def signs(dim):
    return np.where(np.random.default_rng(1).random(dim) < 0.5, -1, 1).astype(np.float32)


@pytest.mark.parametrize("levels", [2, 5, 16])
def test_any_number_of_matches_is_sent(levels):
    quantizer = PrivQuant(512, levels, 394.0)
    assert quantizer.keep > 0.99
    x, codes = 2 * signs(512), (signs(512) > 0) * np.uint8(levels - 1)
    for wanted in (0, 1, quantizer.threshold - 1, quantizer.threshold, 512):
        quantizer.law.__dict__["sampler"] = always(wanted)
        assert np.count_nonzero(quantizer.privatize(codes, secure_rng()) == codes) == wanted
        assert np.count_nonzero(quantizer.randomize(x, 1.0, secure_rng())[0] == codes) == wanted


def matches(columns, x, largest):
    """Of each row, how many codes are signed coordinates of the largest ones of x."""
    near = [2 * place + (x[place] < 0) for place in np.argsort(-np.abs(x), kind="stable")[:largest]]
    return np.isin(columns[0], near).sum(axis=-1)


def test_any_pair_of_matches_and_wrong_signs_is_sent():
    law = SparseLaw(size=4096, near=64, count=64, threshold=40, epsilon=394.0)
    made, x = SparseMatches(law=law), np.arange(4096, 0, -1).astype(np.float32) * signs(4096)
    for rank in range(0, law.rank(law.most_hits, 0) + 1, 97):
        right, _ = law.pair(rank)
        law.__dict__["sampler"] = always(rank)
        assert matches(made.randomize(x, 1.0, secure_rng()), x, 64) == right
        rows = made.randomize_many(np.tile(x, (3, 1)), 1.0, secure_rng())
        assert matches(rows, x, 64).tolist() == [right] * 3


@pytest.mark.parametrize("side", [0, 1])
def test_near_and_far_vertices_are_sent(side):
    made, x = NearestVertices(dim=4096, epsilon=394.0, nearest=3), np.arange(4096, 0, -1).astype(np.float32)
    made.__dict__["_is_near"] = always(side)
    rows = made.randomize_many(np.tile(x, (50, 1)), 1.0, secure_rng())
    alone = [made.randomize(x, 1.0, secure_rng()) for _ in range(50)]
    assert matches(rows, x, 3).tolist() == [matches(each, x, 3) for each in alone] == [side] * 50
