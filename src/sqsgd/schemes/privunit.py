"""PrivUnit (Bhowmick et al. 2018): a random point of the sphere, more often from a cap around the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

from flint import arb

from sqsgd.core import Scheme
from sqsgd.mechanisms.cap_direction import Cap, best_edge
from sqsgd.numerics import exact
from sqsgd.numerics.sphere import chance, edge
from sqsgd.randomness import Rng
from sqsgd.schemes._on_grid import cap_scheme


@final
@dataclass(frozen=True, kw_only=True)
class SphereCap(Cap):
    """The base measure is uniform on the unit sphere: t has density proportional to (1 - t²)^((d-3)/2).

    The best edge is g = m (Asi, Feldman and Talwar 2022): m(g) rises while g < m. That is
    g = (e^ε - 1) E[(t - g)+], whose left side rises and whose right side falls, so it is unique. The
    error is then 1/m² - 1. For d = 1 it is randomised response of the sign, with any edge in (-1, 1).

    The edge is stored as ln(1 - g²), which is accurate for caps from a half sphere down to a point.

    >>> round(SphereCap(dim=119850, epsilon=400.0).error, 1)
    153.5
    """

    dim: int
    epsilon: float

    @property
    def identity(self) -> str:
        return f"sphere {self.dim} {self.epsilon!r}"

    @cached_property
    def log_width(self) -> float:
        """ln(1 - g²)."""

        def beyond(width: float) -> bool:
            return bool(edge(-width) > arb(self.epsilon).expm1() * chance(self.dim, -width)[2])

        # At this width, (1 - g²)^((d-1)/2) is e^-(ε + 40): far beyond the best edge.
        with exact.precision(exact.START_BITS):
            return -best_edge(beyond, 2 * (self.epsilon + 40) / (self.dim - 1))

    @cached_property
    def edge(self) -> float:
        return 0.0 if self.dim == 1 else math.sqrt(-math.expm1(self.log_width))

    def tail(self) -> arb:
        return arb(1) / 2 if self.dim == 1 else chance(self.dim, self.log_width)[0]

    def moment(self) -> arb:
        return arb(1) / 2 if self.dim == 1 else chance(self.dim, self.log_width)[1]

    def square(self) -> arb:
        return arb(1)

    def scaled(self, along: float, across: float) -> tuple[float, float]:
        length = math.hypot(along, across)
        return along / length, across / length

    def far(self, across: float, rng: Rng) -> tuple[float, float]:
        """By rejection: z = 1 - t² has density z^((d-3)/2) / t below 1 - g². The power is drawn by inversion
        and accepted with probability g / t, on average at least g / √E[t²] >= 1/√3 where d g² >= 1."""
        while True:
            log_rest = self.log_width + 2 * math.log1p(-rng.uniform()) / (self.dim - 1)
            along = math.sqrt(-math.expm1(log_rest))
            if rng.uniform() * along <= self.edge:
                return along, math.exp(log_rest / 2)


@lru_cache(maxsize=256)
def sphere_cap(dim: int, epsilon: float) -> SphereCap:
    """The cap, cached."""
    return SphereCap(dim=dim, epsilon=epsilon)


def privunit(
    dim: int,
    epsilon: float,
    bits: int | None = None,
    *,
    levels: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """Direction by PrivUnit with the best cap, norm by ScalarDP; see ``cap_scheme`` for the budget."""
    return cap_scheme(
        "privunit", sphere_cap, dim, epsilon, bits, levels=levels, reach=reach, norm_epsilon=norm_epsilon
    )
