"""sqSGD in direction mode (the default) and its stateless variant.

PrivQuant privatises the block's direction with ε1, ScalarDP its norm with ε2 = ε - ε1. A direction needs no
range, so one bit per coordinate suffices and more coordinates fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Columns
from sqsgd.core import Estimate, Scheme
from sqsgd.mechanisms.budget_split import split
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.quantized import Quantized
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse_matches import SparseMatches
from sqsgd.numerics.gaussian import kept_share
from sqsgd.numerics.norms import l2_norm
from sqsgd.schemes._bit_budget import affordable
from sqsgd.schemes._sparse_choice import sparse_block, sparse_whole
from sqsgd.schemes.code_choice import SIGNS, best_of, choices
from sqsgd.transforms import Rotate, Subsample, rotated_sample

Code = Literal["signs", "levels", "sparse"]


@dataclass(frozen=True, kw_only=True)
class Direction(Quantized):
    """Direction by PrivQuant, norm by ScalarDP; for vectors that a rotation has spread evenly.

    Codes cover ± ``reach`` times the root mean square coordinate. Clamping shrinks the mean of a Gaussian
    coordinate by erf(reach / √2), which the estimate divides out; as reach → 0 the codes are signs and the
    correction tends to √(π/2).

    Guarantees
    ----------
    * Pure LDP, as every ``Quantized``: tests/schemes/test_privacy.py::test_exact_privacy.
    * Norms above ``bound`` are clamped to it. Otherwise unbiased up to the rotation's departure from
      Gaussian coordinates: after two rounds within 3 % from 64 coordinates on, even for vectors with a
      single entry; blocks of one to three coordinates are up to 25 % too long.
      tests/schemes/test_estimates.py::test_mean_is_recovered,
      tests/schemes/test_sqsgd.py::test_sparse_vectors_keep_their_length.
    """

    quantizer: PrivQuant
    norm: ScalarDP  # for norm / bound, so its maximum is 1
    reach: float = SIGNS

    @property
    def identity(self) -> str:
        return f"direction {self.reach!r} ({self.quantizer.identity}) ({self.norm.identity})"

    @property
    def symbol(self) -> ScalarDP:
        return self.norm

    @property
    def own_reach(self) -> float:
        return self.reach

    def prepared(self, x: Vector, bound: float) -> tuple[Vector, float, float]:
        """A norm below a millionth of the bound counts as zero."""
        x = checks.shaped("x", x, self.dim)
        norm = checks.finite_size("x", l2_norm(x))
        tiny = norm < 1e-6 * bound
        ways = (x, self.reach * norm / math.sqrt(self.dim), norm / bound), (np.zeros_like(x), 1.0, 0.0)
        return ways[tiny]  # both are computed: the time does not tell which

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

    def relative_error(self, share: float) -> float:
        """(1 + Var(norm) / norm²) E|direction|² - 1, for Gaussian coordinates."""
        norm = 1 + self.norm.variance(share) / share**2
        return norm * self.quantizer.gaussian_energy(self.reach) / kept_share(self.reach) ** 2 - 1


def best_direction(
    dim: int,
    epsilon: float,
    bits: int,
    *,
    block: bool,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Direction:
    """The mechanism for a total budget; parameters that are not given are chosen by predicted error.

    A ``block`` of coordinates is a power of two; without it, any number of rotated coordinates is sent.
    """
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
    code: Code | None = None,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """Send the rotated direction and norm of a block of coordinates, and keep the rest as a residual.

    ``code``: ``"signs"``, ``"levels"`` (the better of the two by default), or ``"sparse"`` match codes.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    levels = _checked_levels(code, levels, reach)
    mechanism: Direction | SparseMatches
    if code == "sparse":
        bits = checks.integer("bits", bits, 1, 2**40)
        mechanism = sparse_block(dim, epsilon, bits, coordinates, norm_epsilon)
    else:
        mechanism = best_direction(
            dim, epsilon, bits, block=True,
            levels=levels, coordinates=coordinates, reach=reach, norm_epsilon=norm_epsilon,
        )  # fmt: skip
    rotate, size = Rotate(rounds=2), mechanism.dim
    return Scheme(
        name="sqsgd",
        dim=dim,
        transforms=(rotate,) if size >= dim else (Subsample(size=size), rotate),
        mechanism=mechanism,
        residual=size < dim,
        wire=2 if code == "sparse" else 1,
    )


def _checked_levels(code: str | None, levels: int | None, reach: float | None) -> int | None:
    """The levels that a code fixes, if any; raises ValueError for options that do not go together."""
    if code not in (None, *get_args(Code)):
        raise ValueError(f"code = {code!r} must be one of {', '.join(get_args(Code))}")
    if code == "sparse" and not (levels is None and reach is None):
        raise ValueError("code = 'sparse' has neither levels nor reach: leave them out")
    if code == "signs" and levels not in (None, 2):
        raise ValueError(f"code = 'signs' has two levels, not {levels}: leave levels out")
    if code == "levels" and (levels is None or levels < 3):
        raise ValueError(f"code = 'levels' needs levels of three or more, not {levels}")
    return 2 if code == "signs" else levels


def sqsgd_stateless(
    dim: int,
    epsilon: float,
    bits: int,
    *,
    code: Code | None = None,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Scheme:
    """For clients without state: rotate the whole vector twice and send a rescaled sample of coordinates.

    ``code`` as in ``sqsgd``; sparse match codes choose their coordinates among all of them.
    """
    dim = checks.integer("dim", dim, 1, 2**31)
    levels = _checked_levels(code, levels, reach)
    if code == "sparse":
        if coordinates is not None:
            raise ValueError("code = 'sparse' codes the whole vector here: leave coordinates out")
        sparse = sparse_whole(dim, epsilon, checks.integer("bits", bits, 1, 2**40), norm_epsilon)
        return Scheme(
            name="sqsgd-stateless", dim=dim, transforms=(Rotate(rounds=2),), mechanism=sparse, wire=2
        )
    mechanism = best_direction(
        dim, epsilon, bits, block=False,
        levels=levels, coordinates=coordinates, reach=reach, norm_epsilon=norm_epsilon,
    )  # fmt: skip
    return stateless(dim, mechanism)


def stateless(dim: int, mechanism: Direction) -> Scheme:
    """``sqsgd-stateless`` with a given mechanism."""
    transforms = rotated_sample(dim, mechanism.dim)
    return Scheme(name="sqsgd-stateless", dim=dim, transforms=transforms, mechanism=mechanism)
