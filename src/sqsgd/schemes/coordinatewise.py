"""Coordinate-wise schemes: some rotated coordinates, each through a channel at its share of ε.

``piecewise`` (Wang et al., ICDE 2019), ``ldp-fed`` (Truex et al., EdgeSys 2020) and ``ldp-fl`` (Sun, Qian and
Chen, IJCAI 2021) differ in the channel. ``fedsel`` (Liu et al., DASFAA 2020) chooses coordinates privately.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from statistics import NormalDist
from typing import Any

import numpy as np

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import add_up, take_away, total
from sqsgd._internal.geometry import NORMAL_FROM, coordinate_points, kept_share, l2_norm
from sqsgd.core import Estimate, Indices, Mechanism, Privacy, Scheme, Traits
from sqsgd.core.codec import Column, Columns, Layout
from sqsgd.core.random import Rng
from sqsgd.core.transforms import padded, rotated_sample
from sqsgd.mechanisms import channels
from sqsgd.mechanisms.channels import MOST_ALPHABET, Channel, OrdinalChannel, PiecewiseGrid, TopSet
from sqsgd.mechanisms.scalardp import equal_share
from sqsgd.schemes.budgets import checked_budget, codes_that_fit, full_reach, too_few_bytes

_COARSE = 16  # beyond it, a finer grid helps less and less
_CLOSE = 1.001  # plans whose errors differ by less than this factor count as equal: the smallest is used
_ORDINAL_LEVELS = tuple(range(2, 33))
_PIECEWISE_LEVELS = (*range(2, 11), 12, 14, *(1 << bits for bits in range(4, 33)))
MOST_PICKS = 1 << 20
_COUNTS, _MOST_USEFUL = 24, 1 << 14
_GROUPS = 200
_PICK_LEVELS = (4, 8, 16, 64, 256, 4096)
_PARTS = tuple(part / 16 for part in range(1, 16, 2))


@dataclass(frozen=True, kw_only=True)
class EachCoordinate(Mechanism):
    """Each coordinate through a channel over ± ``reach`` C / √k, for k coordinates and a bound C.

    ε is k times the channel's. Coordinates beyond the range are clamped: at a reach of 3, a vector as long as
    the bound loses 0.27 %.
    """

    dim: int
    channel: Channel
    reach: float
    whole: int = NORMAL_FROM  # coordinates of the vector that these are a sample of, for the prediction
    keeps_length = True

    @property
    def identity(self) -> str:
        return f"coordinates {self.dim} reach {self.reach!r} local ({self.channel.identity})"

    @cached_property
    def layout(self) -> Layout:
        return (Column(self.dim, self.channel.alphabet),)

    @cached_property
    def privacy(self) -> Privacy:
        return Privacy(epsilon=total(self.channel.epsilon, self.dim), notion="local")

    def _half_range(self, bound: float) -> float:
        return self.reach * bound / math.sqrt(self.dim)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        return (self.channel.randomize(places(x, self.dim, self._half_range(bound)), rng),)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        return self._half_range(bound) * self.channel.estimate(columns[0])

    def relative_error(self, share: float) -> float:
        reach = self.reach / share
        return energy(self.channel, reach, self.whole) - 2 * kept_share(reach, self.whole) + 1

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        where = places(x, self.dim, self._half_range(bound))
        return float(np.sum(self.channel.log_probability(columns[0], where)))


def places(x: Vector, dim: int, half_range: float) -> Estimate:
    """Positions of the coordinates between -half_range (0) and half_range (1), clamped."""
    x = checks.shaped("x", x, dim)
    checks.finite_size("x", l2_norm(x))
    return np.clip(x.astype(np.float64) / (2 * half_range) + 0.5, 0.0, 1.0)


def energy(channel: Channel, reach: float, whole: int = NORMAL_FROM) -> float:
    """E[estimate²] of a coordinate of a uniform vector, mean square one, sent over ± reach."""
    where = np.clip(coordinate_points(whole) / (2 * reach) + 0.5, 0.0, 1.0)
    return reach**2 * float(np.mean(channel.second_moment(where)))


def best_plan(
    epsilon: float,
    bits: int | None,
    most: int,
    alphabets: Sequence[int],
    energy_of: Callable[[int, float], float],
    coordinates: int | None = None,
) -> tuple[int, int]:
    """(coordinates, alphabet) with the least predicted error within the bits; of near equals, the smallest.

    The error is proportional to ``energy_of(alphabet, ε / k)`` / k, which falls and then rises with k:
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
    return min(plan[1:] for plan in plans if plan[0] <= _CLOSE * least_spread)[1:]


