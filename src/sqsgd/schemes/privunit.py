"""PrivUnit and PrivUnitG: a random direction, more often from a cap around the input's.

``privunit`` (Bhowmick et al. 2018) draws from the sphere, ``privunit-g`` (Asi, Feldman and Talwar 2022) from
a Gaussian. A budget of bytes rounds rotated coordinates of the direction to a grid.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import Any, final

import numpy as np
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import Densities
from sqsgd._internal.geometry import NORMAL_FROM, chance, coordinate_points, edge
from sqsgd.core import Estimate, Scheme
from sqsgd.core.codec import Array, Column, Columns
from sqsgd.core.random import Rng
from sqsgd.core.transforms import FEWEST, gaussian_rotation, rotated_sample
from sqsgd.mechanisms.cap_direction import Cap, CapDirection, best_edge
from sqsgd.mechanisms.privquant import MOST_DIM
from sqsgd.mechanisms.scalardp import split
from sqsgd.schemes.budgets import affordable, checked_budget

_LEVELS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128, 256)


@final
class SphereCap(Cap):
    """The base measure is uniform on the unit sphere: t has density proportional to (1 - t²)^((d-3)/2).

    The best edge is g = m (Asi, Feldman and Talwar 2022), that is g = (e^ε - 1) E[(t - g)+]. For d = 1 it is
    randomised response of the sign. ln(1 - g²) is accurate from a half sphere down to a point.
    """

    @property
    def identity(self) -> str:
        return f"sphere {self.dim} {self.epsilon!r}"

    @cached_property
    def log_width(self) -> float:

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
        """By rejection: 1 - t² by inversion of the power, accepted with probability g / t."""
        while True:
            log_rest = self.log_width + 2 * math.log1p(-rng.uniform()) / (self.dim - 1)
            along = math.sqrt(-math.expm1(log_rest))
            if rng.uniform() * along <= self.edge:
                return along, math.exp(log_rest / 2)


sphere_cap = lru_cache(maxsize=256)(SphereCap)


@final
class GaussianCap(Cap):
    """The base measure is N(0, I/d): t is Gaussian with σ² = 1/d, and the orthogonal part is not normalised.

    With γ = g/σ, m = σ φ(γ) (A - B) and E|v|² = 1 + g m. The error is least where m - g = σ² m / (2 + g m).
    """

    @property
    def identity(self) -> str:
        return f"gaussian {self.dim} {self.epsilon!r}"

    @cached_property
    def deviations(self) -> float:
        """γ: the edge in standard deviations."""

        def beyond(edge: float) -> bool:
            gain, (tail, moment) = arb(self.epsilon).expm1(), _normal_tail(edge)
            mean = gain * moment / (1 + gain * tail)
            return bool(edge > mean - mean / (2 * self.dim + edge * mean))

        with exact.precision(exact.START_BITS):
            return best_edge(beyond, math.sqrt(2 * (self.epsilon + 40)))

    @cached_property
    def edge(self) -> float:
        return self.deviations / math.sqrt(self.dim)

    def tail(self) -> arb:
        return _normal_tail(self.deviations)[0]

    def moment(self) -> arb:
        return _normal_tail(self.deviations)[1] / arb(self.dim).sqrt()

    def square(self) -> arb:
        return 1 + self.deviations / arb(self.dim).sqrt() * self.mean()

    def scaled(self, along: float, across: float) -> tuple[float, float]:
        deviation = 1 / math.sqrt(self.dim)
        return along * deviation, across * deviation

    def far(self, across: float, rng: Rng) -> tuple[float, float]:
        """Marsaglia's tail method: n = √(γ² - 2 ln U), accepted with probability γ / n."""
        deviation = 1 / math.sqrt(self.dim)
        while True:
            along = math.sqrt(self.deviations**2 - 2 * math.log1p(-rng.uniform()))
            if rng.uniform() * along <= self.deviations:
                return along * deviation, across * deviation


def _normal_tail(deviations: float) -> tuple[arb, arb]:
    edge = arb(deviations)
    return (edge / arb(2).sqrt()).erfc() / 2, (-edge * edge / 2).exp() / (2 * arb.pi()).sqrt()


