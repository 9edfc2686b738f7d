"""Worst pairs of inputs: found in a table and improved by hill climbing."""

import numpy as np
import pytest

from sqsgd.audit._worst_inputs import climbed, extreme_inputs, worst_pair


@pytest.mark.parametrize("dim", [1, 2, 3, 7])
def test_inputs_cover_all_corners_and_sizes(dim):
    inputs = extreme_inputs(dim, 2.0, np.random.default_rng(1))
    assert {x.dtype for x in inputs} == {np.dtype(np.float32)}
    lengths = [float(np.linalg.norm(x)) for x in inputs]
    assert sorted({float(f"{length:.3g}") for length in lengths}) == [0.0, 2e-4, 1.0, 60.0]
    for least in (2e-4, 1.0, 60.0):
        signs = {
            tuple(np.sign(x[:3]))
            for x, length in zip(inputs, lengths, strict=True)
            if abs(length / least - 1) < 0.01
        }
        assert len([corner for corner in signs if 0 not in corner]) >= 2 ** min(dim, 3)
        assert tuple(np.eye(dim)[0][:3]) in signs


INPUTS = [np.array(x, np.float32) for x in ([0, 0], [1, 0], [1, 1])]
TABLE = np.array([[0.0, -1.0, -5.0], [-2.0, -1.5, -1.0]])  # one row per output, one column per input


def test_the_worst_pair_of_a_table():
    pair = worst_pair(INPUTS, TABLE, one_coordinate=False)
    assert (pair.first.tolist(), pair.second.tolist()) == ([0, 0], [1, 1])
    assert (pair.output, pair.ratio) == (0, 5.0)


def test_the_worst_pair_of_those_that_differ_in_one_coordinate():
    pair = worst_pair(INPUTS, TABLE, one_coordinate=True)
    assert (pair.first.tolist(), pair.second.tolist()) == ([1, 0], [1, 1])
    assert (pair.output, pair.ratio) == (0, 4.0)


@pytest.mark.parametrize("one_coordinate", [False, True])
def test_hill_climbing_improves_on_the_table(one_coordinate):
    """A density with one narrow peak between the inputs; only coordinates that may differ change."""

    def density(y):
        return -float(np.sum((y - np.array([0.4, 0.0])) ** 2))

    start = worst_pair(INPUTS[:2], np.array([[density(x) for x in INPUTS[:2]]]), one_coordinate=False)
    numbers = np.random.default_rng(2)
    pair = climbed(start, density, 1.0, numbers, one_coordinate=one_coordinate)
    assert pair.ratio == pytest.approx(density(pair.first) - density(pair.second))
    assert density(pair.first) > density(start.first)
    assert density(pair.second) < density(start.second)
    assert np.linalg.norm(pair.first - [0.4, 0.0]) < 0.1
    assert not one_coordinate or pair.first[1] == pair.second[1] == 0
