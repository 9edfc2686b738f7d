"""PrivQuant over a public range: sqSGD as in the paper, with its errors corrected, SQKR and PrivUnit_∞.

SQKR and PrivUnit_∞ send one bit per rotated coordinate, and privatise all bits together.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import take_away
from sqsgd._internal.geometry import NORMAL_FROM, kept_share
from sqsgd.core import Estimate, Scheme, Traits
from sqsgd.core.codec import Columns
from sqsgd.core.transforms import Rotate, Subsample, padded, rotated_sample
from sqsgd.mechanisms.privquant import MOST_DIM, PrivQuant, Quantized
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.schemes.budgets import affordable, bits_of, checked_budget

_REACH = 3.0  # root mean squares of a coordinate: clamping beyond it shortens vectors by 0.3 %


@dataclass(frozen=True, kw_only=True)
class BoundedRange(Quantized):
    """PrivQuant over [-bound, bound]; with ``largest``, also the largest magnitude, for the next bound.

    With ``reach`` the bound limits the l2 norm, the range ± reach root mean squares of a vector as long.
    The largest magnitude is the vector's own (the paper takes that of the private codes, which says nothing),
    clamped to [0, 2 bound] so that the bound can follow it both ways.
    """

    quantizer: PrivQuant
    largest: ScalarDP | None = None  # for the largest magnitude / bound, so its maximum is 2
    reach: float | None = None
    whole: int = NORMAL_FROM  # coordinates of the vector that these are a sample of, for the prediction

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

    def relative_error(self, share: float) -> float:
        """For uniform directions. Without ``reach``, the bound is three deviations of a coordinate."""
        reach = (self.reach or 3.0) / share
        return self.quantizer.coordinate_energy(reach, self.whole) - 2 * kept_share(reach, self.whole) + 1


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
    """Sends K levels of a rotated block within a public range, as in the paper but with errors corrected.

    A block whose size is a power of two is selected, rotated, quantised to K levels in the range ±
    task.bound, and privatised. If possible, the block contains the entire vector.

    With ``adaptive``, a budget of ``norm_epsilon`` (ε2 = 10 in the paper) is used for reporting the largest
    magnitude of the rotated block. The parameter ``rule`` selects between the 0.9/0.1 split of the paper and
    the optimal parameters.
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
    quantizer = PrivQuant(rotate.out_dim(size), levels, epsilon, rule=rule)
    return Scheme(
        name="sqsgd-paper",
        dim=dim,
        transforms=(rotate,) if size == dim else (Subsample(size=size), rotate),
        mechanism=BoundedRange(quantizer=quantizer, largest=largest, whole=quantizer.dim),
        keeps_state=size < dim,
        first_bound=10.0,
    )


def best_size(epsilon: float, most: int) -> int:
    """Return the k up to ``most`` with the least M² / k, M = (e^ε + 2^k - 1) / (e^ε - 1), log-convex in k."""

    def log_error(size: int) -> float:
        # ln (2^k - 1) / e^ε
        others = size * math.log(2) + math.log(-math.expm1(-size * math.log(2))) - epsilon
        return 2 * (max(others, 0.0) + math.log1p(math.exp(-abs(others)))) - math.log(size)

    return 1 + bisect_left(range(1, most), True, key=lambda size: log_error(size + 1) >= log_error(size))


def _one_bit(
    name: str, dim: int, epsilon: float, bytes: int | None, choose: Callable[[float, int], PrivQuant]
) -> Scheme:
    """One bit of each of some rotated coordinates, from ε and the most coordinates that ``bytes`` hold."""
    dim, epsilon, bits = checked_budget(dim, epsilon, bytes)
    whole, most = padded(dim), affordable(min(bits or MOST_DIM, MOST_DIM), 2, dim)
    quantizer = choose(epsilon, most)
    mechanism = BoundedRange(quantizer=quantizer, reach=min(_REACH, math.sqrt(whole)), whole=whole)
    return Scheme(name=name, dim=dim, transforms=rotated_sample(dim, quantizer.dim), mechanism=mechanism)


def sqkr(dim: int, epsilon: float, bytes: int | None = None) -> Scheme:
    """Sends one bit for each coordinate of a sample, using a single randomised response.

    In SQKR (Chen, Kairouz and Özgür 2020), k rotated coordinates are rounded to one bit each, and the result
    is privatised using 2^k-ary randomised response. Our implementation is based on the exact sampler of
    PrivQuant with K = 2 and τ = k.

    The number k is optimised for the given ``bytes``. Coordinates are rounded over a range of ± 3 root mean
    squares of a vector with the norm of the bound. We use a rotation instead of Kashin's frame. Clamping
    reduces the norm by 0.3 %.
    """

    def choose(epsilon: float, most: int) -> PrivQuant:
        size = best_size(epsilon, most)
        return PrivQuant(size, 2, epsilon, threshold=size)

    return _one_bit("sqkr", dim, epsilon, bytes, choose)


def privunit_inf(dim: int, epsilon: float, bytes: int | None = None) -> Scheme:
    """Sends a vertex of the cube close to the vector (Bhowmick et al. 2018).

    This scheme uses PrivQuant with K = 2 and the optimal values of τ and p, and the range of ``sqkr``. The
    number of coordinates is limited by ``bytes`` or, for ε up to 4.7, the same as in SQKR, which is optimal
    (tests/schemes/test_sqsgd_paper.py::test_no_other_number_of_coordinates_is_better).
    """

    def choose(epsilon: float, most: int) -> PrivQuant:
        quantizers = (PrivQuant(size, 2, epsilon) for size in (most, best_size(epsilon, most)))
        return min(quantizers, key=lambda quantizer: 1 / (quantizer.dim * quantizer.scale**2))

    return _one_bit("privunit-inf", dim, epsilon, bytes, choose)
