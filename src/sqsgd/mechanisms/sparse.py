"""Sparse match codes: a few signed coordinates near the largest ones, with their law."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from flint import arb, ctx, fmpz

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import Densities
from sqsgd._internal.geometry import l2_norm, largest_squares, largest_sum, row_norms
from sqsgd.core import Codes, Estimate, Traits, Vectors
from sqsgd.core.codec import AnyColumn, Columns, SignedSubset
from sqsgd.core.random import Rng, check_rng
from sqsgd.mechanisms.scalardp import ScalarDP, Sized, log_densities

MOST_SIZE, MOST_COUNT = 1 << 24, 1 << 12
_NEGLIGIBLE_BITS = 80
_MOST_ALONG = 128  # in more dimensions the error along the vector is a small part of the error


@dataclass(frozen=True, kw_only=True)
class SparseLaw:
    """P(code) = A if it has at least ``threshold`` = τ matches, else B, with A / B = e^ε.

    ``size`` is N, ``near`` is s, ``count`` is t. All codes with the same numbers of matches and wrong signs
    are equally likely, so a code is drawn as a pair (l, j) of these numbers and then uniformly.

    Guarantees
    ----------
    * The table that draws (l, j) has exactly this law:
      tests/mechanisms/test_sparse.py::test_the_table_encloses_the_law_in_whole_numbers.
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
        return min(self.near, self.count)

    @property
    def fewest_hits(self) -> int:
        """Above zero only if N < s + t."""
        return max(0, self.near + self.count - self.size)

    def row(self, matches: int) -> Iterator[tuple[int, arb]]:
        """(j, share of the codes with l = ``matches`` and j wrong signs), until the rest is negligible.

        The ratio of successive terms falls with h, so the rest is at most term · ratio / (1 - ratio).
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

        (s-l)(t-l) W_l = (l+1) ((2N-s-t+1) W_{l+1} + (l+2) W_{l+2}): docs/proofs/sparse-matches.md.
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
        """(ln A, ln B): their difference never exceeds ε."""
        outputs = fmpz.bin_uiui(self.size, self.count) << self.count
        return log_densities(self.weights, lambda: arb(outputs).log())

    def rank(self, matches: int, wrong: int) -> int:
        """Return the place of (l, j) in the order of pairs: by l, then by j from 0 to ``most_hits`` - l."""
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
    """A_h / (C(N, t) 2^t) for h from ``fewest_hits`` on: P(h) / 2^h for the hypergeometric law P."""
    n, s, t, h = law.size, law.near, law.count, law.fewest_hits
    first = fmpz.bin_uiui(s, h) * fmpz.bin_uiui(n - s, t - h)
    terms = [arb(first) / arb(fmpz.bin_uiui(n, t)) / arb(fmpz(1) << h)]
    for h in range(law.fewest_hits, law.most_hits):
        terms.append(terms[-1] * ((s - h) * (t - h)) / (2 * (h + 1) * (n - s - t + h + 1)))
    return terms


@lru_cache(maxsize=32)
def _masses(law: SparseLaw, bits: int) -> list[arb]:
    n, s, t, most = law.size, law.near, law.count, law.most_hits
    top = arb(fmpz.bin_uiui(max(s, t), most)) / arb(fmpz.bin_uiui(n, most) << most)
    masses = [arb(0), top]  # from the top down, after a mass above the top
    for l in range(most - 1, -1, -1):  # noqa: E741
        below = (2 * n - s - t + 1) * masses[-1] + (l + 2) * masses[-2]
        masses.append((l + 1) * below / ((s - l) * (t - l)))
    return masses[:0:-1]


class NearCodes(Sized):
    """Codes of signed coordinates with the density of a ``SparseLaw`` about the largest ones of a vector.

    The near set holds the s coordinates of x with the largest magnitudes, with their signs. With S the
    expected sum of the s largest magnitudes of a uniform unit vector, and μ = E[l - j], where j counts wrong
    signs, E[v] = (μ S / s) x / |x| over the rotation.

    Without a ``symbol`` for the norm, a vector shorter than the bound takes the opposite direction with
    probability (1 - |x| / bound) / 2: unbiased, and costs no ε.
    """

    law: SparseLaw

    @abstractmethod
    def _draw(self, near: Codes, rng: Rng) -> Codes:
        """Return a code for a near set."""

    @abstractmethod
    def _draw_many(self, near: Codes, rng: Rng) -> Codes:
        """Return a code for each row, independently, with the law of ``_draw``."""

    @property
    def code(self) -> tuple[AnyColumn, float, Densities]:
        return SignedSubset(self.law.count, self.law.size), self.law.epsilon, self.law.weights

    @cached_property
    def scale(self) -> float:
        """m: the length of the mean of v for a unit vector."""
        return self.law.mean_matches * largest_sum(self.law.size, self.law.near) / self.law.near

    def _near(self, x: Vector, bound: float) -> tuple[Codes, float]:
        """Return the codes 2 place + sign of the near set, in rising order, and |x| / bound, at most one."""
        from sqsgd._internal.kernels.sampling import select_signed

        x = checks.shaped("x", x, self.dim)
        norm = checks.finite_size("x", l2_norm(x))
        near = np.empty(self.law.near, np.uint32)
        select_signed(x.view(np.uint32), near)
        return near, min(norm / bound, 1.0)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        check_rng(rng)
        near, share = self._near(x, bound)
        if self.symbol is None:
            near ^= np.uint32(rng.uniform() >= (1 + share) / 2)  # the opposite direction
        return self.with_symbol(self._draw(near, rng), share, rng)

    def randomize_many(self, x: Vectors, bound: float, rng: Rng) -> Columns:
        from sqsgd._internal.kernels.sampling import select_signed_rows

        norms = row_norms(x)
        checks.finite_size("x", float(norms.max(initial=0.0)))
        share = np.minimum(norms / bound, 1.0)
        near = np.empty((len(x), self.law.near), np.uint32)
        select_signed_rows(x.view(np.uint32), near)
        if self.symbol is None:
            near ^= (rng.uniforms(len(x)) >= (1 + share) / 2).astype(np.uint32)[:, None]
        codes = self._draw_many(near, rng)
        return (codes,) if self.symbol is None else (codes, self.symbol.privatize_many(share, rng)[:, None])

    def unit_codes(self, columns: Columns, bound: float) -> tuple[Codes, Estimate]:
        sizes = np.full(len(columns[0]), bound) if self.symbol is None else self.magnitudes(columns, bound)
        units = np.asarray(sizes) / self.scale  # an estimate of the norm may be negative
        return columns[0].astype(np.uint32) ^ (units < 0).astype(np.uint32)[:, None], np.abs(units)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        size, whole = self.magnitude(columns, bound), np.zeros(self.dim)
        unit = (bound if size is None else size) / self.scale
        whole[columns[0] >> 1] = np.array([unit, -unit])[columns[0] & 1]
        return whole

    def relative_error(self, share: float) -> float:
        """t / m² - 1 for a known norm; times 1 + Var(norm) / norm² with a symbol, over share² without."""
        energy = self.law.count / self.scale**2
        if self.symbol is None:
            return energy / share**2 - 1
        return (1 + self.symbol.variance(share) / share**2) * energy - 1

    def along(self, share: float) -> float:
        """E⟨v, y⟩² / t for a unit vector y; matches and wrong signs are uniform in the near set."""
        law = self.law
        if law.size > _MOST_ALONG:
            return super().along(share)
        squared_sum, squares = largest_squares(law.size, law.near)
        (above, below), pairs = law.weights(), squared_sum - squares
        value = 0.0
        for l in range(law.most_hits + 1):  # noqa: E741
            for j, chance in law.row(l):
                inside = (l + j) * squares / law.near
                inside += ((l - j) ** 2 - (l + j)) * pairs / (law.near * max(1, law.near - 1))
                outside = (law.count - l - j) * (1 - squares) / max(1, law.size - law.near)
                value += float(chance * (above if l >= law.threshold else below)) * (inside + outside)
        return value / law.count

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        near, share = self._near(x, bound)
        codes, (high, low) = columns[0].astype(np.uint32), self.law.log_densities
        along = high if np.isin(codes, near).sum() >= self.law.threshold else low
        if self.symbol is not None:
            return along + self.symbol_density(columns, share)
        against = high if np.isin(codes, near ^ np.uint32(1)).sum() >= self.law.threshold else low
        with np.errstate(divide="ignore"):
            return float(np.logaddexp(along + np.log((1 + share) / 2), against + np.log((1 - share) / 2)))


@dataclass(frozen=True, kw_only=True)
class SparseMatches(NearCodes):
    """t signed coordinates of a rotated vector, at least τ of them among its s largest with odds e^ε.

    The norm is sent by ScalarDP, which takes its share of ε, unless ``norm`` is None.

    Guarantees
    ----------
    * Exactly ε-LDP, as implemented, for all sizes: tests/schemes/test_privacy.py::test_exact_privacy,
      tests/mechanisms/test_sparse.py::test_codes_with_equal_matches_are_equally_likely.
    * Unbiased over ``gaussian_rotation``, within 1 %:
      tests/schemes/test_few_dimensions.py::test_worst_vectors_keep_their_length.
    * A report draws the same number of words for every input:
      tests/mechanisms/test_sparse.py::test_the_same_work_whatever_is_drawn.
    """

    law: SparseLaw
    norm: ScalarDP | None = None  # for norm / bound, so its maximum is 1

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.law.size

    @property
    def identity(self) -> str:
        law, norm = self.law, self.norm.identity if self.norm else "coin"
        return f"sparse {law.size} {law.near} {law.count} {law.threshold} {law.epsilon!r} ({norm})"

    @cached_property
    def traits(self) -> Traits:
        return replace(super().traits, fixed_length=self.norm is None)

    def _draw(self, near: Codes, rng: Rng) -> Codes:
        return self._draw_pair(near, *self.law.pair(self.law.sampler.draw(rng)), rng)

    def _draw_pair(self, near: Codes, right: int, wrong: int, rng: Rng) -> Codes:
        """Return a uniform code among those with ``right`` matches and ``wrong`` signs."""
        from sqsgd._internal.kernels.sampling import draw_codes

        law = self.law
        while True:
            words = rng.words(self._words)
            codes, marks = np.empty(law.count, np.uint32), np.zeros(-(-law.size // 64), np.uint64)
            if draw_codes(near.copy(), codes, law.size, right, wrong, words, marks):
                return np.sort(codes)

    @property
    def _words(self) -> int:
        """Words that nearly always suffice: N / (N - s - i) each on average outside the near set."""
        law = self.law
        outside = law.size - law.near + 0.5
        needed = law.most_hits - law.size * math.log1p(-min(law.count, law.size - law.near) / outside)
        return math.ceil(1.25 * needed) + 32

    def _draw_many(self, near: Codes, rng: Rng) -> Codes:
        from sqsgd._internal.kernels.sampling import draw_many_codes

        law, count = self.law, len(near)
        found, which = np.unique(law.sampler.draw_many(count, rng), return_inverse=True)
        right, wrong = np.array([law.pair(rank) for rank in found.tolist()], np.int64)[which].T.copy()
        codes, fine = np.empty((count, law.count), np.uint32), np.empty(count, np.bool_)
        words = rng.words(count * self._words).reshape(count, -1)
        draw_many_codes(near, codes, law.size, right, wrong, words, fine)
        for i in np.flatnonzero(~fine).tolist():  # the words did not suffice
            codes[i] = self._draw_pair(near[i], int(right[i]), int(wrong[i]), rng)
        return np.sort(codes, axis=1)
