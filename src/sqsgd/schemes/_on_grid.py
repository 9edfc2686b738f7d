"""PrivUnit directions rounded to a grid, and the choice of coordinates and levels for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Array, Column, Columns, Layout
from sqsgd.core import Estimate, Mechanism, Privacy, Scheme
from sqsgd.mechanisms.budget_split import split
from sqsgd.mechanisms.cap_direction import Cap, CapDirection
from sqsgd.mechanisms.privquant import MOST_DIM
from sqsgd.numerics.exact import Densities
from sqsgd.randomness import Rng
from sqsgd.schemes._bit_budget import affordable, checked_budget
from sqsgd.transforms import padded, rotated_sample

_LEAST_BLOCK = 64
_LEVELS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The nearest of ``levels`` evenly spaced values over ± ``reach``, for y ~ N(0, 1).

    Rounding to the nearest costs less than unbiased rounding, and over Gaussian coordinates it is
    unbiased as well once divided by E[Q(y) y] (two levels: signs, and √(2/π)).
    """

    levels: int
    reach: float

    @property
    def step(self) -> float:
        """The distance between neighbouring values."""
        return 2 * self.reach / (self.levels - 1)

    def codes(self, y: Array) -> Array:
        """The index of the nearest value, 0..levels-1."""
        places = np.floor(y * (1 / self.step) + self.levels / 2)
        return np.clip(places, 0, self.levels - 1).astype(np.uint8)

    def values(self, codes: Array) -> Estimate:
        """The values of codes."""
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
    """The reach, in sixteenths, with the least cost; for signs the reach does not matter."""
    if levels == 2:
        return Grid(levels=2, reach=1.0)
    grids = (Grid(levels=levels, reach=k / 16) for k in range(8, 100))
    return min(grids, key=lambda grid: grid.cost)


@dataclass(frozen=True, kw_only=True)
class OnGrid(Mechanism):
    """The columns of ``inner`` with the direction rounded to a grid; post-processing leaves ε unchanged.

    For vectors that a rotation has spread evenly: the grid is scaled to the root mean square coordinate.

    Guarantees
    ----------
    * The report is a function of the output of ``inner`` alone, so it is ε-LDP as that is (in real
      arithmetic): tests/schemes/test_on_grid.py::test_the_grid_sees_only_what_is_private.
    * Norms above ``bound`` are scaled down to it. The norm of a sample of n coordinates varies by 1/√(2n), so
      a vector as long as the bound loses 0.28/√n of its length. Otherwise unbiased up to the rotation's
      departure from Gaussian coordinates: within 3 % from 64 on; blocks of one to three may be 25 % too long.
      tests/schemes/test_estimates.py::test_mean_is_recovered.
    """

    inner: CapDirection
    grid: Grid

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.inner.dim

    @property
    def identity(self) -> str:
        return f"grid {self.grid.levels} {self.grid.reach!r} {self.inner.identity}"

    @property
    def has_symbol(self) -> bool:
        return True

    @cached_property
    def layout(self) -> Layout:
        return Column(self.dim, self.grid.levels), self.inner.layout[1]

    @property
    def privacy(self) -> Privacy:
        return self.inner.privacy

    @property
    def blanket(self) -> tuple[Densities, ...]:
        return self.inner.blanket

    @cached_property
    def _spread(self) -> float:
        """The root mean square coordinate of a privatised direction."""
        return self.inner.cap.size / math.sqrt(self.dim)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        noisy, symbol = self.inner.randomize(x, bound, rng)
        return self.grid.codes(noisy / np.float32(self._spread)), symbol

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        factor = self._spread * self.magnitude(columns, bound) / (self.grid.kept_share * self.inner.cap.scale)
        return self.grid.values(columns[0]) * factor

    def magnitude(self, columns: Columns, bound: float) -> float:
        return self.inner.magnitude(columns, bound)

    def relative_error(self, share: float) -> float:
        return (1 + self.inner.relative_error(share)) * self.grid.cost - 1

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        """No closed form: a cell of the grid may lie on both sides of the cap's edge."""
        raise NotImplementedError("the density of codes on a grid has no closed form; use that of ``inner``")


def cap_scheme(
    name: str,
    make_cap: Callable[[int, float], Cap],
    dim: int,
    epsilon: float,
    bits: int | None,
    *,
    levels: int | None,
    reach: float | None,
    norm_epsilon: float | None,
) -> Scheme:
    """The scheme of a cap within a budget.

    Without ``bits``, or with 32 or more per coordinate, it sends the whole vector as float32. Otherwise it
    sends as many rotated coordinates as fit on a grid, with the number of levels of the least predicted
    error (or ``levels`` over ± ``reach``) that leaves at least 64: shorter blocks are hardly Gaussian.
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bits)
    left, norm = split(epsilon, norm_epsilon)
    if levels is not None:
        levels = checks.integer("levels", levels, 2, 256)
    if reach is not None:
        reach = checks.real("reach", reach, 0.1, 20.0)
    if bits is None and not (levels is None and reach is None):
        raise ValueError(f"levels = {levels} and reach = {reach} need a budget: bits = None sends float32")
    if bits is None or (bits >= 32 * dim and levels is None and reach is None):
        whole = CapDirection(cap=make_cap(dim, left), norm=norm)
        return Scheme(name=name, dim=dim, transforms=(), mechanism=whole)

    def on_grid(count: int) -> Scheme:
        size = affordable(min(bits, Column(MOST_DIM, count).bits), count, dim)
        grid = best_grid(count) if reach is None else Grid(levels=count, reach=reach)
        inner = CapDirection(cap=make_cap(size, left), norm=norm)
        mechanism = OnGrid(inner=inner, grid=grid)
        return Scheme(name=name, dim=dim, transforms=rotated_sample(dim, size), mechanism=mechanism)

    if levels is not None:
        return on_grid(levels)
    least = min(_LEAST_BLOCK, padded(dim), bits)
    fitting = [count for count in _LEVELS if Column(least, count).bits <= bits]
    return min(map(on_grid, fitting), key=lambda scheme: scheme.nmse)
