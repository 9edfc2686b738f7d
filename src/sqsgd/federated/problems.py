"""What the engine trains: a model and the data of its clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sqsgd.checks import Vector
from sqsgd.core import Indices, Vectors

Losses = npt.NDArray[np.float64]


class Problem(Protocol):
    """A model of ``dim`` weights and the data of ``clients`` clients."""

    @property
    def dim(self) -> int:
        """Trainable parameters."""

    @property
    def clients(self) -> int:
        """Number of clients."""

    def gradients(self, weights: Vector, round: int, cohort: Sequence[int]) -> Iterator[tuple[float, Vector]]:
        """Each client's loss and gradient, in order. Neither leaves the client; the loss is for plots."""

    def size(self, client: int) -> int:
        """The client's number of examples; public."""

    def cohort(self, round: int) -> Sequence[int]:
        """The clients of a round."""


@runtime_checkable
class RowProblem(Problem, Protocol):
    """A problem that computes the gradients of many clients at once."""

    def gradient_rows(self, weights: Vector, round: int, cohort: Indices) -> tuple[Losses, Vectors]:
        """The losses of these clients, and their gradients, one row each."""
