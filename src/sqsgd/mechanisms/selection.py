"""Private selection of a coordinate, preferring large magnitudes (FedSel, section 4).

Coordinates are ranked by magnitude, the largest at 0; ties keep their order. Every vector thus has exactly
one ranking, and the privacy of a law over ranks is the ratio of its weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
import numpy.typing as npt
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd.core.random import Rng
from sqsgd.mechanisms.channels import LEAST_EPSILON, MOST_EPSILON, Floats

Ranks = npt.NDArray[np.int64]


class Selection(ABC):
    """A law over the ranks 0..dim-1 whose weights differ by exactly e^ε."""

    dim: int
    epsilon: float

    @property
    @abstractmethod
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""

    @abstractmethod
    def choose(self, magnitudes: Vector, picks: int, rng: Rng) -> Ranks:
        """The coordinates of ``picks`` independent picks."""

    @abstractmethod
    def log_probability(self, ranks: npt.NDArray[Any]) -> Floats:
        """ln of the probability of picking the coordinate of each rank."""


@final
class TopSet(Selection):
    """Perturbed sampling (PS): weight e^ε for each of the ``top`` largest coordinates, 1 for the others.

    Guarantees
    ----------
    * Exactly ``epsilon``-LDP as implemented: the side is drawn exactly, then a coordinate uniformly.
      tests/mechanisms/test_selection.py::test_selection_is_exactly_private.

    >>> TopSet(dim=100, top=10, epsilon=2.0).log_probability(np.array([0, 99])).round(3).tolist()
    [-3.099, -5.099]
    """

    def __init__(self, dim: int, top: int, epsilon: float) -> None:
        self.dim = checks.integer("dim", dim, 2, 2**32 - 1)
        self.top = checks.integer("top", top, 1, dim - 1)
        self.epsilon = checks.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)
        self._is_top = exact.bernoulli(self._log_odds)

    def __reduce__(self) -> tuple[type[TopSet], tuple[int, int, float]]:
        return TopSet, (self.dim, self.top, self.epsilon)

    @property
    def identity(self) -> str:
        return f"top {self.top} of {self.dim} {self.epsilon!r}"

    def _log_odds(self) -> arb:
        return arb(self.epsilon) + (arb(self.top) / (self.dim - self.top)).log()

    def choose(self, magnitudes: Vector, picks: int, rng: Rng) -> Ranks:
        sides = [self._is_top.draw(rng) for _ in range(picks)]
        top = largest(magnitudes, self.top)
        others = np.ones(self.dim, np.bool_)
        others[top] = False
        rest = np.flatnonzero(others)
        chosen = (top[rng.below(self.top)] if side else rest[rng.below(rest.size)] for side in sides)
        return np.fromiter(chosen, np.int64, picks)

    def log_probability(self, ranks: npt.NDArray[Any]) -> Floats:
        largest_weight = np.logaddexp(np.log(self.top), np.log(self.dim - self.top) - self.epsilon)
        return np.asarray(np.where(ranks < self.top, 0.0, -self.epsilon) - largest_weight)


@final
class RankWeights(Selection):
    """The exponential mechanism (EM) on ranks: weight e^{-ε rank / (dim - 1)}.

    Guarantees
    ----------
    * Exactly ``epsilon``-LDP as implemented: all vectors have the same normaliser, and the rank is drawn
      exactly. tests/mechanisms/test_selection.py::test_selection_is_exactly_private.

    >>> RankWeights(dim=100, epsilon=2.0).log_probability(np.array([0, 99])).round(3).tolist()
    [-3.77, -5.77]
    """

    def __init__(self, dim: int, epsilon: float) -> None:
        self.dim = checks.integer("dim", dim, 2, 2**32 - 1)
        self.epsilon = checks.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)
        self._rank = exact.InverseCdf(self.dim - 1, self._cdf, ())

    def __reduce__(self) -> tuple[type[RankWeights], tuple[int, float]]:
        return RankWeights, (self.dim, self.epsilon)

    @property
    def identity(self) -> str:
        return f"ranks of {self.dim} {self.epsilon!r}"

    def _cdf(self, rank: int) -> arb:
        rate = -arb(self.epsilon) / (self.dim - 1)
        return (rate * (rank + 1)).expm1() / (rate * self.dim).expm1()

    def choose(self, magnitudes: Vector, picks: int, rng: Rng) -> Ranks:
        ranks = [self._rank.draw(rng) for _ in range(picks)]
        return np.asarray(ranking(magnitudes)[ranks], np.int64)

    def log_probability(self, ranks: npt.NDArray[Any]) -> Floats:
        rate = self.epsilon / (self.dim - 1)
        whole = np.log(np.expm1(-rate * self.dim) / np.expm1(-rate))
        return np.asarray(-rate * ranks - whole)


def ranking(magnitudes: Vector) -> Ranks:
    """The coordinates from the largest magnitude to the smallest; ties keep their order."""
    return np.argsort(-magnitudes, kind="stable")


def largest(magnitudes: Vector, count: int) -> Ranks:
    """``ranking(magnitudes)[:count]`` in some order, in linear time that the magnitudes do not change."""
    from sqsgd._internal.kernels.sampling import select_largest

    chosen = np.empty(count, np.int64)
    select_largest(np.ascontiguousarray(magnitudes, np.float32).view(np.uint32), chosen)
    return chosen