gaussian_cap = lru_cache(maxsize=256)(GaussianCap)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The nearest Q(y) of ``levels`` even values over ± ``reach``, y ~ N(0, 1): unbiased over E[Q(y) y]."""

    levels: int
    reach: float

    @property
    def step(self) -> float:
        return 2 * self.reach / (self.levels - 1)

    def codes(self, y: Array) -> Array:
        places = np.floor(y * (1 / self.step) + self.levels / 2)
        return np.clip(places, 0, self.levels - 1).astype(np.uint8)

    def values(self, codes: Array) -> Estimate:
        return codes * self.step - self.reach

    @cached_property
    def kept_share(self) -> float:
        """E[Q(y) y]: each border b between two values adds step E[y; y > b] = step φ(b)."""
        return self.step * sum(math.exp(-b * b / 2) for b in self._borders()) / math.sqrt(2 * math.pi)

    @cached_property
    def cost(self) -> float:
        """E[Q(y)²] / E[Q(y) y]²: the factor on the mean square of an estimate; π/2 for signs."""
        # Q² falls from reach² by 2 step |b| where |y| passes below each border |b|; borders come in pairs.
        inside = (abs(b) * math.erf(abs(b) / math.sqrt(2)) for b in self._borders())
        return (self.reach**2 - self.step * sum(inside)) / self.kept_share**2

    def _borders(self) -> list[float]:
        return [self.step * (k - (self.levels - 2) / 2) for k in range(self.levels - 1)]


@lru_cache(maxsize=512)
def best_grid(levels: int) -> Grid:
    """Return the reach, in sixteenths, with the least cost. For signs the reach does not matter."""
    if levels == 2:
        return Grid(levels=2, reach=1.0)
    grids = (Grid(levels=levels, reach=k / 16) for k in range(8, 100))
    return min(grids, key=lambda grid: grid.cost)


@dataclass(frozen=True, kw_only=True)
class OnGrid(CapDirection):
    """The private direction of a rotated vector, on a grid in units of the root mean square coordinate.

    A function of the report of ``CapDirection``, so it is ε-LDP as that is, in real arithmetic
    (tests/schemes/test_privunit.py::test_the_grid_sees_only_what_is_private). Norms above ``bound`` are
    scaled down to it: a sample of n coordinates of a vector as long as the bound loses 0.28/√n of its length.
    """

    grid: Grid

    @property
    def identity(self) -> str:
        return f"grid {self.grid.levels} {self.grid.reach!r} {super().identity}"

    @property
    def code(self) -> tuple[Column, float, Densities]:
        return Column(self.dim, self.grid.levels), *super().code[1:]

    @cached_property
    def _spread(self) -> float:
        return self.cap.size / math.sqrt(self.dim)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        noisy, symbol = super().randomize(x, bound, rng)
        return self.grid.codes(noisy / np.float32(self._spread)), symbol

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        factor = self._spread * self.magnitude(columns, bound) / (self._moments[0] * self.cap.scale)
        return self.grid.values(columns[0]) * factor

    def relative_error(self, share: float) -> float:
        return (1 + super().relative_error(share)) * self._moments[1] - 1

    @cached_property
    def _moments(self) -> tuple[float, float]:
        """E[Q(y) y] and E[Q(y)²] / E[Q(y) y]² for a coordinate of a uniform direction."""
        if self.dim >= NORMAL_FROM:
            return self.grid.kept_share, self.grid.cost
        y = coordinate_points(self.dim)
        values = self.grid.values(self.grid.codes(y))
        kept = float(np.mean(values * y))
        return kept, float(np.mean(values**2)) / kept**2

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        raise NotImplementedError("the density of codes on a grid has no closed form")


def _cap_scheme(
    make_cap: Callable[[int, float], Cap],
    name: str,
    budget: tuple[int, float, int | None],
    levels: int | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    dim, epsilon, bits = budget
    left, norm = split(epsilon, norm_epsilon)
    if levels is not None:
        levels = checks.integer("levels", levels, 2, 256)
        if bits is None:
            raise ValueError(f"levels = {levels} needs a budget: bytes = None sends float32")
    if bits is None or (levels is None and bits >= 32 * dim):
        whole = CapDirection(cap=make_cap(dim, left), norm=norm)
        return Scheme(name=name, dim=dim, transforms=(), mechanism=whole)

    def on_grid(count: int) -> Scheme:
        size = affordable(min(bits, Column(MOST_DIM, count).bits), count, max(dim, FEWEST))
        mechanism = OnGrid(cap=make_cap(size, left), norm=norm, grid=best_grid(count))
        transforms = rotated_sample(dim, size, gaussian_rotation(dim))
        return Scheme(name=name, dim=dim, transforms=transforms, mechanism=mechanism)

    if levels is not None:
        return on_grid(levels)
    least = min(FEWEST, bits)
    fitting = [count for count in _LEVELS if Column(least, count).bits <= bits]
    return min(map(on_grid, fitting), key=lambda scheme: scheme.nmse)


def privunit(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    levels: int | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """Sends a rounded point close to the direction and the norm, using floating-point sampling.

    The direction is privatised by PrivUnit with an optimised cap, and the norm by ScalarDP. The guarantee has
    only been proved in real arithmetic.

    Without ``bytes``, or if there are at least four bytes per coordinate, the entire vector is sent as
    float32. Otherwise, rotated coordinates are sent using a grid that minimises the predicted error, or
    ``levels`` values.
    """
    budget = checked_budget(dim, epsilon, bytes)
    return _cap_scheme(sphere_cap, "privunit", budget, levels, norm_epsilon)


@wraps(privunit, assigned=())  # the same options
def privunit_g(dim: int, epsilon: float, bytes: int | None = None, **options: Any) -> Scheme:
    """Sends a point with Gaussian noise around the direction, and the norm, using floating-point sampling.

    The direction is privatised by PrivUnitG with an optimised threshold, and the norm by ScalarDP. The
    parameter ``bytes`` has the same meaning as in ``privunit``.
    """
    return _cap_scheme(gaussian_cap, "privunit-g", checked_budget(dim, epsilon, bytes), **options)
