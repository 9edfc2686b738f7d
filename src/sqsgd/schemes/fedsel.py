"""FedSel (Liu et al., DASFAA 2020): choose coordinates privately, then send their values privately."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import add_up, take_away, total
from sqsgd.core import Estimate, Indices, Mechanism, Privacy, Scheme, Traits
from sqsgd.core.codec import Column, Columns, Layout
from sqsgd.core.random import Rng
from sqsgd.mechanisms.channels import MOST_ALPHABET, Channel, Floats, PiecewiseGrid
from sqsgd.mechanisms.scalardp import equal_share
from sqsgd.mechanisms.selection import RankWeights, Selection, TopSet, ranking
from sqsgd.schemes.budgets import checked_budget, too_few_bytes
from sqsgd.schemes.coordinatewise import places

MOST_PICKS = 1 << 20
_COUNTS, _MOST_USEFUL = 24, 1 << 14
_GROUPS = 200
_LEVELS = (4, 8, 16, 64, 256, 4096)
_PARTS = tuple(part / 16 for part in range(1, 16, 2))


@dataclass(frozen=True, kw_only=True)
class Picked(Mechanism):
    """``picks`` independent picks: a coordinate by ``selection`` (ε1) and its value by ``channel`` (ε2).

    Values are clamped to ± ``reach`` times the root mean square coordinate of a vector as long as the
    bound. A coordinate that is picked several times is estimated by the mean of its values. A vector
    of one coordinate needs no selection.

    ε = picks (ε1 + ε2), pure LDP of all columns together. Biased: E[x̂_j] is x_j, clamped to the range,
    times the probability that j is picked; the residual keeps the rest. The value of a picked coordinate
    within the range is unbiased: tests/schemes/test_fedsel.py::test_picked_values_are_unbiased.
    """

    dim: int
    picks: int
    selection: Selection | None
    channel: Channel
    reach: float

    @property
    def traits(self) -> Traits:
        return Traits(chooses=True)

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
        whole = np.zeros(self.dim)
        coordinates, values = self._means(columns, bound)
        whole[coordinates] = values
        return whole

    def add_estimate(self, columns: Columns, bound: float, weight: float, total: Vector) -> None:
        coordinates, values = self._means(columns, bound)
        total[coordinates] += (weight * values).astype(np.float32)

    def _means(self, columns: Columns, bound: float) -> tuple[Indices, Floats]:
        """The picked coordinates, and the mean of the values of each."""
        coordinates, which, counts = np.unique(self._chosen(columns), return_inverse=True, return_counts=True)
        values = self._half_range(bound) * self.channel.estimate(columns[-1])
        return coordinates, np.bincount(which, values) / counts

    def _moments(self, share: float) -> tuple[float, float]:
        """E⟨x̂, y⟩ and E|x̂|² over |y|², for Gaussian coordinates.

        They are the sums over j of P_j c_j y_j and of P_j c_j² + E[1/m_j; m_j > 0] Var_j, where c_j is y_j
        clamped, m_j the number of its picks and P_j = P(m_j > 0).
        """
        cut = self.selection.top if isinstance(self.selection, TopSet) else 1
        ranks, counts, sizes = rank_groups(self.dim, cut)
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
        """The error on the whole vector, for Gaussian coordinates: unsent ones count, so it is near 1."""
        overlap, sent = self._moments(share)
        return 1 - 2 * overlap + sent

    def unbiased_error(self, share: float) -> float:
        """E|x̂|² / E⟨x̂, y⟩² - 1, in units of |y|²: with x̂ divided by its overlap with y.

        tests/schemes/test_fedsel.py::test_the_predicted_error_is_the_measured_one.
        """
        overlap, sent = self._moments(share)
        return sent / overlap**2 - 1

    @property
    def longest(self) -> float:
        """``picks`` values at the end of their range."""
        return math.sqrt(self.picks / self.dim) * self.reach

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        x, chosen = checks.shaped("x", x, self.dim), self._chosen(columns)
        where = places(x, self.dim, self._half_range(bound))
        density = float(np.sum(self.channel.log_probability(columns[-1], where[chosen])))
        if self.selection is None:
            return density
        ranks = np.empty(self.dim, np.int64)
        ranks[ranking(np.abs(x))] = np.arange(self.dim)
        return density + float(np.sum(self.selection.log_probability(ranks[chosen])))


# ---------------------------------------------------------------- budgets


@lru_cache(maxsize=64)
def rank_groups(dim: int, cut: int) -> tuple[Floats, Floats, Floats]:
    """Mean rank, size and magnitude of groups of the ranks of ``dim`` Gaussian coordinates.

    Groups hold one rank at the top and grow from there; none straddles the rank ``cut``. The mean square
    of all magnitudes is one.
    """
    spaced = np.geomspace(1, dim, _GROUPS).round().astype(np.int64)
    edges = np.unique(np.concatenate([np.arange(min(dim, _GROUPS)), spaced, [cut, dim]]))
    ranks, counts = (edges[1:] + edges[:-1] - 1) / 2, np.diff(edges).astype(np.float64)
    normal = NormalDist()
    sizes = np.array([-normal.inv_cdf((rank + 0.5) / dim / 2) for rank in ranks.tolist()])
    return ranks, counts, sizes / math.sqrt(float(counts @ sizes**2) / dim)


def clamped(sizes: Floats, channel: Channel, reach: float) -> tuple[Floats, Floats]:
    """Coordinates of each magnitude clamped to the range, and the variance of the values sent for them."""
    kept = np.minimum(sizes, reach)
    return kept, reach**2 * channel.second_moment(0.5 + kept / (2 * reach)) - kept**2


def plan_error(
    dim: int, picks: int, epsilon: float, channel: Channel, reach: float, top: int | None, *, ranked: bool
) -> tuple[float, int]:
    """The squared error minus that of sending nothing, and the best size of a top set.

    ``epsilon`` is that of choosing a coordinate, by rank if ``ranked``. Assumes that all picks differ.
    """
    ranks, counts, sizes = rank_groups(dim, top or 1)
    kept, noise = clamped(sizes, channel, reach)
    loss = counts * ((kept - sizes) ** 2 - sizes**2 + noise)
    if dim == 1:
        return float(loss[0]), 0
    if ranked:
        chance = np.exp(RankWeights(dim, epsilon).log_probability(ranks))
        return float((1 - (1 - chance) ** picks) @ loss), 0
    tops, inside = np.cumsum(counts)[:-1], np.cumsum(loss)[:-1]
    if top is not None:
        tops, inside = tops[tops == top], inside[tops == top]
    chance = 1 / (tops + (dim - tops) * math.exp(-epsilon))
    sent, others = (1 - (1 - share) ** picks for share in (chance, chance * math.exp(-epsilon)))
    errors = sent * inside + others * (loss.sum() - inside)
    best = int(np.argmin(errors))
    return float(errors[best]), int(tops[best])


def pick_counts(dim: int, epsilon: float, bits: int | None, alphabet: int, picks: int | None) -> list[int]:
    """The numbers of picks to try: those that fit and leave each at least a quarter of a nat."""
    most = picks or (1 if dim == 1 else min(_MOST_USEFUL, math.ceil(4 * epsilon)))
    if bits is not None:
        enough = min(most, math.floor(bits / math.log2(dim * alphabet)) + 1)
        most = bisect_right(range(1, enough + 1), bits, key=lambda count: _bits(dim, count, alphabet))
    if picks is not None:
        return [picks] if picks <= most else []
    return np.unique(np.geomspace(1, most, _COUNTS).astype(np.int64)).tolist() if most else []


def _bits(dim: int, picks: int, alphabet: int) -> int:
    """Bits of the values, and of the indices where there is a choice."""
    return Column(picks, alphabet).bits + (Column(picks, dim).bits if dim > 1 else 0)


def fedsel(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    select: Literal["ps", "em"] = "ps",
    picks: int | None = None,
    top: int | None = None,
    levels: int | None = None,
    select_share: float | None = None,
    reach: float | None = None,
) -> Scheme:
    """b = ``picks`` picks at ε / b each: a coordinate at ε1, by perturbed sampling or EM, its value at ε2.

    ``top`` is the size of the set that perturbed sampling ("ps") prefers, ``select_share`` is ε1 / (ε1 + ε2),
    ``levels`` the grid of the values, which PiecewiseGrid privatises. Parameters that are not given are those
    of the least predicted error of a Gaussian vector as long as the bound; the paper sends one pick. The
    default ``reach`` is the largest of ``dim`` Gaussian coordinates, √(2 ln dim). The client keeps the rest.

    >>> scheme = fedsel(119850, 400.0, 256)
    >>> scheme.mechanism.picks, scheme.mechanism.selection.top, scheme.code_bits, round(scheme.nmse, 4)
    (24, 120, 480, 0.9979)
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bytes)
    if select not in ("ps", "em"):
        raise ValueError(f"select = {select!r} must be 'ps' or 'em'")
    if top is not None:
        if select == "em":
            raise ValueError(f"top = {top}: select = 'em' has no top set; omit it")
        top = checks.integer("top", top, 1, dim - 1)
    if select_share is not None:
        select_share = checks.real("select_share", select_share, 0.001, 0.999)
    reach = max(1.0, math.sqrt(2 * math.log(dim))) if reach is None else checks.real("reach", reach, 0.1, 1e5)
    picks = None if picks is None else checks.integer("picks", picks, 1, MOST_PICKS)
    parts = _PARTS if select_share is None else (select_share,)
    alphabets = _LEVELS if levels is None else (checks.integer("levels", levels, 2, MOST_ALPHABET),)
    plans = []
    for alphabet in alphabets:
        for count in pick_counts(dim, epsilon, bits, alphabet, picks):
            share = equal_share(epsilon, count)
            for part in parts if dim > 1 else (0.0,):  # of a pick's ε, for the choice of its coordinate
                choice = part * share
                channel = PiecewiseGrid(alphabet, take_away(share, choice))
                error, best_top = plan_error(dim, count, choice, channel, reach, top, ranked=select == "em")
                plans.append((error, count, choice, best_top, channel))
    if not plans:
        least = _bits(dim, picks or 1, min(alphabets))
        raise too_few_bytes(bits, f"picks = {picks or 1} of dim = {dim}", least)
    _, picks, choice, top, channel = min(plans, key=lambda plan: plan[0])
    selection: Selection | None = None
    if dim > 1:
        selection = TopSet(dim, top, choice) if select == "ps" else RankWeights(dim, choice)
    mechanism = Picked(dim=dim, picks=picks, selection=selection, channel=channel, reach=reach)
    return Scheme(name="fedsel", dim=dim, transforms=(), mechanism=mechanism, residual=dim > 1)
