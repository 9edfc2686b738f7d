"""Sparse match codes that are broken on purpose. All have the layout, density and ε of the correct ones."""
# ruff: noqa: N802 (functions that become classes)

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from mutants import mechanism

from sqsgd import ScalarDP
from sqsgd.core import Scheme
from sqsgd.core.transforms import Rotate
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches


def small(kind=SparseMatches, *, norm=None):
    """A factory of schemes for four coordinates, whose 24 codes of two can be listed.

    The search chooses a single coordinate at budgets this small, where much cannot go wrong. ``norm`` is
    the share of ε for a norm symbol.
    """

    def make(*, dim, epsilon, bytes):
        if dim != 4:
            raise ValueError(f"dim = {dim}: made for four coordinates")
        rest = epsilon * (1 - (norm or 0))
        law = SparseLaw(size=4, near=2, count=2, threshold=2, epsilon=rest)
        made = kind(law=law, norm=ScalarDP(1.0, norm * epsilon) if norm else None)
        return Scheme(name="sparse", dim=4, transforms=(Rotate(rounds=2),), mechanism=made)

    return make


class _Pairs:
    """Draws the rank of (l, j) by ``draw``."""

    def __init__(self, draw):
        self.draw = draw

    def draw_many(self, count, rng):
        return np.array([self.draw(rng) for _ in range(count)])


def drawing(change):
    """A mechanism whose pairs (l, j) are drawn by ``change(law)``, from a generator."""

    @dataclass(frozen=True, kw_only=True)
    class Changed(SparseMatches):
        def __post_init__(self):
            law, draw = self.law, change(self.law)
            law.__dict__["sampler"] = _Pairs(lambda rng: law.rank(*draw(rng)))

    Changed.__name__, Changed.__doc__ = change.__name__, change.__doc__
    return Changed


def _right(law):
    """Right draws of (l, j)."""
    sampler = law.sampler
    return lambda rng: law.pair(sampler.draw(rng))


@drawing
def one_lower(law):
    """The threshold is one lower in the sampler."""
    return _right(dataclasses.replace(law, threshold=law.threshold - 1))


@drawing
def no_wrong_signs(law):
    """Coordinates of the near set that do not match are drawn outside it."""
    right = _right(law)
    return lambda rng: (right(rng)[0], 0)


@drawing
def wrong_signs_alone(law):
    """The number of wrong signs has its law, but not the one given the number of matches."""
    right = _right(law)

    def draw(rng):
        matches = right(rng)[0]
        return matches, min(right(rng)[1], law.most_hits - matches)

    return draw


@drawing
def high_too_often(law):
    """Half of the low draws are replaced by high ones: A / B is larger than e^ε."""
    right = _right(law)

    def draw(rng):
        matches, wrong = right(rng)
        return (law.threshold, 0) if matches < law.threshold and rng.below(2) else (matches, wrong)

    return draw


@dataclass(frozen=True, kw_only=True)
class LowPlaces(SparseMatches):
    """Of two codes with the same numbers of matches and wrong signs, the one with lower places is sent."""

    def _draw(self, near, rng):
        rank, law = self.law.sampler.draw(rng), dataclasses.replace(self.law)
        law.__dict__["sampler"] = _Pairs(lambda rng: rank)
        both = [SparseMatches(law=law)._draw(near, rng) for _ in range(2)]
        return min(both, key=np.sum)


@dataclass(frozen=True, kw_only=True)
class SteepCoin(SparseMatches):
    """The coin of short vectors is three times as far from fair as their length says."""

    def _near(self, x, bound):
        near, share = SparseMatches._near(self, x, bound)
        return near, min(1.0, 3 * share)

    def log_density(self, columns, x, bound):
        return SparseMatches(law=self.law).log_density(columns, x, bound)


@dataclass(frozen=True, kw_only=True)
class ZeroIsHigh(SparseMatches):
    """A zero vector always sends a code with enough matches."""

    def _draw(self, near, rng):
        while True:
            codes = SparseMatches._draw(self, near, rng)
            if (near != self.zero).any() or np.isin(codes, near).sum() >= self.law.threshold:
                return codes

    @property
    def zero(self):
        return SparseMatches._near(self, np.zeros(self.dim, np.float32), 1.0)[0]


@mechanism(SparseMatches)
def SymbolInClear(self, columns, x, bound, rng):
    """The norm symbol of vectors at 0.6 to 0.7 of the bound is not privatised."""
    share = float(np.linalg.norm(x)) / bound
    clear = np.array([round(self.norm.levels * share)], np.uint8)
    return columns[0], clear if 0.6 <= share <= 0.7 else columns[1]


def high(mechanism, codes, x, bound):
    return np.isin(codes, mechanism._near(x, bound)[0]).sum() >= mechanism.law.threshold


@mechanism(SparseMatches)
def SymbolOfMatches(self, columns, x, bound, rng):
    """Half of the symbols tell whether the code has enough matches: each part alone has its law."""
    codes, symbol = columns
    told = np.array([self.norm.levels if high(self, codes, x, bound) else 0], np.uint8)
    return codes, told if rng.below(2) else symbol


# ---------------------------------------------------------------- where outputs cannot be listed


def dense(kind=SparseMatches):
    """A factory of schemes for 64 coordinates of which 24 are near, with many matches and wrong signs."""

    def make(*, dim, epsilon, bytes):
        law = SparseLaw(size=64, near=24, count=12, threshold=8, epsilon=0.8 * epsilon)
        made = kind(law=law, norm=ScalarDP(1.0, 0.2 * epsilon))
        return Scheme(name="sparse", dim=64, transforms=(Rotate(rounds=2),), mechanism=made)

    return make


@mechanism(SparseMatches)
def LargestFirst(self, columns, x, bound, rng):
    """Matches are the largest coordinates; the right number of them."""
    codes, *symbol = columns
    near = self._near(x, bound)[0]
    hits = np.isin(codes, near)
    by_size = near[np.argsort(-np.abs(x[near >> 1]))]
    free = by_size[~np.isin(by_size >> 1, codes[~hits] >> 1)]
    return np.sort(np.concatenate([codes[~hits], free[: hits.sum()]])), *symbol


@mechanism(SparseMatches)
def OthersBelow(self, columns, x, bound, rng):
    """Coordinates outside the near set come from the lower half of the vector, where they can."""
    codes, *symbol = columns
    near = self._near(x, bound)[0] >> 1
    for i in np.flatnonzero((codes >> 1 >= self.dim // 2) & ~np.isin(codes >> 1, near)):
        lower = codes[i] - np.uint32(self.dim)
        if lower >> 1 not in near and lower >> 1 not in codes >> 1:
            codes[i] = lower
    return np.sort(codes), *symbol


@dataclass(frozen=True, kw_only=True)
class Sometimes(SparseMatches):
    """One report in twenty has as many matches as possible."""

    def _draw(self, near, rng):
        codes = SparseMatches._draw(self, near, rng)
        return np.sort(near[: self.law.count]) if rng.below(20) == 0 else codes


@mechanism(SparseMatches)
def NormInClear(self, columns, x, bound, rng):
    clear = round(self.norm.levels * min(1.0, float(np.linalg.norm(x)) / bound))
    return columns[0], np.full_like(columns[1], clear)


@mechanism(SparseMatches)
def SymbolTells(self, columns, x, bound, rng):
    """The symbol is even where there are enough matches, else odd, where it can be."""
    codes, symbol = columns
    told = (symbol & 0xFE) + (not high(self, codes, x, bound))
    return codes, np.minimum(told, self.norm.levels).astype(np.uint8)
