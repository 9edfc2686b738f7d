"""Directions drawn more often from a cap around the input: the common part of PrivUnit and PrivUnitG.

The base measure of the output v is the same in every direction. Given a unit vector u, the component
t = <v, u> lies beyond an edge g more often than under the base measure; the orthogonal part is unchanged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import add_up
from sqsgd.core import Estimate, Mechanism, Privacy, Traits
from sqsgd.core.codec import Column, Columns, Layout
from sqsgd.core.random import Rng, check_rng
from sqsgd.mechanisms.scalardp import ScalarDP

Doubles = npt.NDArray[np.float64]
_PIECE = 1 << 15  # normal numbers drawn at once: they stay in cache
_CLOSE = 1 + 1e-7  # the error is flat at the best edge: this close to it, it agrees to 14 digits


def normals(count: int, rng: Rng) -> Doubles:
    """Independent standard normal numbers: Box and Muller's method with 53-bit uniforms."""
    result = np.empty(count + (count & 1))
    for start in range(0, result.size, 2 * _PIECE):
        piece = result[start : start + 2 * _PIECE]
        half = piece.size // 2
        uniform = rng.uniforms(piece.size)
        radius = np.sqrt(-2.0 * np.log(uniform[:half] + 2.0**-53))  # in (0, 1]
        angle = 2 * math.pi * uniform[half:]
        np.multiply(radius, np.cos(angle), out=piece[:half])
        np.multiply(radius, np.sin(angle), out=piece[half:])
    return result[:count]


def best_edge(beyond: Callable[[float], bool], most: float) -> float:
    """Nearly the least number up to ``most`` that is ``beyond`` the best one, by bisection in the logarithm.

    It uses only square roots and products, which all machines round the same, so client and server agree.
    """
    low, high = most * 1e-30, most
    while high > _CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high


class Cap(ABC):
    """The law of v given u: density A relative to the base measure where <v, u> >= g, else B; A / B = e^ε.

    With F = P(t >= g) under the base measure, A = e^ε / (1 + (e^ε - 1) F), which puts p on the privacy
    boundary, and E[v] = m u with m = (A - B) E[t; t >= g].

    Guarantees
    ----------
    * ε-LDP in u, in real arithmetic: whether v lies in the cap is drawn exactly, but v itself consists of
      floats, whose last bits may reveal more.
      tests/mechanisms/test_cap_direction.py::test_density_ratio,
      ::test_the_sampler_has_the_density.
    """

    dim: int
    epsilon: float

    @property
    @abstractmethod
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""

    @property
    @abstractmethod
    def edge(self) -> float:
        """g."""

    @abstractmethod
    def tail(self) -> arb:
        """F: the probability of the cap under the base measure."""

    @abstractmethod
    def moment(self) -> arb:
        """E[t; t >= g] under the base measure."""

    @abstractmethod
    def square(self) -> arb:
        """E|v|²."""

    @abstractmethod
    def scaled(self, along: float, across: float) -> tuple[float, float]:
        """v's components along u and orthogonal to it, from those of a standard normal vector."""

    @abstractmethod
    def far(self, across: float, rng: Rng) -> tuple[float, float]:
        """Both components given t >= g, for caps that the base measure rarely reaches: dim g² >= 1."""

    def __getstate__(self) -> dict[str, Any]:
        return {"dim": self.dim, "epsilon": self.epsilon}  # the rest holds functions, which cannot be pickled

    def weights(self) -> tuple[arb, arb]:
        """(A, B)."""
        gain = arb(self.epsilon).expm1()
        low = 1 / (1 + gain * self.tail())
        return (1 + gain) * low, low

    def mean(self) -> arb:
        """m."""
        above, below = self.weights()
        return (above - below) * self.moment()

    @cached_property
    def _side(self) -> exact.InverseCdf:
        def log_odds() -> arb:
            tail = self.tail()
            return self.epsilon + tail.log() - (-tail).log1p()

        return exact.bernoulli(log_odds)

    @cached_property
    def scale(self) -> float:
        """m: the mean of v along u."""
        return exact.nearest(self.mean)

    @cached_property
    def size(self) -> float:
        """The root mean square length of v."""
        return exact.nearest(lambda: self.square().sqrt())

    @cached_property
    def error(self) -> float:
        """E|v / m - u|²."""
        return exact.nearest(lambda: self.square() / self.mean() ** 2 - 1)

    @cached_property
    def log_densities(self) -> tuple[float, float]:
        """(ln A, ln B), rounded towards each other: their difference never exceeds ε."""
        return (
            exact.rounded(lambda: self.weights()[0].log(), -math.inf),
            exact.rounded(lambda: self.weights()[1].log(), math.inf),
        )

    def draw(self, direction: Doubles, rng: Rng) -> Doubles:
        """v for a unit vector, in O(dim): one vector of normal numbers, rarely more than three.

        Unless the cap is far, |t| lies in it with probability at least 31 %, and t lies outside with at least
        one half, so the normal vector is redrawn until its side is right. The orthogonal direction is
        independent of t.
        """
        high = self._side.draw(rng) == 1
        far = high and self.dim * self.edge**2 >= 1
        while True:
            noise = normals(self.dim, rng)
            along = float(noise @ direction)
            noise -= along * direction
            across = math.sqrt(float(noise @ noise))
            if far:
                along, rest = self.far(across, rng)
            else:
                along, rest = self.scaled(abs(along) if high else along, across)
                if (along >= self.edge) != high:
                    continue
            noise *= rest / across if across else 0.0
            noise += along * direction
            return noise


