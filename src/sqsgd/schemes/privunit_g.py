"""PrivUnitG (Asi, Feldman and Talwar 2022): PrivUnit with Gaussian noise instead of the sphere's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

from flint import arb

from sqsgd.core import Scheme
from sqsgd.mechanisms.cap_direction import Cap, best_edge
from sqsgd.numerics import exact
from sqsgd.randomness import Rng
from sqsgd.schemes._on_grid import cap_scheme


@final
@dataclass(frozen=True, kw_only=True)
class GaussianCap(Cap):
    """The base measure is N(0, I/d): t is Gaussian with σ² = 1/d, and the orthogonal part is not normalised.

    With γ = g/σ, m = σ φ(γ) (A - B) and E|v|² = 1 + g m. m is largest at g = m; the error E|v|²/m² - 1
    is least a little below, where m - g = σ² m / (2 + g m).

    >>> round(GaussianCap(dim=119850, epsilon=400.0).error, 1)
    154.0
    """

    dim: int
    epsilon: float

    @property
    def identity(self) -> str:
        return f"gaussian {self.dim} {self.epsilon!r}"

    @cached_property
    def deviations(self) -> float:
        """γ: the edge in standard deviations."""

        def beyond(edge: float) -> bool:
            gain, (tail, moment) = arb(self.epsilon).expm1(), _chance(edge)
            mean = gain * moment / (1 + gain * tail)
            return bool(edge > mean - mean / (2 * self.dim + edge * mean))

        with exact.precision(exact.START_BITS):
            return best_edge(beyond, math.sqrt(2 * (self.epsilon + 40)))

    @cached_property
    def edge(self) -> float:
        return self.deviations / math.sqrt(self.dim)

    def tail(self) -> arb:
        return _chance(self.deviations)[0]

    def moment(self) -> arb:
        return _chance(self.deviations)[1] / arb(self.dim).sqrt()

    def square(self) -> arb:
        return 1 + self.deviations / arb(self.dim).sqrt() * self.mean()

    def scaled(self, along: float, across: float) -> tuple[float, float]:
        deviation = 1 / math.sqrt(self.dim)
        return along * deviation, across * deviation

    def far(self, across: float, rng: Rng) -> tuple[float, float]:
        """Marsaglia's tail method: n = √(γ² - 2 ln U), accepted with probability γ / n, on average at least
        γ / √(γ² + 2) >= 1/√3 for γ >= 1."""
        deviation = 1 / math.sqrt(self.dim)
        while True:
            along = math.sqrt(self.deviations**2 - 2 * math.log1p(-rng.uniform()))
            if rng.uniform() * along <= self.deviations:
                return along * deviation, across * deviation


def _chance(deviations: float) -> tuple[arb, arb]:
    """P(N >= γ) and E[N; N >= γ] = φ(γ) of a standard normal N."""
    edge = arb(deviations)
    return (edge / arb(2).sqrt()).erfc() / 2, (-edge * edge / 2).exp() / (2 * arb.pi()).sqrt()


@lru_cache(maxsize=256)
def gaussian_cap(dim: int, epsilon: float) -> GaussianCap:
    """The cap, cached."""
    return GaussianCap(dim=dim, epsilon=epsilon)


def privunit_g(
    dim: int,
    epsilon: float,
    bits: int | None = None,
    *,
    levels: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """Direction by PrivUnitG with the best edge, norm by ScalarDP; see ``cap_scheme`` for the budget."""
    return cap_scheme(
        "privunit-g", gaussian_cap, dim, epsilon, bits, levels=levels, reach=reach, norm_epsilon=norm_epsilon
    )
