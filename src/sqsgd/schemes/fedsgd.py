"""FedSGD: the gradient as float32. Not private; the baseline for accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout
from sqsgd.core import Estimate, Mechanism, Scheme
from sqsgd.randomness import Rng


@dataclass(frozen=True, kw_only=True)
class InClear(Mechanism):
    """Sends the vector unchanged."""

    dim: int

    @property
    def identity(self) -> str:
        return f"float32 {self.dim}"

    @cached_property
    def layout(self) -> Layout:
        return (Column(self.dim, None),)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        return (x,)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return columns[0].astype(np.float64)

    def relative_error(self, share: float) -> float:
        return 0.0

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        return 0.0 if np.array_equal(columns[0], x) else -math.inf


def fedsgd(dim: int, epsilon: float | None = None, bits: int | None = None) -> Scheme:
    """The vector in the clear. Both budgets are ignored."""
    return Scheme(name="fedsgd", dim=dim, transforms=(), mechanism=InClear(dim=dim))
