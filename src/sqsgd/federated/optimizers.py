"""The server's optimizers: post-processing of private reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sqsgd import checks
from sqsgd.checks import Vector

Gradient = npt.NDArray[np.float64]
OptimizerState = Mapping[str, Gradient]
Direction = tuple[Gradient, OptimizerState]


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """sgd, momentum (0.9) or adam (0.9, 0.999) with a learning rate; descends along the mean gradient.

    >>> step = Optimizer(kind="sgd", rate=0.5).step
    >>> step(np.array([1.0, 2.0], np.float32), np.array([1.0, -2.0]), {})[0]
    array([0.5, 3. ], dtype=float32)
    """

    kind: str
    rate: float
    momentum: float = 0.9
    second: float = 0.999
    """Adam's decay of squares."""
    floor: float = 1e-8
    """What Adam adds to the root that it divides by."""

    def __post_init__(self) -> None:
        check_optimizer(self.kind)
        checks.positive("lr", self.rate)
        checks.real("momentum", self.momentum, 0.0, 1.0)
        checks.real("second", self.second, 0.0, 1.0)
        checks.positive("floor", self.floor)

    def initial(self) -> OptimizerState:
        """The state before the first step."""
        return {}

    def step(
        self, weights: Vector, gradient: Gradient, state: OptimizerState
    ) -> tuple[Vector, OptimizerState]:
        """New weights and new state."""
        direction, after = OPTIMIZERS[self.kind].direction(gradient, state, self)
        return (weights - self.rate * direction).astype(np.float32), after


class UpdateRule(ABC):
    """The direction of a step, from the mean gradient and what the rule remembers."""

    default_rate: ClassVar[float] = 0.01
    """The default learning rate as a multiple of sgd's (``rates.learning_rate``)."""

    @staticmethod
    @abstractmethod
    def direction(gradient: Gradient, state: OptimizerState, terms: Optimizer) -> Direction:
        """The direction to descend, and the new state."""


class Sgd(UpdateRule):
    """The gradient itself."""

    default_rate = 1.0

    @staticmethod
    def direction(gradient: Gradient, state: OptimizerState, terms: Optimizer) -> Direction:
        return gradient, state


class Momentum(UpdateRule):
    """The sum of all gradients, each times ``momentum`` for every step since."""

    @staticmethod
    def direction(gradient: Gradient, state: OptimizerState, terms: Optimizer) -> Direction:
        first = terms.momentum * state.get("first", np.zeros_like(gradient)) + gradient
        return first, {"first": first}


class Adam(UpdateRule):
    """Kingma and Ba: the running mean over the root of the running square, with bias correction."""

    @staticmethod
    def direction(gradient: Gradient, state: OptimizerState, terms: Optimizer) -> Direction:
        one, two = terms.momentum, terms.second
        first = one * state.get("first", np.zeros_like(gradient)) + (1 - one) * gradient
        second = two * state.get("second", np.zeros_like(gradient)) + (1 - two) * gradient**2
        steps = float(state.get("steps", np.zeros(1))[0]) + 1
        direction = (first / (1 - one**steps)) / (np.sqrt(second / (1 - two**steps)) + terms.floor)
        return direction, {"first": first, "second": second, "steps": np.array([steps])}


OPTIMIZERS: dict[str, type[UpdateRule]] = {"sgd": Sgd, "momentum": Momentum, "adam": Adam}
"""Every optimizer by name; a new one is a class and a row."""


def check_optimizer(kind: str) -> None:
    """Raise ValueError for an unknown optimizer."""
    if kind not in OPTIMIZERS:
        raise ValueError(f"optimizer = {kind!r} must be one of {', '.join(OPTIMIZERS)}")
