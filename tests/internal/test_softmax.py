"""Gradients of a softmax by a kernel, against the formula."""

import numpy as np
import pytest

from sqsgd._internal.kernels.softmax import softmax_gradients


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("width", "classes"), [(1, 2), (16, 3), (50, 10), (392, 10)])
def test_gradients_are_those_of_the_formula(width, classes, biased):
    draw = np.random.default_rng(width)
    features = draw.standard_normal((30, width)).astype(np.float32)
    labels = draw.integers(0, classes, 30)
    weights = draw.standard_normal((classes, width)).astype(np.float32)
    biases = draw.standard_normal(classes).astype(np.float32) if biased else np.empty(0, np.float32)
    chosen, bounds = draw.integers(0, 30, 12), np.array([0, 1, 2, 7, 12])
    losses, rows = np.empty(4), np.empty((4, weights.size + biases.size), np.float32)
    softmax_gradients(features, labels, weights, biases, chosen, bounds, losses, rows)
    for i in range(4):
        mine = chosen[bounds[i] : bounds[i + 1]]
        scores = features[mine].astype(float) @ weights.T + (biases if biased else 0.0)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        assert losses[i] == pytest.approx(
            -np.mean(np.log(shares[np.arange(len(mine)), labels[mine]])), rel=1e-5
        )
        shares[np.arange(len(mine)), labels[mine]] -= 1
        expected = (shares.T @ features[mine] / len(mine)).reshape(-1)
        if biased:
            expected = np.append(expected, shares.mean(axis=0))
        assert np.abs(rows[i] - expected).max() < 1e-5


def test_large_scores_do_not_overflow():
    features, labels = np.full((2, 4), 1e3, np.float32), np.array([0, 1])
    weights = np.array([[1e3] * 4, [-1e3] * 4], np.float32)
    losses, rows = np.empty(2), np.empty((2, 8), np.float32)
    none, ends = np.empty(0, np.float32), np.array([0, 1, 2])
    softmax_gradients(features, labels, weights, none, np.array([0, 1]), ends, losses, rows)
    assert losses.tolist() == [0.0, 8e6]
    assert rows.tolist() == [[0.0] * 8, [1e3] * 4 + [-1e3] * 4]
