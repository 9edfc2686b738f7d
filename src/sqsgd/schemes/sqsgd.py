"""sqSGD and its stateless variant: the direction of a rotated block, in the code with the least error.

Signs and levels: PrivQuant privatises the direction with ε1, ScalarDP the norm with ε2 = ε - ε1. Sparse codes
spend all of ε on the direction, unless a norm is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Columns
from sqsgd.core import Estimate, Mechanism, Scheme
from sqsgd.mechanisms.budget_split import split
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.quantized import Quantized
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse_matches import SparseMatches
from sqsgd.numerics.gaussian import kept_share
from sqsgd.numerics.norms import l2_norm
from sqsgd.schemes._bit_budget import affordable
from sqsgd.schemes.code_choice import LEVELS, SIGNS, best_of, choices, visits
from sqsgd.schemes.sparse_choice import sparse_block, sparse_whole
from sqsgd.transforms import Rotate, Subsample, padded, rotated_sample

Code = Literal["signs", "levels", "sparse"]
CODED = ("sqsgd", "sqsgd-stateless")
"""The schemes that take ``code``."""


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
    levels: tuple[int, ...] = LEVELS,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Direction:
    """The mechanism for a total budget; parameters that are not given are chosen by predicted error.

    A ``block`` of coordinates is a power of two; without it, any number of rotated coordinates is sent.
    """
    left, norm = split(checks.real("epsilon", epsilon, 0.01, 1e5), norm_epsilon)
    if reach is not None:
        reach = checks.real("reach", reach, 1e-6, 20.0)
    if coordinates is not None:
        coordinates = checks.integer("coordinates", coordinates, 1, affordable(bits, levels[0], dim))
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
    """Send the rotated direction of a block of coordinates, and keep the rest as a residual.

    ``code``: ``"signs"``, ``"levels"`` or ``"sparse"`` match codes; by default whichever has the least
    predicted error.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    mechanism = best_code(
        dim, epsilon, bits, code, block=True,
        levels=levels, coordinates=coordinates, reach=reach, norm_epsilon=norm_epsilon,
    )  # fmt: skip
    rotate, size = Rotate(rounds=2), mechanism.dim
    return Scheme(
        name="sqsgd",
        dim=dim,
        transforms=(rotate,) if size >= dim else (Subsample(size=size), rotate),
        mechanism=mechanism,
        residual=size < dim,
    )


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
    """For clients without state: the rotated direction of the whole vector; nothing is kept for later.

    ``code`` as in ``sqsgd``. Sparse match codes choose their coordinates among all of them; signs and levels
    are those of a rescaled sample.
    """
    dim = checks.integer("dim", dim, 1, 2**31)
    mechanism = best_code(
        dim, epsilon, bits, code, block=False,
        levels=levels, coordinates=coordinates, reach=reach, norm_epsilon=norm_epsilon,
    )  # fmt: skip
    return stateless(dim, mechanism)


def stateless(dim: int, mechanism: Direction | SparseMatches) -> Scheme:
    """``sqsgd-stateless`` with a given mechanism."""
    return Scheme(
        name="sqsgd-stateless",
        dim=dim,
        transforms=rotated_sample(dim, mechanism.dim),
        mechanism=mechanism,
    )


def code_of(mechanism: Mechanism) -> Code:
    """The code that a mechanism of ``sqsgd`` sends."""
    if isinstance(mechanism, SparseMatches):
        return "sparse"
    return "signs" if mechanism.layout[0].alphabet == 2 else "levels"


def best_code(
    dim: int,
    epsilon: float,
    bits: int,
    code: str | None = None,
    *,
    block: bool,
    levels: int | None = None,
    coordinates: int | None = None,
    reach: float | None = None,
    norm_epsilon: float | None = None,
) -> Direction | SparseMatches:
    """The mechanism of the code that is asked for, else the one with the least predicted error.

    Every code is found by searching what fits into the bits, so more bits never make the choice worse (the
    search is exact to 0.1 %), from the seven on that the shortest sparse code takes:
    tests/schemes/test_sqsgd.py::test_more_bits_never_hurt.
    """
    bits = checks.integer("bits", bits, 1, 2**40)
    directions = _directions(code, levels, reach)
    tries: list[Callable[[], Direction | SparseMatches]] = []
    if directions:
        tries.append(
            lambda: best_direction(
                dim, epsilon, bits, block=block,
                levels=directions, coordinates=coordinates, reach=reach, norm_epsilon=norm_epsilon,
            )
        )  # fmt: skip
    if code == "sparse" or (code is None and levels is None and reach is None):
        tries.append(lambda: _sparse(dim, epsilon, bits, coordinates, norm_epsilon, block=block))
    found, errors = [], []
    for attempt in tries:
        try:
            found.append(attempt())
        except ValueError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return min(found, key=lambda mechanism: _cost(dim, mechanism, block=block))


def _cost(dim: int, mechanism: Direction | SparseMatches, *, block: bool) -> float:
    """The logarithm of the error on the whole vector, so rounded that no machine decides otherwise."""
    whole, size = padded(dim), mechanism.dim
    factor = visits(whole, size) if block else whole / size
    return round(math.log((1 + mechanism.relative_error(1.0)) * factor), 7)


def _directions(code: str | None, levels: int | None, reach: float | None) -> tuple[int, ...]:
    """The numbers of levels to try, none for sparse codes; ValueError for options that do not go together."""
    if code not in (None, *get_args(Code)):
        raise ValueError(f"code = {code!r} must be one of {', '.join(get_args(Code))}")
    if code == "sparse":
        if not (levels is None and reach is None):
            raise ValueError("code = 'sparse' has neither levels nor reach: leave them out")
        return ()
    if levels is not None:
        levels = checks.integer("levels", levels, 2, 256)
        if code == "signs" and levels != 2:
            raise ValueError(f"code = 'signs' has two levels, not {levels}: leave levels out")
        if code == "levels" and levels == 2:
            raise ValueError("code = 'levels' needs levels of three or more; two are code = 'signs'")
        return (levels,)
    return (2,) if code == "signs" else LEVELS[1:] if code == "levels" else LEVELS


def _sparse(
    dim: int, epsilon: float, bits: int, coordinates: int | None, norm_epsilon: float | None, *, block: bool
) -> SparseMatches:
    if block:
        return sparse_block(dim, epsilon, bits, coordinates, norm_epsilon)
    if coordinates is not None:
        raise ValueError("code = 'sparse' codes the whole vector here: leave coordinates out")
    return sparse_whole(dim, epsilon, bits, norm_epsilon)
