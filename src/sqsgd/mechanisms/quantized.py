"""The base of mechanisms built on PrivQuant: a column of its codes, and optionally a symbol for the size."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import numpy as np

from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout
from sqsgd.core import Mechanism, Privacy
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.numerics.epsilon_sums import add_up
from sqsgd.numerics.exact import Densities
from sqsgd.randomness import Rng


class Quantized(Mechanism):
    """PrivQuant over a range, and ScalarDP for the vector's size where there is a ``symbol``.

    The audit tests the codes and the symbol of every such mechanism against their exact laws.

    Guarantees
    ----------
    * ε = ε1 + ε2, pure LDP of all columns together: tests/schemes/test_privacy.py::test_exact_privacy, and
      ::test_what_is_sent_has_the_density_that_privacy_is_proved_of.
    """

    quantizer: PrivQuant

    @property
    @abstractmethod
    def symbol(self) -> ScalarDP | None:
        """The mechanism for the size over the bound; None where the size is not reported."""

    @property
    def own_reach(self) -> float | None:
        """The range in root mean squares of the vector itself; None where the range is public."""
        return None

    @abstractmethod
    def prepared(self, x: Vector, bound: float) -> tuple[Vector, float, float | None]:
        """The vector to quantise, the quantiser's half-range, and the size over the bound for the symbol."""

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.quantizer.dim

    @property
    def has_symbol(self) -> bool:
        return self.symbol is not None

    @cached_property
    def layout(self) -> Layout:
        codes = Column(self.dim, self.quantizer.levels)
        return (codes, Column(1, self.symbol.levels + 1)) if self.symbol else (codes,)

    @cached_property
    def privacy(self) -> Privacy:
        parts = [self.quantizer.epsilon] + ([self.symbol.epsilon] if self.symbol else [])
        return Privacy(epsilon=add_up(*parts), notion="local")

    @property
    def blanket(self) -> tuple[Densities, ...]:
        return (self.quantizer.law.weights, *([self.symbol.weights] if self.symbol else []))

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        x, half_range, size = self.prepared(x, bound)
        codes = self.quantizer.randomize(x, half_range, rng)
        if self.symbol is None or size is None:
            return (codes,)
        return codes, np.array([self.symbol.privatize(size, rng)], np.uint8)

    def magnitude(self, columns: Columns, bound: float) -> float | None:
        return None if self.symbol is None else bound * self.symbol.estimate(int(columns[1][0]))

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        x, half_range, size = self.prepared(x, bound)
        density = self.quantizer.log_likelihood(columns[0], x, half_range)
        if self.symbol is None or size is None:
            return density
        return density + self.symbol.log_density(int(columns[1][0]), size)
