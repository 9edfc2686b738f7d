"""How FedSel spends a budget, by the predicted error of Gaussian coordinates ranked by magnitude."""

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
from sqsgd.schemes._bit_budget import too_few_bits

MOST_PICKS = 1 << 20
_COUNTS, _MOST_USEFUL = 24, 1 << 14
_GROUPS = 200


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


def losses(sizes: Floats, channel: Channel, reach: float) -> tuple[Floats, Floats]:
    """What sending a coordinate of each magnitude adds to the squared error: by its bias and by its noise."""
    kept = np.minimum(sizes, reach)
    noise = reach**2 * channel.second_moment(0.5 + kept / (2 * reach)) - kept**2
    return (kept - sizes) ** 2 - sizes**2, noise


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget, and the parameters that are fixed (None: chosen)."""

    dim: int
    epsilon: float
    bits: int | None
    ranked: bool
    """Coordinates are chosen by rank, not from a top set."""
    reach: float
    picks: int | None
    top: int | None
    parts: Sequence[float]
    """Shares of a pick's ε to try for the choice of its coordinate."""
    alphabets: Sequence[int]

    def bits_of(self, picks: int, alphabet: int) -> int:
        """Bits of the values, and of the indices where there is a choice."""
        return Column(picks, alphabet).bits + (Column(picks, self.dim).bits if self.dim > 1 else 0)

    def counts(self, alphabet: int) -> list[int]:
        """The numbers of picks to try: those that fit and leave each at least a quarter of a nat."""
        most = self.picks or (1 if self.dim == 1 else min(_MOST_USEFUL, math.ceil(4 * self.epsilon)))
        if self.bits is not None:
            enough = min(most, math.floor(self.bits / math.log2(self.dim * alphabet)) + 1)
            most = bisect_right(range(1, enough + 1), self.bits, key=lambda b: self.bits_of(b, alphabet))
        if self.picks is not None:
            return [self.picks] if self.picks <= most else []
        return np.unique(np.geomspace(1, most, _COUNTS).astype(np.int64)).tolist() if most else []

    def plans(self) -> Iterator[Plan]:
        """The plans to compare, with their predicted errors."""
        for alphabet in self.alphabets:
            for picks in self.counts(alphabet):
                share = equal_share(self.epsilon, picks)
                for part in self.parts if self.dim > 1 else (0.0,):
                    chosen = part * share
                    channel = PiecewiseGrid(alphabet, take_away(share, chosen))
                    error, top = self._error(picks, chosen, channel)
                    yield Plan(error=error, picks=picks, choice=chosen, top=top, channel=channel)

    def _error(self, picks: int, epsilon: float, channel: Channel) -> tuple[float, int]:
        """The squared error minus that of sending nothing, and the best size of a top set.

        Assumes that all picks differ.
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
            raise too_few_bits(self.bits, f"picks = {picks} of dim = {self.dim}", least)
        return plan


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Number of picks, ε for choosing a coordinate, size of the top set, and the channel of the values."""

    error: float
    picks: int
    choice: float
    top: int
    channel: PiecewiseGrid
