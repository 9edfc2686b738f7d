"""The base of the coordinate-wise schemes: a channel per coordinate, and how many coordinates to send."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout
from sqsgd.core import Estimate, Mechanism, Privacy, Scheme
from sqsgd.mechanisms.budget_split import equal_share
from sqsgd.mechanisms.channel import Channel, Floats
from sqsgd.numerics.epsilon_sums import total
from sqsgd.numerics.gaussian import kept_share, normal_points
from sqsgd.numerics.norms import l2_norm
from sqsgd.randomness import Rng
from sqsgd.schemes._bit_budget import codes_that_fit, too_few_bits
from sqsgd.transforms import padded, rotated_sample

_COARSE = 16  # beyond it, a finer grid helps less and less
_CLOSE = 1.001  # plans whose errors differ by less than this factor count as equal: the smallest is used


@dataclass(frozen=True, kw_only=True)
class EachCoordinate(Mechanism):
    """Each coordinate through a channel over ± ``reach`` times the root mean square coordinate.

    The range is public: reach C / √k for k coordinates and a bound C.

    Guarantees
    ----------
    * k times the channel's ε for the whole vector (``notion`` "local"), or the channel's ε between vectors
      that differ in one coordinate ("per-weight").
      tests/schemes/test_privacy.py::test_exact_privacy, tests/schemes/test_ldp_fl.py::test_per_weight.
    * Coordinates beyond the range are clamped, which biases: at the default reach of 3, a vector as long as
      the bound loses 0.27 % of its length, one half as long nothing. Otherwise unbiased:
      tests/schemes/test_estimates.py::test_mean_is_recovered.
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

        def rises(count: int, spread: Callable[[int], float] = spread) -> bool:
            return spread(count + 1) >= spread(count)

        limit = most if bits is None else min(most, codes_that_fit(bits, alphabet))
        if limit >= (coordinates or 1):
            count = coordinates or 1 + bisect_left(range(1, min(limit, useful)), True, key=rises)
            plans.append((spread(count), Column(count, alphabet).bits, count, alphabet))
            if alphabet > _COARSE and len(plans) > 1 and plans[-1][0] > 0.9999 * plans[-2][0]:
                break
    if not plans:
        count, alphabet = coordinates or 1, min(alphabets)
        content = f"coordinates = {count} of levels = {alphabet}"
        raise too_few_bits(bits, content, Column(count, alphabet).bits)
    least_spread = min(plans)[0]
    _, _, count, alphabet = min(
        (plan for plan in plans if plan[0] <= _CLOSE * least_spread), key=lambda plan: plan[1:]
    )
    return count, alphabet


def rotated_coordinates(
    name: str,
    make_channel: Callable[[int, float], Channel],
    alphabets: Sequence[int],
    *,
    dim: int,
    epsilon: float,
    bits: int | None,
    coordinates: int | None,
    reach: float,
) -> Scheme:
    """The scheme that sends rotated coordinates, as many as ``best_plan`` chooses, at equal shares of ε."""
    size, alphabet = best_plan(
        epsilon, bits, padded(dim), alphabets, lambda a, e: energy(make_channel(a, e), reach), coordinates
    )
    channel = make_channel(alphabet, equal_share(epsilon, size))
    mechanism = EachCoordinate(dim=size, channel=channel, reach=reach)
    return Scheme(name=name, dim=dim, transforms=rotated_sample(dim, size), mechanism=mechanism)