def rotated_coordinates(
    name: str,
    make_channel: Callable[[int, float], Channel],
    alphabets: Sequence[int],
    budget: tuple[int, float, int | None],
    coordinates: int | None = None,
    reach: float = 3.0,
    levels: int | None = None,
) -> Scheme:
    """The scheme that sends rotated coordinates, as many as ``best_plan`` chooses, at equal shares of ε."""
    dim, epsilon, bits = budget
    whole, reach = padded(dim), full_reach(reach, padded(dim), 1e5)
    if levels is not None:
        most = MOST_ALPHABET if make_channel is PiecewiseGrid else channels.MOST_LEVELS
        alphabets = (checks.integer("levels", levels, 2, most),)
    size, alphabet = best_plan(
        epsilon, bits, whole, alphabets, lambda a, e: energy(make_channel(a, e), reach, whole), coordinates
    )
    channel = make_channel(alphabet, equal_share(epsilon, size))
    mechanism = EachCoordinate(dim=size, channel=channel, reach=reach, whole=whole)
    return Scheme(name=name, dim=dim, transforms=rotated_sample(dim, size), mechanism=mechanism)


def piecewise(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    coordinates: int | None = None,
    levels: int | None = None,
    reach: float = 3.0,
) -> Scheme:
    """Sends a sample of coordinates using the piecewise mechanism with an equal share of ε.

    The k coordinates are sampled using the public seed. Each of them is privatised by the piecewise mechanism
    on a grid of ``levels`` points using a budget of ε / k.

    By default, ``coordinates`` (k) and ``levels`` minimise the predicted error, where k is about ε / 5. For
    Algorithm 4 of the paper, set ``coordinates`` = ⌊ε / 2.5⌋ (between 1 and dim) and ``reach`` = √dim.
    """
    budget = checked_budget(dim, epsilon, bytes)
    return rotated_coordinates(
        "piecewise", PiecewiseGrid, _PIECEWISE_LEVELS, budget, coordinates, reach, levels
    )


@wraps(piecewise, assigned=())  # the same options
def ldp_fed(dim: int, epsilon: float, bytes: int | None = None, **options: Any) -> Scheme:
    """Sends a sample of coordinates using the exponential mechanism on rounded levels.

    Each of the k rotated coordinates is rounded to one of the levels 0..L and then perturbed using a budget
    of ε / k, where P(y | v) ∝ e^{-α|v - y|/2}.

    The options are the same as for ``piecewise``. We use α = 2 ε / (k L), which is twice the value given by
    the bound in the paper, and correct the bias of the averaged codes towards the centre. The condensed α
    from the paper is not supported because it does not satisfy LDP.
    """
    budget = checked_budget(dim, epsilon, bytes)
    return rotated_coordinates("ldp-fed", OrdinalChannel, _ORDINAL_LEVELS, budget, **options)


def ldp_fl(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    coordinates: int | None = None,
    reach: float = 3.0,
) -> Scheme:
    """Sends a randomised bit for each coordinate of a sample.

    Each of the k rotated coordinates is encoded as one unbiased bit ± r M, where M = (e^{ε/k} + 1) / (e^{ε/k}
    - 1).

    By default, ``coordinates`` (k) minimises the predicted error, which is achieved for about ε / 2.2. In
    contrast to the paper, the range r = ``reach`` C / √D is public. Note that the value of ε in the paper
    refers to a single weight.
    """
    budget = checked_budget(dim, epsilon, bytes)
    return rotated_coordinates("ldp-fl", OrdinalChannel, (2,), budget, coordinates, reach)


