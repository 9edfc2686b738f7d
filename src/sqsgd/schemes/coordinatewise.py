"""Coordinate-wise schemes: some rotated coordinates, each through a channel at its share of ε.

``piecewise`` (Wang et al., ICDE 2019), ``ldp-fed`` (Truex et al., EdgeSys 2020) and ``ldp-fl`` (Sun, Qian and
Chen, IJCAI 2021) differ in the channel.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import total
from sqsgd._internal.geometry import kept_share, l2_norm, normal_points
from sqsgd.core import Estimate, Mechanism, Privacy, Scheme
from sqsgd.core.codec import Column, Columns, Layout
from sqsgd.core.random import Rng
from sqsgd.core.transforms import padded, rotated_sample
from sqsgd.mechanisms.channels import (
    MOST_ALPHABET,
    MOST_LEVELS,
    Channel,
    Floats,
    OrdinalChannel,
    PiecewiseGrid,
)
from sqsgd.mechanisms.scalardp import equal_share
from sqsgd.schemes.budgets import checked_budget, codes_that_fit, rescaled_sample, too_few_bytes

_COARSE = 16  # beyond it, a finer grid helps less and less
_CLOSE = 1.001  # plans whose errors differ by less than this factor count as equal: the smallest is used
_ORDINAL_LEVELS = tuple(range(2, 33))
_PIECEWISE_LEVELS = (*range(2, 11), 12, 14, *(1 << bits for bits in range(4, 33)))


@dataclass(frozen=True, kw_only=True)
class EachCoordinate(Mechanism):
    """Each coordinate through a channel over ± ``reach`` times the root mean square coordinate.

    The range is public: reach C / √k for k coordinates and a bound C. ε is k times the channel's for the
    whole vector (``notion`` "local"), or the channel's between vectors that differ in one coordinate
    ("per-weight": tests/schemes/test_coordinatewise.py::test_per_weight). Coordinates beyond the range are
    clamped, which biases: at the default reach of 3, a vector as long as the bound loses 0.27 % of its
    length, one half as long nothing.
    """

    dim: int
    channel: Channel
    reach: float
    notion: Literal["local", "per-weight"] = "local"

    @property
    def identity(self) -> str:
        return f"coordinates {self.dim} reach {self.reach!r} {self.notion} ({self.channel.identity})"

    @cached_property
    def layout(self) -> Layout:
        return (Column(self.dim, self.channel.alphabet),)

    @cached_property
    def privacy(self) -> Privacy:
        times = self.dim if self.notion == "local" else 1
        return Privacy(epsilon=total(self.channel.epsilon, times), notion=self.notion)

    @property
    def keeps_length(self) -> bool:
        return True

    def _half_range(self, bound: float) -> float:
        return self.reach * bound / math.sqrt(self.dim)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        return (self.channel.randomize(places(x, self.dim, self._half_range(bound)), rng),)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return self._half_range(bound) * self.channel.estimate(columns[0])

    def relative_error(self, share: float) -> float:
        """E[estimate²] - 2 E[y clamp(y)] + 1 for coordinates y ~ N(0, 1) and a range of ± reach / share."""
        reach = self.reach / share
        return energy(self.channel, reach) - 2 * kept_share(reach) + 1

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        where = places(x, self.dim, self._half_range(bound))
        return float(np.sum(self.channel.log_probability(columns[0], where)))


def places(x: Vector, dim: int, half_range: float) -> Floats:
    """Positions of the coordinates between -half_range (0) and half_range (1), clamped."""
    x = checks.shaped("x", x, dim)
    checks.finite_size("x", l2_norm(x))
    return np.clip(x.astype(np.float64) / (2 * half_range) + 0.5, 0.0, 1.0)


def energy(channel: Channel, reach: float) -> float:
    """E[estimate²] of one coordinate y ~ N(0, 1) sent over ± reach."""
    where = np.clip(normal_points() / (2 * reach) + 0.5, 0.0, 1.0)
    return reach**2 * float(np.mean(channel.second_moment(where)))


# ---------------------------------------------------------------- budgets


def best_plan(
    epsilon: float,
    bits: int | None,
    most: int,
    alphabets: Sequence[int],
    energy_of: Callable[[int, float], float],
    coordinates: int | None = None,
) -> tuple[int, int]:
    """(coordinates, alphabet) with the least predicted error within the bits; of near equals, the smallest.

    ``energy_of(alphabet, ε)`` is E[estimate²] of a coordinate of variance one. The error of the vector is
    proportional to it over the number k of coordinates, at ε / k each; it falls and then rises with k:
    tests/schemes/test_coordinatewise.py::test_the_plan_is_the_best_of_all.
    """
    if coordinates is not None:
        coordinates = checks.integer("coordinates", coordinates, 1, most)
    useful = max(1, math.ceil(4 * epsilon))  # below a quarter of a nat each, more coordinates only add noise
    plans: list[tuple[float, int, int, int]] = []
    for alphabet in alphabets:

        def spread(count: int, alphabet: int = alphabet) -> float:
            return energy_of(alphabet, equal_share(epsilon, count)) / count

        limit = most if bits is None else min(most, codes_that_fit(bits, alphabet))
        if limit >= (coordinates or 1):
            counts = range(1, min(limit, useful))
            rises = bisect_left(counts, True, key=lambda k, s=spread: s(k + 1) >= s(k))  # type: ignore[misc]
            count = coordinates or 1 + rises
            plans.append((spread(count), Column(count, alphabet).bits, count, alphabet))
            if alphabet > _COARSE and len(plans) > 1 and plans[-1][0] > 0.9999 * plans[-2][0]:
                break
    if not plans:
        count, alphabet = coordinates or 1, min(alphabets)
        content = f"coordinates = {count} of levels = {alphabet}"
        raise too_few_bytes(bits, content, Column(count, alphabet).bits)
    least_spread = min(plans)[0]
    _, _, count, alphabet = min(
        (plan for plan in plans if plan[0] <= _CLOSE * least_spread), key=lambda plan: plan[1:]
    )
    return count, alphabet


def rotated_coordinates(
    name: str,
    make_channel: Callable[[int, float], Channel],
    alphabets: Sequence[int],
    budget: tuple[int, float, int | None],
    coordinates: int | None,
    reach: float,
) -> Scheme:
    """The scheme that sends rotated coordinates, as many as ``best_plan`` chooses, at equal shares of ε."""
    (dim, epsilon, bits), reach = budget, checks.real("reach", reach, 0.1, 1e5)
    size, alphabet = best_plan(
        epsilon, bits, padded(dim), alphabets, lambda a, e: energy(make_channel(a, e), reach), coordinates
    )
    channel = make_channel(alphabet, equal_share(epsilon, size))
    mechanism = EachCoordinate(dim=size, channel=channel, reach=reach)
    return Scheme(name=name, dim=dim, transforms=rotated_sample(dim, size), mechanism=mechanism)


# ---------------------------------------------------------------- the schemes


def piecewise(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    coordinates: int | None = None,
    levels: int | None = None,
    reach: float = 3.0,
    rule: Literal["optimal", "paper"] = "optimal",
) -> Scheme:
    """k coordinates, drawn from the public seed, at ε / k each through PM on a grid of ``levels`` points.

    ``rule="paper"`` uses Algorithm 4's k = max(1, min(d, ⌊ε / 2.5⌋)), or as many as ``bytes`` hold, which
    minimises the worst case over [-1, 1]. "optimal" uses the k and the grid of the least predicted error of
    a rotated vector, whose coordinates are Gaussian: k is about ε / 5. ``coordinates`` and ``levels`` fix
    them. Algorithm 4 gives each coordinate the range of the whole norm, which is ``reach`` = √dim.

    >>> scheme = piecewise(119850, 400.0, 256)
    >>> scheme.mechanism.dim, scheme.mechanism.channel.alphabet, round(scheme.nmse)
    (79, 128, 2177)
    """
    dim, epsilon, bits = budget = checked_budget(dim, epsilon, bytes)
    if rule not in ("optimal", "paper"):
        raise ValueError(f"rule = {rule!r} must be 'optimal' or 'paper'")
    alphabets = _PIECEWISE_LEVELS if levels is None else (checks.integer("levels", levels, 2, MOST_ALPHABET),)
    if rule == "paper":
        if coordinates is not None:
            raise ValueError(f"coordinates = {coordinates}: rule = 'paper' chooses their number; omit it")
        coordinates = max(1, min(dim, math.floor(epsilon / 2.5)))
        if bits is not None:
            coordinates = max(1, min(coordinates, codes_that_fit(bits, min(alphabets))))
    return rotated_coordinates("piecewise", PiecewiseGrid, alphabets, budget, coordinates, reach)


def ldp_fed(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    coordinates: int | None = None,
    levels: int | None = None,
    reach: float = 3.0,
) -> Scheme:
    """k rotated coordinates at ε / k each: rounded to levels 0..L, moved by P(y | v) ∝ e^{-α|v - y|/2}.

    k and the number of levels are those of the least predicted error; ``coordinates`` and ``levels`` fix
    them. α is 2 ε / (k L), twice what the paper's bound ε = α L for each coordinate allows. The paper's
    condensed α, from Gursoy's matching of posteriors, is a heuristic and not LDP, so it is left out. Its
    server averages the codes, which biases the mean towards the centre; ours corrects that.

    >>> scheme = ldp_fed(119850, 400.0, 256)
    >>> scheme.mechanism.dim, scheme.mechanism.channel.alphabet, round(scheme.nmse)
    (52, 7, 4988)
    """
    budget = checked_budget(dim, epsilon, bytes)
    alphabets = _ORDINAL_LEVELS if levels is None else (checks.integer("levels", levels, 2, MOST_LEVELS),)
    return rotated_coordinates("ldp-fed", OrdinalChannel, alphabets, budget, coordinates, reach)


def ldp_fl(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    coordinates: int | None = None,
    per_weight: bool = False,
    reach: float = 3.0,
) -> Scheme:
    """One unbiased bit for each of k rotated coordinates: ± r M, M = (e^{ε/k} + 1) / (e^{ε/k} - 1).

    k is ``coordinates``, by default the number of the least predicted error, about ε / 2.2. The centre c is
    0 and r = ``reach`` C / √D for all coordinates; both are public (the paper's c and r of a layer are not).
    ``per_weight`` is the paper's reading: ε for every sent weight, without a rotation, which would spread
    one weight over all bits; as many weights as ``bytes`` hold, and k ε for the whole vector. The paper's
    splitting and shuffling of reports hides nothing from a server that sees the senders.

    >>> scheme = ldp_fl(119850, 400.0, 256)
    >>> scheme.mechanism.dim, round(scheme.nmse)
    (184, 9260)
    """
    dim, epsilon, bits = budget = checked_budget(dim, epsilon, bytes)
    if not per_weight:
        return rotated_coordinates("ldp-fl", OrdinalChannel, (2,), budget, coordinates, reach)
    most = dim if bits is None else min(dim, bits)
    size = most if coordinates is None else checks.integer("coordinates", coordinates, 1, most)
    reach, channel = checks.real("reach", reach, 0.1, 1e5), OrdinalChannel(2, epsilon)
    mechanism = EachCoordinate(dim=size, channel=channel, reach=reach, notion="per-weight")
    return Scheme(name="ldp-fl", dim=dim, transforms=rescaled_sample(dim, size), mechanism=mechanism)
