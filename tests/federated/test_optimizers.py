"""The server's optimizers."""

import numpy as np
import pytest

from sqsgd.federated.optimizers import OPTIMIZERS, Optimizer, UpdateRule


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_descend(kind):
    optimizer, state = Optimizer(kind=kind, rate=0.05), {}
    weights = np.array([3.0, -2.0], np.float32)
    for _ in range(200):
        weights, state = optimizer.step(weights, weights.astype(float), state)
    assert np.abs(weights).max() < 0.1


@pytest.mark.parametrize("given", [{}, {"momentum": 0.5, "second": 0.9, "floor": 0.1}])
def test_momentum_and_adam_take_the_steps_of_the_book(given):
    terms = {"momentum": 0.9, "second": 0.999, "floor": 1e-8, **given}
    one, two, floor = terms.values()
    gradients = np.random.default_rng(3).standard_normal((5, 2))
    weights, state = np.zeros(2, np.float32), {}
    velocity, expected = np.zeros(2), np.zeros(2)
    for gradient in gradients:
        weights, state = Optimizer(kind="momentum", rate=0.1, **given).step(weights, gradient, state)
        velocity = one * velocity + gradient
        expected = expected - 0.1 * velocity
    assert np.allclose(weights, expected, atol=1e-6)
    weights, state, expected = np.zeros(2, np.float32), {}, np.zeros(2)
    first, second = np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(gradients, start=1):
        weights, state = Optimizer(kind="adam", rate=0.1, **terms).step(weights, gradient, state)
        first, second = one * first + (1 - one) * gradient, two * second + (1 - two) * gradient**2
        expected = expected - 0.1 * (first / (1 - one**step)) / (np.sqrt(second / (1 - two**step)) + floor)
    assert np.allclose(weights, expected, atol=1e-6)


def test_an_unknown_optimizer_is_refused_by_name():
    with pytest.raises(ValueError, match="optimizer = 'sgdm' must be one of sgd, momentum, adam"):
        Optimizer(kind="sgdm", rate=0.1)


def test_a_new_optimizer_is_a_class_and_a_row(monkeypatch):
    class Signs(UpdateRule):
        @staticmethod
        def direction(gradient, state, terms):
            return np.sign(gradient), state

    monkeypatch.setitem(OPTIMIZERS, "signs", Signs)
    weights, _ = Optimizer(kind="signs", rate=0.5).step(np.zeros(2, np.float32), np.array([3.0, -0.1]), {})
    assert weights.tolist() == [-0.5, 0.5]
