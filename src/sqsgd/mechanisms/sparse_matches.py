"""Sparse match codes: a few signed coordinates, drawn so that many of them are among the largest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout, SignedSubset
from sqsgd.core import Codes, Estimate, Mechanism, Privacy, Vectors
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse_law import SparseLaw
from sqsgd.numerics.epsilon_sums import add_up
from sqsgd.numerics.exact import Densities
from sqsgd.numerics.gaussian import largest_sum
from sqsgd.numerics.norms import l2_norm, row_norms
from sqsgd.randomness import Rng, check_rng


@dataclass(frozen=True, kw_only=True)
class SparseMatches(Mechanism):
    """t signed coordinates of a rotated vector, at least τ of them among its s largest with odds e^ε.

    The near set u holds the s coordinates of x with the largest magnitudes, with their signs. A code v of t
    signed coordinates with l of them in u has density A if l >= τ, else B, with A / B = e^ε. Let S be the
    expected sum of the s largest magnitudes of a uniform unit vector, and μ = E[l - j], where j counts wrong
    signs: then E[v] = (μ S / s) x / |x| over the rotation. PrivQuant with two levels is the case t = s = N,
    index coding of vertices (``privunit-index``) the case t = 1.

    The norm is sent by ScalarDP, which takes its share of ε. Without ``norm``, a vector shorter than the
    bound takes the opposite direction with probability (1 - |x| / bound) / 2: unbiased, and costs no ε.

    Guarantees
    ----------
    * Exactly ε-LDP, as implemented, for all sizes: floats decide only which coordinates are near, before the
      private step. tests/schemes/test_privacy.py::test_exact_privacy,
      tests/mechanisms/test_sparse_law.py::test_the_table_encloses_the_law_in_whole_numbers,
      tests/mechanisms/test_sparse_matches.py::test_codes_with_equal_matches_are_equally_likely.
    * Unbiased over the rotation, within 3 % from 64 coordinates on:
      tests/schemes/test_estimates.py::test_mean_is_recovered.
    * A report draws the same number of words whatever the input:
      tests/mechanisms/test_sparse_matches.py::test_the_same_work_whatever_is_drawn.
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

    @property
    def has_symbol(self) -> bool:
        return self.norm is not None

    @property
    def fixed_length(self) -> bool:
        return self.norm is None

    @cached_property
    def layout(self) -> Layout:
        codes = SignedSubset(self.law.count, self.law.size)
        return (codes, Column(1, self.norm.levels + 1)) if self.norm else (codes,)

    @cached_property
    def privacy(self) -> Privacy:
        parts = [self.law.epsilon] + ([self.norm.epsilon] if self.norm else [])
        return Privacy(epsilon=add_up(*parts), notion="local")

    @property
    def blanket(self) -> tuple[Densities, ...]:
        return (self.law.weights, *([self.norm.weights] if self.norm else []))

    @cached_property
    def scale(self) -> float:
        """m: the length of the mean of v for a unit vector."""
        return self.law.mean_matches * largest_sum(self.law.size, self.law.near) / self.law.near

    def _near(self, x: Vector, bound: float) -> tuple[Codes, float]:
        """Codes 2 place + sign of the near set, in rising order, and |x| / bound, at most one."""
        from sqsgd.kernels.sampling import select_signed

        x = checks.shaped("x", x, self.dim)
        norm = checks.finite_size("x", l2_norm(x))
        near = np.empty(self.law.near, np.uint32)
        select_signed(x.view(np.uint32), near)
        return near, min(norm / bound, 1.0)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        check_rng(rng)
        near, share = self._near(x, bound)
        if self.norm is None:
            near ^= np.uint32(rng.uniform() >= (1 + share) / 2)  # the opposite direction
        codes = self._draw(near, rng)
        return (
            (codes,) if self.norm is None else (codes, np.array([self.norm.privatize(share, rng)], np.uint8))
        )

    def _draw(self, near: Codes, rng: Rng) -> Codes:
        """A code for a near set: (l, j) from its law, then uniformly among the codes with these numbers."""
        return self._draw_pair(near, *self.law.pair(self.law.sampler.draw(rng)), rng)

    def _draw_pair(self, near: Codes, right: int, wrong: int, rng: Rng) -> Codes:
        """A uniform code among those with ``right`` matches and ``wrong`` signs."""
        from sqsgd.kernels.sampling import draw_codes

        law = self.law
        while True:
            words = rng.words(self._words)
            codes, marks = np.empty(law.count, np.uint32), np.zeros(-(-law.size // 64), np.uint64)
            if draw_codes(near.copy(), codes, law.size, right, wrong, words, marks):
                return np.sort(codes)

    @property
    def _words(self) -> int:
        """Words that nearly always suffice for a code.

        The i-th coordinate outside the near set takes N / (N - s - i) words on average, all of them about
        N ln((N - s + 1/2) / (N - s - t + 1/2)).
        """
        law = self.law
        outside = law.size - law.near + 0.5
        needed = law.most_hits - law.size * math.log1p(-min(law.count, law.size - law.near) / outside)
        return math.ceil(1.25 * needed) + 32

    def randomize_many(self, x: Vectors, bound: float, rng: Rng) -> Columns:
        from sqsgd.kernels.sampling import draw_many_codes, select_signed_rows

        law, count = self.law, len(x)
        share = np.minimum(checks.finite_sizes("x", row_norms(x)) / bound, 1.0)
        near = np.empty((count, law.near), np.uint32)
        select_signed_rows(x.view(np.uint32), near)
        if self.norm is None:
            near ^= (rng.uniforms(count) >= (1 + share) / 2).astype(np.uint32)[:, None]
        found, which = np.unique(law.sampler.draw_many(count, rng), return_inverse=True)
        right, wrong = np.array([law.pair(rank) for rank in found.tolist()], np.int64)[which].T.copy()
        codes, fine = np.empty((count, law.count), np.uint32), np.empty(count, np.bool_)
        words = rng.words(count * self._words).reshape(count, -1)
        draw_many_codes(near, codes, law.size, right, wrong, words, fine)
        for i in np.flatnonzero(~fine).tolist():  # the words did not suffice
            codes[i] = self._draw_pair(near[i], int(right[i]), int(wrong[i]), rng)
        codes = np.sort(codes, axis=1)
        return (codes,) if self.norm is None else (codes, self.norm.privatize_many(share, rng)[:, None])

    def unit_codes(self, columns: Columns, bound: float) -> tuple[Codes, Estimate]:
        sizes = np.full(len(columns[0]), bound) if self.norm is None else self.magnitudes(columns, bound)
        units = np.asarray(sizes) / self.scale  # an estimate of the norm may be negative
        return columns[0] ^ (units < 0).astype(np.uint32)[:, None], np.abs(units)

    def magnitudes(self, columns: Columns, bound: float) -> list[float]:
        if self.norm is None:
            return []
        sizes = [bound * self.norm.estimate(symbol) for symbol in range(self.norm.levels + 1)]
        return [sizes[symbol] for symbol in columns[1][:, 0].tolist()]

    def _unit(self, columns: Columns, bound: float) -> float:
        """The estimate at a coordinate with a positive sign."""
        return (bound if self.norm is None else self.magnitude(columns, bound) or 0.0) / self.scale

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        whole, unit = np.zeros(self.dim), self._unit(columns, bound)
        whole[columns[0] >> 1] = np.array([unit, -unit])[columns[0] & 1]
        return whole

    def add_estimate(self, columns: Columns, bound: float, weight: float, total: Vector) -> None:
        unit = np.float32(weight * self._unit(columns, bound))
        total[columns[0] >> 1] += np.array([unit, -unit])[columns[0] & 1]

    def magnitude(self, columns: Columns, bound: float) -> float | None:
        return None if self.norm is None else bound * self.norm.estimate(int(columns[1][0]))

    def relative_error(self, share: float) -> float:
        """t / m² - 1 for a known norm; times 1 + Var(norm) / norm² with ``norm``, over share² without."""
        energy = self.law.count / self.scale**2
        if self.norm is None:
            return energy / share**2 - 1
        return (1 + self.norm.variance(share) / share**2) * energy - 1

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        near, share = self._near(x, bound)
        codes, (high, low) = columns[0].astype(np.uint32), self.law.log_densities
        along = high if np.isin(codes, near).sum() >= self.law.threshold else low
        if self.norm is not None:
            return along + self.norm.log_density(int(columns[1][0]), share)
        against = high if np.isin(codes, near ^ np.uint32(1)).sum() >= self.law.threshold else low
        with np.errstate(divide="ignore"):
            return float(np.logaddexp(along + np.log((1 + share) / 2), against + np.log((1 - share) / 2)))
