"""sqSGD as in the paper, with its errors corrected: K levels over a fixed or adaptive range."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import take_away
from sqsgd._internal.geometry import kept_share
from sqsgd.core import Estimate, Scheme, Traits
from sqsgd.core.codec import Columns
from sqsgd.core.transforms import Rotate, Subsample, padded
from sqsgd.mechanisms.privquant import PrivQuant, Quantized
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.schemes.budgets import affordable, bits_of


@dataclass(frozen=True, kw_only=True)
class BoundedRange(Quantized):
    """PrivQuant over [-bound, bound]; with ``largest``, also the largest magnitude, for the next bound.

    With ``reach`` the bound is that of the l2 norm, and the range is ± reach times the root mean square
    coordinate of a vector as long as the bound.

    The largest magnitude is that of the vector before privatisation (the paper takes it after, where it
    carries no information), clamped to [0, 2 bound] so that the bound can follow it both ways.
    """

    quantizer: PrivQuant
    largest: ScalarDP | None = None  # for the largest magnitude / bound, so its maximum is 2
    reach: float | None = None

    @property
    def identity(self) -> str:
        tracked = f" ({self.largest.identity})" if self.largest else ""
        reach = f" reach {self.reach!r}" if self.reach else ""
        return f"range ({self.quantizer.identity}){tracked}{reach}"

    @property
    def symbol(self) -> ScalarDP | None:
        return self.largest

    @cached_property
    def traits(self) -> Traits:
        return replace(super().traits, bounds_coordinates=self.reach is None)

    def _half_range(self, bound: float) -> float:
        return self.reach * bound / math.sqrt(self.dim) if self.reach else bound

    def prepared(self, x: Vector, bound: float) -> tuple[Vector, float, float | None]:
        size = float(np.max(np.abs(x))) / bound if self.largest else None
        return x, self._half_range(bound), size

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return self.quantizer.estimate(columns[0], self._half_range(bound))

    def add_estimate(self, columns: Columns, bound: float, weight: float, total: Vector) -> None:
        self.quantizer.add_levels(columns[0], weight * self._half_range(bound) / self.quantizer.scale, total)

    def relative_error(self, share: float) -> float:
        """For Gaussian coordinates; without ``reach``, the bound is three of their deviations."""
        reach = (self.reach or 3.0) / share
        return self.quantizer.gaussian_energy(reach) - 2 * kept_share(reach) + 1


def sqsgd_paper(
    dim: int,
    epsilon: float,
    bytes: int,
    *,
    levels: int = 16,
    adaptive: bool = False,
    norm_epsilon: float = 10.0,
    rule: Literal["paper", "optimal"] = "paper",
) -> Scheme:
    """Select a block whose size is a power of two, rotate, quantise to K levels over ± task.bound, privatise.

    ``adaptive`` spends ``norm_epsilon`` (the paper's ε2 = 10) on the block's largest rotated magnitude.
    ``rule`` is the paper's 0.9/0.1 split, or the optimal parameters. The whole vector is sent if it fits.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    levels = checks.integer("levels", levels, 2, 256)
    epsilon = checks.real("epsilon", epsilon, 0.01, 1e5)
    codes = affordable(bits_of(bytes), levels, dim)
    size = dim if padded(dim) <= codes else 1 << (codes.bit_length() - 1)
    rotate = Rotate(rounds=1, shared=True)
    largest = None
    if adaptive:
        share = checks.real("norm_epsilon", norm_epsilon, 1e-3 * epsilon, 0.999 * epsilon)
        largest, epsilon = ScalarDP(2.0, share), take_away(epsilon, share)
    mechanism = BoundedRange(
        quantizer=PrivQuant(rotate.out_dim(size), levels, epsilon, rule=rule), largest=largest
    )
    transforms = (rotate,) if size == dim else (Subsample(size=size), rotate)
    return Scheme(
        name="sqsgd-paper",
        dim=dim,
        transforms=transforms,
        mechanism=mechanism,
        residual=size < dim,
        first_bound=10.0,
    )