@dataclass(frozen=True, kw_only=True)
class Picked(Mechanism):
    """``picks`` independent picks: a coordinate by ``selection`` (ε1) and its value by ``channel`` (ε2).

    Values are clamped to ± ``reach`` root mean squares of a vector as long as the bound, and averaged where a
    coordinate is picked several times. A vector of one coordinate needs no selection.

    ε = picks (ε1 + ε2), pure LDP of all columns together. Picked values within the range are unbiased
    (tests/schemes/test_fedsel.py::test_picked_values_are_unbiased). The residual keeps what is not picked.
    """

    dim: int
    picks: int
    selection: TopSet | None
    channel: Channel
    reach: float

    traits = Traits(chooses=True)

    @property
    def identity(self) -> str:
        chosen = f"({self.selection.identity}) " if self.selection else ""
        return f"picks {self.picks} reach {self.reach!r} {chosen}({self.channel.identity})"

    @cached_property
    def layout(self) -> Layout:
        values = Column(self.picks, self.channel.alphabet)
        return (Column(self.picks, self.dim), values) if self.selection else (values,)

    @cached_property
    def privacy(self) -> Privacy:
        each = [self.channel.epsilon] + ([self.selection.epsilon] if self.selection else [])
        return Privacy(epsilon=total(add_up(*each), self.picks), notion="local")

    def _half_range(self, bound: float) -> float:
        return self.reach * bound / math.sqrt(self.dim)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        x = checks.shaped("x", x, self.dim)
        where = places(x, self.dim, self._half_range(bound))
        if self.selection is None:
            return (self.channel.randomize(np.repeat(where, self.picks), rng),)
        chosen = self.selection.choose(np.abs(x), self.picks, rng)
        return chosen.astype(np.uint32), self.channel.randomize(where[chosen], rng)

    def _chosen(self, columns: Columns) -> Indices:
        return columns[0].astype(np.int64) if self.selection else np.zeros(self.picks, np.int64)

    def coordinates(self, columns: Columns) -> Indices:
        return np.unique(self._chosen(columns))

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        chosen, values = self._chosen(columns), self._half_range(bound) * self.channel.estimate(columns[-1])
        counts = np.bincount(chosen, minlength=self.dim)
        return np.asarray(np.bincount(chosen, values, self.dim) / np.maximum(counts, 1))

    def _moments(self, share: float) -> tuple[float, float]:
        """E⟨x̂, y⟩ and E|x̂|² over |y|², for Gaussian coordinates."""
        ranks, counts, sizes = rank_groups(self.dim, self.selection.top if self.selection else 1)
        chance = np.exp(self.selection.log_probability(ranks)) if self.selection else np.ones(1)
        missed = np.clip(1 - chance, 0.0, 1.0)
        # E[1/m; m > 0] = Σ_{i <= picks} (missed^{picks - i} - missed^picks) / i, by Horner's rule.
        never, inverse, harmonic = missed**self.picks, np.zeros_like(missed), 0.0
        for i in range(1, self.picks + 1):
            inverse, harmonic = inverse * missed + 1 / i, harmonic + 1 / i
        sizes = share * sizes
        kept, noise = clamped(sizes, self.channel, self.reach)
        overlap = (1 - never) * kept * sizes
        squares = (1 - never) * kept**2 + (inverse - never * harmonic) * noise
        energy = self.dim * share**2
        return float(counts @ overlap) / energy, float(counts @ squares) / energy

    def relative_error(self, share: float) -> float:
        overlap, sent = self._moments(share)
        return 1 - 2 * overlap + sent

    def unbiased_error(self, share: float) -> float:
        """tests/schemes/test_fedsel.py::test_the_predicted_error_is_the_measured_one."""
        overlap, sent = self._moments(share)
        return sent / overlap**2 - 1

    @property
    def longest(self) -> float:
        return math.sqrt(self.picks / self.dim) * self.reach

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        x, chosen = checks.shaped("x", x, self.dim), self._chosen(columns)
        where = places(x, self.dim, self._half_range(bound))
        density = float(np.sum(self.channel.log_probability(columns[-1], where[chosen])))
        if self.selection is None:
            return density
        ranks = np.empty(self.dim, np.int64)
        ranks[channels.ranking(np.abs(x))] = np.arange(self.dim)
        return density + float(np.sum(self.selection.log_probability(ranks[chosen])))


@lru_cache(maxsize=64)
def rank_groups(dim: int, cut: int) -> tuple[Estimate, Estimate, Estimate]:
    """Mean rank, size and magnitude (mean square one) of groups of Gaussian ranks; none straddles ``cut``."""
    spaced = np.geomspace(1, dim, _GROUPS).round().astype(np.int64)
    edges = np.unique(np.concatenate([np.arange(min(dim, _GROUPS)), spaced, [cut, dim]]))
    ranks, counts = (edges[1:] + edges[:-1] - 1) / 2, np.diff(edges).astype(np.float64)
    normal = NormalDist()
    sizes = np.array([-normal.inv_cdf((rank + 0.5) / dim / 2) for rank in ranks.tolist()])
    return ranks, counts, sizes / math.sqrt(float(counts @ sizes**2) / dim)


