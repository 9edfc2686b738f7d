"""Directions drawn more often from a cap around the input: the common part of PrivUnit and PrivUnitG.

Given a unit vector u, t = <v, u> lies beyond an edge g more often than under a base measure of v that is the
same in every direction.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import Densities
from sqsgd.core import Estimate, Part, Privacy
from sqsgd.core.codec import Column, Columns
from sqsgd.core.random import Rng, check_rng
from sqsgd.mechanisms.scalardp import ScalarDP, Sized, log_densities

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
    """Nearly the least number that is ``beyond`` the best one, by bisection that is the same everywhere."""
    low, high = most * 1e-30, most
    while high > _CLOSE * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Cap(Part):
    """The law of v given u: density A relative to the base measure where <v, u> >= g, else B; A / B = e^ε.

    With F = P(t >= g) under the base measure, A = e^ε / (1 + (e^ε - 1) F), which puts p on the privacy
    boundary, and E[v] = m u with m = (A - B) E[t; t >= g].

    Guarantees
    ----------
    * ε-LDP in u, in real arithmetic: whether v lies in the cap is drawn exactly, but v itself consists of
      floats, whose last bits may reveal more. tests/mechanisms/test_cap_direction.py.
    """

    dim: int
    epsilon: float

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
        """v's components along u and orthogonal to it, from the components of a standard normal vector."""

    @abstractmethod
    def far(self, across: float, rng: Rng) -> tuple[float, float]:
        """Both components given t >= g, for caps that the base measure rarely reaches: dim g² >= 1."""

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
        """(ln A, ln B): their difference never exceeds ε."""
        return log_densities(self.weights, lambda: arb(0))

    def draw(self, direction: Doubles, rng: Rng) -> Doubles:
        """v for a unit vector, from normal vectors until the side is right, which at least 31 % are."""
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
class CapDirection(Sized):
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

    @property
    def code(self) -> tuple[Column, float, Densities]:
        return Column(self.dim, None), self.cap.epsilon, self.cap.weights

    @cached_property
    def privacy(self) -> Privacy:
        return replace(super().privacy, arithmetic="real")

    def _parts(self, x: Vector, bound: float) -> tuple[Doubles, float]:
        """Direction and norm. A norm below a millionth of the bound counts as zero."""
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
        return self.with_symbol(noisy, norm / bound, rng)

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
        return self.cap.log_densities[0 if inside else 1] + self.symbol_density(columns, norm / bound)
