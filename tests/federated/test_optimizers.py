"""The server's optimisers."""

import numpy as np
import pytest

from sqsgd.federated.optimizers import Optimizer


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_optimizers_descend(kind):
    optimizer, state = Optimizer(kind=kind, rate=0.05), {}
    weights = np.array([3.0, -2.0], np.float32)
    for _ in range(200):
        weights, state = optimizer.step(weights, weights.astype(float), state)
    assert np.abs(weights).max() < 0.1


def test_momentum_and_adam_take_the_steps_of_the_book():
    gradients = np.random.default_rng(3).standard_normal((5, 2))
    weights, state = np.zeros(2, np.float32), {}
    velocity, expected = np.zeros(2), np.zeros(2)
    for gradient in gradients:
        weights, state = Optimizer(kind="momentum", rate=0.1).step(weights, gradient, state)
        velocity = 0.9 * velocity + gradient
        expected = expected - 0.1 * velocity
    assert np.allclose(weights, expected, atol=1e-6)
    weights, state, expected = np.zeros(2, np.float32), {}, np.zeros(2)
    first, second = np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(gradients, start=1):
        weights, state = Optimizer(kind="adam", rate=0.1).step(weights, gradient, state)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        expected = expected - 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    assert np.allclose(weights, expected, atol=1e-6)