def clamped(sizes: Estimate, channel: Channel, reach: float) -> tuple[Estimate, Estimate]:
    """Coordinates of each magnitude clamped to the range, and the variance of the values sent for them."""
    kept = np.minimum(sizes, reach)
    return kept, reach**2 * channel.second_moment(0.5 + kept / (2 * reach)) - kept**2


def plan_error(dim: int, picks: int, epsilon: float, channel: Channel, reach: float) -> tuple[float, int]:
    """The squared error of different picks minus the norm of none, and the best top set chosen with ε."""
    _, counts, sizes = rank_groups(dim, 1)
    kept, noise = clamped(sizes, channel, reach)
    loss = counts * ((kept - sizes) ** 2 - sizes**2 + noise)
    if dim == 1:
        return float(loss[0]), 0
    tops, inside = np.cumsum(counts)[:-1], np.cumsum(loss)[:-1]
    chance = 1 / (tops + (dim - tops) * math.exp(-epsilon))
    sent, others = (1 - (1 - share) ** picks for share in (chance, chance * math.exp(-epsilon)))
    errors = sent * inside + others * (loss.sum() - inside)
    best = int(np.argmin(errors))
    return float(errors[best]), int(tops[best])


def pick_counts(dim: int, epsilon: float, bits: int | None, alphabet: int, picks: int | None) -> list[int]:
    """Return the numbers of picks to try: those that fit and leave each at least a quarter of a nat."""
    most = picks or (1 if dim == 1 else min(_MOST_USEFUL, math.ceil(4 * epsilon)))
    if bits is not None:
        enough = min(most, math.floor(bits / math.log2(dim * alphabet)) + 1)
        most = bisect_right(range(1, enough + 1), bits, key=lambda count: _pick_bits(dim, count, alphabet))
    if picks is not None:
        return [picks] if picks <= most else []
    return np.unique(np.geomspace(1, most, _COUNTS).astype(np.int64)).tolist() if most else []


def _pick_bits(dim: int, picks: int, alphabet: int) -> int:
    return Column(picks, alphabet).bits + (Column(picks, dim).bits if dim > 1 else 0)


def fedsel(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    picks: int | None = None,
    levels: int | None = None,
    reach: float | None = None,
) -> Scheme:
    """Sends a small number of large coordinates, which are selected and reported privately.

    For each of b = ``picks`` coordinates, a budget of ε / b is divided into ε1 for selecting the coordinate
    by perturbed sampling and ε2 for reporting its value.

    By default, ``picks`` (one in the paper), the number of ``levels`` for the values, the size of the
    preferred set and the ratio of ε1 and ε2 minimise the predicted error, and ``reach`` is √(2 ln dim). The
    client keeps the remaining coordinates.
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bytes)
    reach = max(1.0, math.sqrt(2 * math.log(dim))) if reach is None else checks.real("reach", reach, 0.1, 1e5)
    picks = None if picks is None else checks.integer("picks", picks, 1, MOST_PICKS)
    alphabets = _PICK_LEVELS if levels is None else (checks.integer("levels", levels, 2, MOST_ALPHABET),)
    plans = []
    for alphabet in alphabets:
        for count in pick_counts(dim, epsilon, bits, alphabet, picks):
            share = equal_share(epsilon, count)
            for part in _PARTS if dim > 1 else (0.0,):  # of a pick's ε, for choosing its coordinate
                choice = part * share
                channel = PiecewiseGrid(alphabet, take_away(share, choice))
                error, best_top = plan_error(dim, count, choice, channel, reach)
                plans.append((error, count, choice, best_top, channel))
    if not plans:
        least = _pick_bits(dim, picks or 1, min(alphabets))
        raise too_few_bytes(bits, f"picks = {picks or 1} of dim = {dim}", least)
    _, picks, choice, top, channel = min(plans, key=lambda plan: plan[0])
    selection = TopSet(dim, top, choice) if dim > 1 else None
    mechanism = Picked(dim=dim, picks=picks, selection=selection, channel=channel, reach=reach)
    return Scheme(name="fedsel", dim=dim, transforms=(), mechanism=mechanism, keeps_state=dim > 1)
