"""The server's optimisers. All of it is post-processing of private reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sqsgd import checks
from sqsgd.checks import Vector

OptimizerState = Mapping[str, npt.NDArray[np.float64]]
KINDS = ("sgd", "momentum", "adam")


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """sgd, momentum (0.9) or adam (0.9, 0.999) with a learning rate; descends along the mean gradient.

    >>> step = Optimizer(kind="sgd", rate=0.5).step
    >>> step(np.array([1.0, 2.0], np.float32), np.array([1.0, -2.0]), {})[0]
    array([0.5, 3. ], dtype=float32)
    """

    kind: Literal["sgd", "momentum", "adam"]
    rate: float
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"optimizer = {self.kind!r} must be one of {', '.join(KINDS)}")
        checks.positive("lr", self.rate)
        checks.real("momentum", self.momentum, 0.0, 1.0)

    def initial(self) -> OptimizerState:
        """The state before the first step."""
        return {}

    def step(
        self, weights: Vector, gradient: npt.NDArray[np.float64], state: OptimizerState
    ) -> tuple[Vector, OptimizerState]:
        """New weights and new state."""
        if self.kind == "sgd":
            return (weights - self.rate * gradient).astype(np.float32), state
        first = self.momentum * state.get("first", np.zeros_like(gradient)) + (
            gradient if self.kind == "momentum" else (1 - self.momentum) * gradient
        )
        if self.kind == "momentum":
            return (weights - self.rate * first).astype(np.float32), {"first": first}
        steps = float(state.get("steps", np.zeros(1))[0]) + 1
        second = 0.999 * state.get("second", np.zeros_like(gradient)) + 0.001 * gradient**2
        direction = (first / (1 - self.momentum**steps)) / (np.sqrt(second / (1 - 0.999**steps)) + 1e-8)
        after = (weights - self.rate * direction).astype(np.float32)
        return after, {"first": first, "second": second, "steps": np.array([steps])}
