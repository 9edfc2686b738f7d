"""A public step before the mechanism, which the server undoes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sqsgd.checks import Vector
from sqsgd.task import Task, Tasks

Codes = npt.NDArray[np.uint32]
Vectors = npt.NDArray[np.float32]
"""A vector of each client in each row."""
Estimate = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Transform(ABC):
    """A public step with a linear inverse, which the server applies.

    >>> from sqsgd.transforms import Rotate
    >>> task = Task(round=0, client=0, seed=1, dim=4, bound=1.0)
    >>> x = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    >>> np.round(Rotate().inverse(Rotate().forward(x, task).astype(float), task, 4), 4).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """

    checks_input: ClassVar[bool] = False
    """``forward`` rejects NaN and infinity in the pass that it makes anyway."""

    spreads: ClassVar[bool] = False
    """``inverse`` spreads the error of one coordinate over all of them."""

    shared: bool
    """The same for all clients of a round, so the server inverts it once, after the sum."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""

    @abstractmethod
    def out_dim(self, dim: int) -> int:
        """Length of the output for inputs of length ``dim``."""

    @abstractmethod
    def forward(self, x: Vector, task: Task) -> Vector:
        """The client's side. May return ``x`` itself; never changes it."""

    @abstractmethod
    def inverse(self, y: Estimate, task: Task, dim: int) -> Estimate:
        """The server's side: back to length ``dim``."""

    def forward_many(self, x: Vectors, tasks: Tasks) -> Vectors:
        """``forward`` of each row; override it where one pass over all rows is faster."""
        return np.stack([self.forward(row, task) for row, task in zip(x, tasks, strict=True)])

    def inverse_codes(self, codes: Codes, tasks: Tasks, dim: int) -> Vectors | None:
        """The inverse of vectors that are ± 1 where codes 2 place + sign say, else 0; codes in each row.

        Padding is not cut off. A row times a factor is the inverse of the vector times the factor, to the
        last bit. None where it is not offered.
        """
        return None

    def coordinates(self, task: Task, dim: int) -> Indices | None:
        """The coordinates of the input that the step keeps; None where all of them contribute."""
        return None

    def add_inverse(self, y: Estimate, task: Task, total: Estimate) -> None:
        """total += inverse(y); override it where most of the inverse is zero."""
        total += self.inverse(y, task, total.size)

    def error_before(self, error: float, dim: int) -> float:
        """The relative squared error of the input, a vector of length ``dim``, from that of the output."""
        return error