@dataclass(frozen=True, kw_only=True)
class CapDirection(Mechanism):
    """Direction by a cap with ε1, as float32; norm by ScalarDP with ε2, as Bhowmick et al. (2018) do.

    Guarantees
    ----------
    * ε = ε1 + ε2, pure LDP of all columns together, in real arithmetic only (see ``Cap``).
      tests/mechanisms/test_cap_direction.py::test_density_ratio.
    * Unbiased for norms up to ``bound``; longer vectors are scaled down to it.
      tests/schemes/test_estimates.py::test_mean_is_recovered.

    ``log_density`` is relative to the base measure, and distinguishes the sides of the edge up to float32.
    """

    cap: Cap
    norm: ScalarDP  # for norm / bound, so its maximum is 1

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.cap.dim

    @property
    def identity(self) -> str:
        return f"cap ({self.cap.identity}) ({self.norm.identity})"

    @cached_property
    def traits(self) -> Traits:
        return Traits(has_symbol=True, blanket=(self.cap.weights, self.norm.weights))

    @cached_property
    def layout(self) -> Layout:
        return Column(self.dim, None), Column(1, self.norm.levels + 1)

    @cached_property
    def privacy(self) -> Privacy:
        epsilon = add_up(self.cap.epsilon, self.norm.epsilon)
        return Privacy(epsilon=epsilon, notion="local", arithmetic="real")

    def _parts(self, x: Vector, bound: float) -> tuple[Doubles, float]:
        """Direction and norm; a norm below a millionth of the bound counts as zero."""
        direction = checks.shaped("x", x, self.dim).astype(np.float64)
        norm = checks.finite_size("x", math.sqrt(float(direction @ direction)))
        if norm < 1e-6 * bound:
            direction[:] = 0.0
            direction[0] = 1.0
            return direction, 0.0
        direction /= norm
        return direction, norm

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        direction, norm = self._parts(x, bound)
        noisy = self.cap.draw(direction, check_rng(rng)).astype(np.float32)
        return noisy, np.array([self.norm.privatize(norm / bound, rng)], np.uint8)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return columns[0].astype(np.float64) * (self.magnitude(columns, bound) / self.cap.scale)

    def magnitude(self, columns: Columns, bound: float) -> float:
        return bound * self.norm.estimate(int(columns[1][0]))

    def relative_error(self, share: float) -> float:
        """(1 + Var(norm) / norm²) E|v|² / m² - 1, for every vector."""
        spread = self.norm.variance(share) / share**2
        return spread + (1 + spread) * self.cap.error

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        direction, norm = self._parts(x, bound)
        inside = float(columns[0].astype(np.float64) @ direction) >= self.cap.edge
        symbol = self.norm.log_density(int(columns[1][0]), norm / bound)
        return self.cap.log_densities[0 if inside else 1] + symbol
