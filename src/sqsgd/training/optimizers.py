"""The server's optimizers: post-processing of private reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from sqsgd._internal.checks import Vector

Gradient = npt.NDArray[np.float64]
OptimizerState = Mapping[str, Gradient]
Direction = tuple[Gradient, OptimizerState]
MOMENTUM, SQUARES, FLOOR = 0.9, 0.999, 1e-8
"""Decay of gradients; Adam's decay of squares, and what it adds to the root that it divides by."""


def sgd(gradient: Gradient, state: OptimizerState) -> Direction:
    """The gradient itself."""
    return gradient, state


def momentum(gradient: Gradient, state: OptimizerState) -> Direction:
    """The sum of all gradients, each times 0.9 for every step since."""
    first = MOMENTUM * state.get("first", np.zeros_like(gradient)) + gradient
    return first, {"first": first}


def adam(gradient: Gradient, state: OptimizerState) -> Direction:
    """Kingma and Ba: the running mean over the root of the running square, with bias correction."""
    first = MOMENTUM * state.get("first", np.zeros_like(gradient)) + (1 - MOMENTUM) * gradient
    second = SQUARES * state.get("second", np.zeros_like(gradient)) + (1 - SQUARES) * gradient**2
    steps = float(state.get("steps", np.zeros(1))[0]) + 1
    direction = (first / (1 - MOMENTUM**steps)) / (np.sqrt(second / (1 - SQUARES**steps)) + FLOOR)
    return direction, {"first": first, "second": second, "steps": np.array([steps])}


OPTIMIZERS: dict[str, Callable[[Gradient, OptimizerState], Direction]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adam": adam,
}
"""Every optimizer by name: from the mean gradient and its state to the direction and the new state."""


def step(
    optimizer: str, rate: float, weights: Vector, gradient: Gradient, state: OptimizerState
) -> tuple[Vector, OptimizerState]:
    """New weights and new state: one step down the optimizer's direction.

    >>> step("sgd", 0.5, np.array([1.0, 2.0], np.float32), np.array([1.0, -2.0]), {})[0]
    array([0.5, 3. ], dtype=float32)
    """
    direction, after = OPTIMIZERS[optimizer](gradient, state)
    return (weights - rate * direction).astype(np.float32), after


def check_optimizer(name: str) -> None:
    """Raise ValueError for an unknown optimizer."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer = {name!r} must be one of {', '.join(OPTIMIZERS)}")
