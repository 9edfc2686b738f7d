"""The exact law of the matches of a sparse code: its privacy, its scale and its sampler.

A code is t signed coordinates out of N; s signed coordinates are near. A uniform code hits h near coordinates
with hypergeometric weight A_h = C(s, h) C(N-s, t-h) 2^(t-h), and l of the h signs match in C(h, l) ways, so
W_l = Σ_h A_h C(h, l) codes have l matches, and Σ_l W_l = C(N, t) 2^t.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from flint import arb, ctx, fmpz

from sqsgd import checks
from sqsgd.numerics import exact

MOST_SIZE, MOST_COUNT = 1 << 24, 1 << 12
_NEGLIGIBLE_BITS = 80


@dataclass(frozen=True, kw_only=True)
class SparseLaw:
    """P(code) = A if it has at least ``threshold`` = τ matches, else B, with A / B = e^ε.

    ``size`` is N, ``near`` is s, ``count`` is t. All codes with the same numbers of matches and wrong signs
    are equally likely, so a code is drawn as a pair (l, j) of these numbers and then uniformly.

    Guarantees
    ----------
    * The table that draws (l, j) has exactly this law:
      tests/mechanisms/test_sparse_law.py::test_the_table_encloses_the_law_in_whole_numbers.
    """

    size: int
    near: int
    count: int
    threshold: int
    epsilon: float

    def __post_init__(self) -> None:
        checks.integer("size", self.size, 1, MOST_SIZE)
        checks.integer("near", self.near, 1, self.size)
        checks.integer("count", self.count, 1, min(self.size, MOST_COUNT))
        checks.integer("threshold", self.threshold, 1, self.most_hits)
        checks.real("epsilon", self.epsilon, 1e-6, 1e6)

    @property
    def most_hits(self) -> int:
        """The largest number of near coordinates in a code."""
        return min(self.near, self.count)

    @property
    def fewest_hits(self) -> int:
        """The smallest number of near coordinates in a code; above zero only if N < s + t."""
        return max(0, self.near + self.count - self.size)

    def _hits(self) -> list[arb]:
        """A_h / (C(N, t) 2^t) for h from ``fewest_hits`` on: P(h) / 2^h for the hypergeometric law P."""
        n, s, t, h = self.size, self.near, self.count, self.fewest_hits
        first = fmpz.bin_uiui(s, h) * fmpz.bin_uiui(n - s, t - h)
        terms = [arb(first) / arb(fmpz.bin_uiui(n, t)) / arb(fmpz(1) << h)]
        for h in range(self.fewest_hits, self.most_hits):
            terms.append(terms[-1] * ((s - h) * (t - h)) / (2 * (h + 1) * (n - s - t + h + 1)))
        return terms

    def row(self, matches: int) -> Iterator[tuple[int, arb]]:
        """(j, share of the codes with l = ``matches`` and j wrong signs), until the rest is negligible.

        The ratio (s-h)(t-h) / (2 (h+1-l) (N-s-t+h+1)) of successive terms falls with h, so that what follows
        a term is at most term · ratio / (1 - ratio); it then widens the last term.
        """
        n, s, t, hits = self.size, self.near, self.count, _hit_shares(self, ctx.prec)
        start = max(matches, self.fewest_hits)
        term = hits[start - self.fewest_hits] * arb(fmpz.bin_uiui(start, matches))
        negligible = arb(2) ** -ctx.prec
        total = arb(0)
        for h in range(start, self.most_hits + 1):
            top, bottom = (s - h) * (t - h), 2 * (h + 1 - matches) * (n - s - t + h + 1)
            total += term
            if top < bottom and (rest := term * top / (bottom - top)) < negligible * total:
                yield h - matches, term + rest.union(arb(0))
                return
            yield h - matches, term
            if h < self.most_hits:
                term = term * top / bottom

    def masses(self) -> list[arb]:
        """W_l / (C(N, t) 2^t) for every l: the law of the matches of a uniform code.

        (s-l)(t-l) W_l = (l+1) ((2N-s-t+1) W_{l+1} + (l+2) W_{l+2}), from l = min(s, t) down
        (docs/proofs/sparse-matches.md): sums of positive terms.
        """
        return _masses(self, ctx.prec)

    def weights(self) -> tuple[arb, arb]:
        """(A, B) times C(N, t) 2^t: the densities relative to the uniform one."""
        high = sum(self.masses()[self.threshold :], arb(0))
        whole = arb(self.epsilon).expm1() * high + 1
        return arb(self.epsilon).exp() / whole, 1 / whole

    @cached_property
    def mean_matches(self) -> float:
        """μ = E[l - j] = (A - B) τ W_τ, because Σ_{l >= τ} (2l - h) C(h, l) = τ C(h, τ)."""

        def value() -> arb:
            above, below = self.weights()
            return (above - below) * self.threshold * self.masses()[self.threshold]

        return exact.nearest(value)

    @cached_property
    def keep(self) -> float:
        """The probability of at least τ matches."""
        return exact.nearest(lambda: 1 - self.weights()[1] * sum(self.masses()[: self.threshold], arb(0)))

    @cached_property
    def log_densities(self) -> tuple[float, float]:
        """(ln A, ln B), rounded towards each other: their difference never exceeds ε."""

        def uniform() -> arb:
            return arb(fmpz.bin_uiui(self.size, self.count) << self.count).log()

        return (
            exact.rounded(lambda: self.weights()[0].log() - uniform(), -math.inf),
            exact.rounded(lambda: self.weights()[1].log() - uniform(), math.inf),
        )

    # ------------------------------------------------------------ draws of (l, j)

    def rank(self, matches: int, wrong: int) -> int:
        """The place of (l, j) in the order of pairs: by l, then by j from 0 to ``most_hits`` - l."""
        return matches * (self.most_hits + 1) - matches * (matches - 1) // 2 + wrong

    def pair(self, rank: int) -> tuple[int, int]:
        """The inverse of ``rank``: the largest l whose first pair, at l (2m + 3 - l) / 2, is at most rank."""
        whole = 2 * self.most_hits + 3
        matches = (whole - 1 - math.isqrt(whole * whole - 8 * rank - 1)) // 2
        return matches, rank - self.rank(matches, 0)

    def cdf(self, rank: int) -> arb:
        """P((l, j) is at this rank or before it)."""
        (matches, wrong), (above, below), masses = self.pair(rank), self.weights(), self.masses()
        low = sum(masses[: min(matches, self.threshold)], arb(0)) * below
        high = sum(masses[self.threshold : matches], arb(0)) * above
        here = sum((share for j, share in self.row(matches) if j <= wrong), arb(0))
        return low + high + here * (above if matches >= self.threshold else below)

    @cached_property
    def sampler(self) -> exact.InverseCdf:
        """Draws the rank of (l, j) exactly, over its full support."""

        def edges() -> Iterator[tuple[int, arb]]:
            (above, below), negligible = self.weights(), arb(2) ** -_NEGLIGIBLE_BITS
            total, last = arb(0), -1
            for matches, mass in enumerate(self.masses()):
                weight = above if matches >= self.threshold else below
                if not mass * weight < negligible:
                    here, left = total, mass
                    for wrong, share in self.row(matches):
                        value = self.rank(matches, wrong)
                        if value - 1 != last and value > 0:
                            yield value - 1, here
                        here, left, last = here + share * weight, left - share, value
                        yield value, here
                        if abs(left * weight) < negligible:
                            break
                total += mass * weight

        with exact.precision(192):
            return exact.InverseCdf(self.rank(self.most_hits, 0), self.cdf, edges())


@lru_cache(maxsize=32)
def _hit_shares(law: SparseLaw, bits: int) -> list[arb]:
    return law._hits()


@lru_cache(maxsize=32)
def _masses(law: SparseLaw, bits: int) -> list[arb]:
    n, s, t, most = law.size, law.near, law.count, law.most_hits
    top = arb(fmpz.bin_uiui(max(s, t), most)) / arb(fmpz.bin_uiui(n, most) << most)
    masses = [arb(0), top]  # from the top down, after a mass above the top
    for l in range(most - 1, -1, -1):  # noqa: E741
        below = (2 * n - s - t + 1) * masses[-1] + (l + 2) * masses[-2]
        masses.append((l + 1) * below / ((s - l) * (t - l)))
    return masses[:0:-1]
