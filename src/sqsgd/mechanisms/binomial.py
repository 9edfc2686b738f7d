"""Fair binomial noise: exact draws in bulk, and its privacy for a vector of whole numbers."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flint import arb

from sqsgd._internal import exact

MOST_TRIALS = 1 << 62  # no code holds a larger sum


@lru_cache(maxsize=4)
def fair_binomial(trials: int) -> exact.InverseCdf:
    """Return the law of the number of heads in ``trials`` tosses of a fair coin; 10^9 of them take up to a
    second.

    tests/mechanisms/test_sampler_tables.py::test_fair_binomials.
    """

    def cdf(heads: int) -> arb:
        return exact.log_tails(trials, 2, heads + 1)[1].exp()

    with exact.precision(192):
        edges = exact.running_sum(trials, 2, 0, trials, arb(1), arb(0), arb(2) ** -80)
        return exact.InverseCdf(trials, cdf, edges)


@dataclass(frozen=True, kw_only=True)
class BinomialPrivacy:
    """(ε, δ) of n whole numbers plus Bin(N, 1/2) each, between inputs that differ by s_1, ..., s_n.

    ``l1``, ``l2`` and ``most`` bound the differences: Σ|s_j|, √Σs_j² and max |s_j|. With c = 2/h,
    h = (N+1)/2, u = (√(N ln(10 n/δ) / 2) + most) / h < 1 and κ = artanh(u)/u (docs/proofs/binomial.md),

        ε = c (κ l2²/2 + (κ-1) l1 √N/4) + c κ l2 (√N/2) √(2 ln(10/(9 δ))).

    It falls as N rises. Theorem 1 of cpSGD (Agarwal et al. 2018) lacks a term and is false where that
    matters: tests/mechanisms/test_binomial.py::test_the_printed_theorem_is_false.

    Guarantees
    ----------
    * An upper bound on ε, rounded up:
      tests/mechanisms/test_binomial.py::test_the_true_loss_is_within_the_bound.
    """

    dim: int
    delta: float
    l1: float
    l2: float
    most: float

    def _bound(self, trials: int, number: Any, sqrt: Any, log: Any, atanh: Any) -> Any:
        """ε, in floats (fast) or in balls (enclosed), depending on the functions passed."""
        tosses, delta = number(trials), number(self.delta)
        half = (tosses + 1) / 2
        edge = (sqrt(tosses * log(10 * self.dim / delta) / 2) + self.most) / half
        if not edge < 1:
            return number(math.inf)
        stretch, slope = atanh(edge) / edge, 2 / half
        mean = slope * (stretch * number(self.l2) ** 2 / 2 + (stretch - 1) * self.l1 * sqrt(tosses) / 4)
        deviation = slope * stretch * self.l2 * sqrt(tosses) / 2
        return mean + deviation * sqrt(2 * log(10 / (9 * delta)))

    def epsilon(self, trials: int) -> float:
        """ε, rounded up, or infinity where the noise is too small for the bound."""
        return exact.rounded(lambda: self._bound(trials, arb, arb.sqrt, arb.log, arb.atanh), math.inf)

    def about(self, epsilon: float) -> int:
        """Return the least number of trials for ε, computed in floats."""

        def enough(trials: int) -> bool:
            return bool(self._bound(trials, float, math.sqrt, math.log, math.atanh) <= epsilon)

        return bisect_left(range(MOST_TRIALS), True, key=enough)

    def least(self, epsilon: float, multiple: int = 1) -> int:
        """Return the least multiple of ``multiple`` that is enough trials for ε, computed exactly."""
        count = max(1, -(-self.about(epsilon) // multiple))
        while self.epsilon(count * multiple) > epsilon:
            count += 1
        while count > 1 and self.epsilon((count - 1) * multiple) <= epsilon:
            count -= 1
        return count * multiple
