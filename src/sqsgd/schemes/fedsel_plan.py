"""How FedSel spends a budget: predicted errors for Gaussian coordinates, ranked by magnitude."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from sqsgd.codec import Column
from sqsgd.mechanisms.budget_split import equal_share
from sqsgd.mechanisms.channel import Channel, Floats
from sqsgd.mechanisms.piecewise_grid import PiecewiseGrid
from sqsgd.mechanisms.selection import RankWeights
from sqsgd.numerics.epsilon_sums import take_away

MOST_PICKS = 1 << 20
_COUNTS, _MOST_USEFUL = 24, 1 << 14
_GROUPS = 200


@lru_cache(maxsize=64)
def rank_groups(dim: int, cut: int) -> tuple[Floats, Floats, Floats]:
    """Mean rank, number and magnitude of groups of the ranks of ``dim`` Gaussian coordinates.

    One rank a group at the top, then ever more; no group lies across the rank ``cut``. The mean square
    of all magnitudes is one.
    """
    spaced = np.geomspace(1, dim, _GROUPS).round().astype(np.int64)
    edges = np.unique(np.concatenate([np.arange(min(dim, _GROUPS)), spaced, [cut, dim]]))
    ranks, counts = (edges[1:] + edges[:-1] - 1) / 2, np.diff(edges).astype(np.float64)
    normal = NormalDist()
    sizes = np.array([-normal.inv_cdf((rank + 0.5) / dim / 2) for rank in ranks.tolist()])
    return ranks, counts, sizes / math.sqrt(float(counts @ sizes**2) / dim)


def losses(sizes: Floats, channel: Channel, reach: float) -> tuple[Floats, Floats]:
    """What sending a coordinate of each size adds to the squared error: by its mean, and by its noise."""
    kept = np.minimum(sizes, reach)
    noise = reach**2 * channel.second_moment(0.5 + kept / (2 * reach)) - kept**2
    return (kept - sizes) ** 2 - sizes**2, noise


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What is given, and what is fixed (None: to be chosen)."""

    dim: int
    epsilon: float
    bits: int | None
    ranked: bool
    """Coordinates are chosen by their ranks, not by a top set."""
    reach: float
    picks: int | None
    top: int | None
    parts: Sequence[float]
    """Shares of a pick's ε that may go to the choice of its coordinate."""
    alphabets: Sequence[int]

    def bits_of(self, picks: int, alphabet: int) -> int:
        """Indices, where there is a choice, and values."""
        return Column(picks, alphabet).bits + (Column(picks, self.dim).bits if self.dim > 1 else 0)

    def counts(self, alphabet: int) -> list[int]:
        """The numbers of picks to try: those that fit, at a quarter of a nat each or more."""
        most = self.picks or (1 if self.dim == 1 else min(_MOST_USEFUL, math.ceil(4 * self.epsilon)))
        if self.bits is not None:
            enough = min(most, math.floor(self.bits / math.log2(self.dim * alphabet)) + 1)
            most = bisect_right(range(1, enough + 1), self.bits, key=lambda b: self.bits_of(b, alphabet))
        if self.picks is not None:
            return [self.picks] if self.picks <= most else []
        return np.unique(np.geomspace(1, most, _COUNTS).astype(np.int64)).tolist() if most else []

    def plans(self) -> Iterator[Plan]:
        """What may be done, with the error that it leaves."""
        for alphabet in self.alphabets:
            for picks in self.counts(alphabet):
                share = equal_share(self.epsilon, picks)
                for part in self.parts if self.dim > 1 else (0.0,):
                    chosen = part * share
                    channel = PiecewiseGrid(alphabet, take_away(share, chosen))
                    error, top = self._error(picks, chosen, channel)
                    yield Plan(error=error, picks=picks, choice=chosen, top=top, channel=channel)

    def _error(self, picks: int, epsilon: float, channel: Channel) -> tuple[float, int]:
        """The squared error less that of sending nothing, and the best size of a top set.

        All picks are taken to differ.
        """
        ranks, counts, sizes = rank_groups(self.dim, self.top or 1)
        loss = counts * np.add(*losses(sizes, channel, self.reach))
        if self.dim == 1:
            return float(loss[0]), 0
        if self.ranked:
            chance = np.exp(RankWeights(self.dim, epsilon).log_probability(ranks))
            return float((1 - (1 - chance) ** picks) @ loss), 0
        tops, inside = np.cumsum(counts)[:-1], np.cumsum(loss)[:-1]
        if self.top is not None:
            tops, inside = tops[tops == self.top], inside[tops == self.top]
        chance = 1 / (tops + (self.dim - tops) * math.exp(-epsilon))
        sent, others = (1 - (1 - each) ** picks for each in (chance, chance * math.exp(-epsilon)))
        errors = sent * inside + others * (loss.sum() - inside)
        best = int(np.argmin(errors))
        return float(errors[best]), int(tops[best])

    def best(self) -> Plan:
        """The plan with the least error."""
        plan = min(self.plans(), key=lambda plan: plan.error, default=None)
        if plan is None:
            picks = self.picks or 1
            least = self.bits_of(picks, min(self.alphabets))
            raise ValueError(
                f"bits = {self.bits} do not hold picks = {picks} of dim = {self.dim}; at least {least} do"
            )
        return plan


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How often to pick, ε for the choice of a coordinate, the top set's size, and the value's channel."""

    error: float
    picks: int
    choice: float
    top: int
    channel: PiecewiseGrid
