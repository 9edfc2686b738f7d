"""sqSGD in direction mode (the default) and its stateless twin.

The block's direction goes through PrivQuant with ε1, its norm through ScalarDP with ε2 = ε - ε1. A
direction needs no range, so one bit a coordinate serves, and more coordinates travel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout
from sqsgd.core import Estimate, Mechanism, Privacy, Scheme
from sqsgd.mechanisms.budget_split import split
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.numerics.epsilon_sums import add_up
from sqsgd.numerics.gaussian import kept_share
from sqsgd.numerics.norms import l2_norm
from sqsgd.randomness import Rng
from sqsgd.schemes.bit_budget import affordable
from sqsgd.schemes.code_choice import SIGNS, best_of, choices
from sqsgd.transforms import Rotate, Subsample, rotated_sample


@dataclass(frozen=True, kw_only=True)
class Direction(Mechanism):
    """Direction by PrivQuant, norm by ScalarDP; for vectors that a rotation has spread evenly.

    Codes cover ± ``reach`` times the root mean square coordinate. For Gaussian coordinates the mean
    of a clamped one is erf(reach / √2) times itself, which the estimate divides out; as reach → 0
    the codes are signs and the correction tends to √(π/2).

    Guarantees
    ----------
    * ε = ε1 + ε2, pure LDP of all columns together: tests/schemes/test_privacy.py::test_exact_privacy, and
      ::test_what_is_sent_has_the_density_that_privacy_is_proved_of.
    * Norms above ``bound`` are clamped to it. Otherwise unbiased up to the rotation's departure from
      Gaussian coordinates: after two rounds within 3 % from 64 coordinates on, for vectors with a single
      entry too; blocks of one to three coordinates are up to 25 % too long.
      tests/schemes/test_estimates.py::test_mean_is_recovered,
      tests/schemes/test_sqsgd.py::test_sparse_vectors_keep_their_length.
    """

    quantizer: PrivQuant
    norm: ScalarDP  # for norm / bound, so its maximum is 1
    reach: float = SIGNS

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.quantizer.dim

    @property
    def identity(self) -> str:
        return f"direction {self.reach!r} ({self.quantizer.identity}) ({self.norm.identity})"

    @property
    def has_symbol(self) -> bool:
        return True

    @cached_property
    def layout(self) -> Layout:
        return Column(self.dim, self.quantizer.levels), Column(1, self.norm.levels + 1)

    @cached_property
    def privacy(self) -> Privacy:
        return Privacy(epsilon=add_up(self.quantizer.epsilon, self.norm.epsilon), notion="local")

    def _half_range(self, x: Vector, bound: float) -> tuple[Vector, float, float]:
        """x, its norm, and the quantiser's half-range; a millionth of the bound counts as nothing."""
        x = checks.shaped("x", x, self.dim)
        norm = checks.finite_size("x", l2_norm(x))
        if norm < 1e-6 * bound:
            return np.zeros_like(x), 0.0, 1.0
        return x, norm, self.reach * norm / math.sqrt(self.dim)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        x, norm, half_range = self._half_range(x, bound)
        codes = self.quantizer.randomize(x, half_range, rng)
        return codes, np.array([self.norm.privatize(norm / bound, rng)], np.uint8)

    def _unit(self, columns: Columns, bound: float) -> float:
        """The estimate of a code at the end of the range."""
        norm = bound * self.norm.estimate(int(columns[1][0]))
        correction = self.reach / kept_share(self.reach)
        return norm * correction / (math.sqrt(self.dim) * self.quantizer.scale)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        total = np.zeros(self.dim, np.float32)
        self.add_estimate(columns, bound, 1.0, total)
        return total.astype(np.float64)

    def add_estimate(self, columns: Columns, bound: float, weight: float, total: Vector) -> None:
        self.quantizer.add_levels(columns[0], weight * self._unit(columns, bound), total)

    def magnitude(self, columns: Columns, bound: float) -> float:
        return bound * self.norm.estimate(int(columns[1][0]))

    def relative_error(self, share: float) -> float:
        """(1 + Var(norm) / norm²) E|direction|² - 1, for Gaussian coordinates."""
        norm = 1 + self.norm.variance(share) / share**2
        return norm * self.quantizer.gaussian_energy(self.reach) / kept_share(self.reach) ** 2 - 1

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        x, norm, half_range = self._half_range(x, bound)
        direction = self.quantizer.log_likelihood(columns[0], x, half_range)
        return direction + self.norm.log_density(int(columns[1][0]), norm / bound)


def _planned(
    dim: int,
    epsilon: float,
    bits: int | None,
    block: bool,
    levels: int | None,
    coordinates: int | None,
    reach: float | None,
    norm_epsilon: float | None,
) -> Direction:
    """The mechanism for a total budget, its parameters chosen where they are not given."""
    left, norm = split(checks.real("epsilon", epsilon, 0.01, 1e5), norm_epsilon)
    if levels is not None:
        levels = checks.integer("levels", levels, 2, 256)
    if reach is not None:
        reach = checks.real("reach", reach, 1e-6, 20.0)
    if coordinates is not None:
        coordinates = checks.integer("coordinates", coordinates, 1, affordable(bits, levels or 2, dim))
        if block and coordinates & (coordinates - 1):
            raise ValueError(f"coordinates = {coordinates} must be a power of two, for the rotation")
    choice = best_of(
        choices(dim, left, bits, levels=levels, reach=reach, coordinates=coordinates, block=block)
    )
    quantizer = PrivQuant(choice.coordinates, choice.levels, left)
    return Direction(quantizer=quantizer, norm=norm, reach=choice.reach)


def sqsgd(
    dim: int,
    epsilon: float,
    bits: int,
    *,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """Send a block of coordinates and keep the rest as a residual: select, rotate, direction and norm."""
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    mechanism = _planned(dim, epsilon, bits, True, levels, coordinates, reach, norm_epsilon)
    rotate, size = Rotate(rounds=2), mechanism.dim
    transforms = (rotate,) if size >= dim else (Subsample(size=size), rotate)
    return Scheme(name="sqsgd", dim=dim, transforms=transforms, mechanism=mechanism, residual=size < dim)


def sqsgd_stateless(
    dim: int,
    epsilon: float,
    bits: int,
    *,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """For clients that keep nothing: rotate the whole vector twice, send some coordinates, rescale."""
    dim = checks.integer("dim", dim, 1, 2**31)
    mechanism = _planned(dim, epsilon, bits, False, levels, coordinates, reach, norm_epsilon)
    transforms = rotated_sample(dim, mechanism.dim)
    return Scheme(name="sqsgd-stateless", dim=dim, transforms=transforms, mechanism=mechanism)
