"""The Piecewise Mechanism (Wang et al., ICDE 2019) for vectors: Algorithm 4, on rotated coordinates."""

from __future__ import annotations

import math
from typing import Literal

from sqsgd import checks
from sqsgd.core import Scheme
from sqsgd.mechanisms.piecewise_grid import MOST_ALPHABET, PiecewiseGrid
from sqsgd.schemes._bit_budget import checked_budget, codes_that_fit
from sqsgd.schemes._coordinatewise import rotated_coordinates

_ALPHABETS = (*range(2, 11), 12, 14, *(1 << bits for bits in range(4, 33)))


def piecewise(
    dim: int,
    epsilon: float,
    bits: int | None = None,
    *,
    coordinates: int | None = None,
    levels: int | None = None,
    reach: float = 3.0,
    rule: Literal["optimal", "paper"] = "optimal",
) -> Scheme:
    """k coordinates, drawn from the public seed, at ε / k each through PM on a grid of ``levels`` points.

    ``rule="paper"`` uses Algorithm 4's k = max(1, min(d, ⌊ε / 2.5⌋)), or as many as ``bits`` hold, which
    minimises the worst case over [-1, 1]. "optimal" uses the k and the grid of the least predicted error of
    a rotated vector, whose coordinates are Gaussian: k is about ε / 5. ``coordinates`` and ``levels`` fix
    them. Algorithm 4 gives each coordinate the range of the whole norm, which is ``reach`` = √dim.

    Guarantees
    ----------
    * ε-LDP of the whole report as implemented, not only in real arithmetic: PiecewiseGrid draws from
      integers. tests/schemes/test_privacy.py::test_exact_privacy.
    * Biased only by clamping to the range (see ``EachCoordinate``):
      tests/schemes/test_estimates.py::test_mean_is_recovered.

    >>> scheme = piecewise(119850, 400.0, 2048)
    >>> scheme.mechanism.dim, scheme.mechanism.channel.alphabet, round(scheme.nmse)
    (79, 128, 2178)
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bits)
    reach = checks.real("reach", reach, 0.1, 1e5)
    if rule not in ("optimal", "paper"):
        raise ValueError(f"rule = {rule!r} must be 'optimal' or 'paper'")
    alphabets = _ALPHABETS if levels is None else (checks.integer("levels", levels, 2, MOST_ALPHABET),)
    if rule == "paper":
        if coordinates is not None:
            raise ValueError(f"coordinates = {coordinates}: rule = 'paper' chooses their number; omit it")
        coordinates = max(1, min(dim, math.floor(epsilon / 2.5)))
        if bits is not None:
            coordinates = max(1, min(coordinates, codes_that_fit(bits, min(alphabets))))
    return rotated_coordinates(
        "piecewise", PiecewiseGrid, alphabets,
        dim=dim, epsilon=epsilon, bits=bits, coordinates=coordinates, reach=reach,
    )  # fmt: skip
