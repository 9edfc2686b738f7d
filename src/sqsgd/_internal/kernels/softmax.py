"""Gradients of a softmax classifier for many clients at once."""

import numpy as np

from sqsgd._internal.kernels import compiled, inlined

_LANES = 16


@inlined
def _dot(weights, x):
    """The inner product, as interleaved sums: a single one cannot be vectorised."""
    sums = np.zeros(_LANES, np.float32)
    whole = x.size - x.size % _LANES
    for start in range(0, whole, _LANES):
        left, right = weights[start : start + _LANES], x[start : start + _LANES]
        for j in range(_LANES):
            sums[j] += left[j] * right[j]
    for j in range(whole, x.size):
        sums[0] += weights[j] * x[j]
    total = np.float32(0)
    for j in range(_LANES):
        total += sums[j]
    return total


@inlined
def _errors(scores, label):
    """scores = softmax(scores) minus one at the label. Returns the cross entropy."""
    most = scores.max()
    whole = 0.0
    for c in range(scores.size):
        scores[c] -= most
        whole += np.exp(scores[c])
    loss = np.log(whole) - scores[label]
    for c in range(scores.size):
        scores[c] = np.exp(scores[c]) / whole
    scores[label] -= 1.0
    return loss


@compiled
def softmax_gradients(features, labels, weights, biases, chosen, bounds, losses, gradients):
    """Mean loss and gradient of each client over the examples chosen[bounds[i]:bounds[i + 1]].

    A gradient holds the weights' part, class by class, then the biases' part if the model has biases.
    """
    classes, width = weights.shape
    scores = np.empty(classes)
    for i in range(losses.size):
        row, loss = gradients[i], 0.0
        row[:] = np.float32(0)
        share = 1.0 / (bounds[i + 1] - bounds[i])
        for at in range(bounds[i], bounds[i + 1]):
            x, label = features[chosen[at]], labels[chosen[at]]
            for c in range(classes):
                scores[c] = np.float64(_dot(weights[c], x))
                if biases.size:
                    scores[c] += np.float64(biases[c])
            loss += _errors(scores, label)
            for c in range(classes):
                error = np.float32(scores[c] * share)
                part = row[c * width : (c + 1) * width]
                for j in range(width):
                    part[j] += error * x[j]
                if biases.size:
                    row[classes * width + c] += error
        losses[i] = loss * share
