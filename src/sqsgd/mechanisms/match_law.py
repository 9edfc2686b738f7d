"""The exact law of the number of matches in PrivQuant: its parameters, privacy and sampler.

X is the number of chance matches between two vectors of ``dim`` codes out of ``levels``, binomial
with success 1/levels; N_hi = levels^dim P(X >= τ) vectors match a given one in at least τ places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from flint import arb, fmpq

from sqsgd import checks
from sqsgd.numerics import exact

Real = Callable[[], arb]  # a real number, enclosed at the working precision


@dataclass(frozen=True, kw_only=True, eq=False)
class MatchLaw:
    """P(L = l) = (A if l >= threshold else B) C(dim, l) (levels - 1)^(dim - l), A / B = e^ε.

    ``log_odds`` is ln(p / (1-p)), p the probability of the high side.
    """

    dim: int
    levels: int
    threshold: int
    log_odds: Real = field(repr=False)
    identity: str

    def log_loss(self) -> arb:
        """ln(A / B)."""
        return self.log_odds() + log_size_ratio(self.dim, self.levels, self.threshold)

    def weights(self) -> tuple[arb, arb]:
        """(A, B) times levels^dim: the densities relative to the uniform one."""
        high, low = exact.log_tails(self.dim, self.levels, self.threshold)
        odds = self.log_odds()
        return 1 / ((-odds).exp() + 1) / high.exp(), 1 / (odds.exp() + 1) / low.exp()

    @cached_property
    def keep(self) -> float:
        """p, rounded down, so that it is never 1.0."""
        return exact.rounded(lambda: 1 / ((-self.log_odds()).exp() + 1), -math.inf)

    @cached_property
    def drop(self) -> float:
        """1 - p, to full precision."""
        return exact.nearest(lambda: 1 / (self.log_odds().exp() + 1))

    @cached_property
    def log_drop(self) -> float:
        """ln(1 - p)."""
        return exact.nearest(lambda: -self.log_odds().exp().log1p())

    @cached_property
    def scale(self) -> float:
        """m = (A - B) C(n-1, τ-1) (K-1)^(n-τ)."""

        def value() -> arb:
            above, below = self.weights()
            edge = exact.log_match_probability(self.dim, self.levels, self.threshold).exp()
            return edge * self.threshold / self.dim * (above - below)

        return exact.nearest(value)

    @cached_property
    def loss(self) -> float:
        """1 - m, to full precision: A P(X' >= τ) + B P(X' < τ) for one coordinate fewer."""

        def value() -> arb:
            above, below = self.weights()
            high, low = exact.log_tails(self.dim - 1, self.levels, self.threshold)
            return above * high.exp() + below * low.exp()

        return exact.nearest(value)

    @cached_property
    def log_densities(self) -> tuple[float, float]:
        """(ln A, ln B), rounded towards each other: their difference never exceeds ε."""

        def uniform() -> arb:
            return self.dim * arb(self.levels).log()

        return (
            exact.rounded(lambda: self.weights()[0].log() - uniform(), -math.inf),
            exact.rounded(lambda: self.weights()[1].log() - uniform(), math.inf),
        )

    def cdf(self, count: int) -> arb:
        """P(L <= count)."""
        above, below = self.weights()
        high, low = exact.log_tails(self.dim, self.levels, count + 1)
        return below * low.exp() if count < self.threshold else 1 - above * high.exp()

    @cached_property
    def sampler(self) -> exact.InverseCdf:
        """Draws L exactly, over its full support."""
        negligible = arb(2) ** -80

        def edges() -> Iterator[tuple[int, arb]]:
            above, below = self.weights()
            dropped = 1 / (self.log_odds().exp() + 1)
            low_side = (self.dim, self.levels, 0, self.threshold - 1, below, arb(0))
            high_side = (self.dim, self.levels, self.threshold, self.dim, above, dropped)
            if not dropped < negligible:
                yield from exact.running_sum(*low_side, negligible)
            if not 1 - dropped < negligible:
                yield from exact.running_sum(*high_side, negligible)

        with exact.precision(192):
            return exact.InverseCdf(self.dim, self.cdf, edges())


def log_size_ratio(dim: int, levels: int, threshold: int) -> arb:
    """ln(N_lo / N_hi); it rises with the threshold."""
    high, low = exact.log_tails(dim, levels, threshold)
    return low - high


def boundary_law(dim: int, levels: int, epsilon: float, threshold: int | None = None) -> MatchLaw:
    """The law with ln(A / B) = ε exactly; with the best threshold unless one is given."""
    tau = threshold or best_threshold(dim, levels, epsilon)
    return MatchLaw(
        dim=dim,
        levels=levels,
        threshold=tau,
        log_odds=lambda: arb(epsilon) - log_size_ratio(dim, levels, tau),
        identity=f"privquant {dim} {levels} {tau} boundary {epsilon!r}",
    )


def paper_law(dim: int, levels: int, epsilon: float) -> MatchLaw:
    """The paper's 0.9/0.1 rule: p / (1-p) = e^(0.1 ε), the largest τ with N_lo / N_hi <= e^(0.9 ε)."""
    return _fixed_odds(dim, levels, epsilon, None, lambda: arb(epsilon) / 10, f"paper {epsilon!r}")


def kept_law(dim: int, levels: int, epsilon: float, threshold: int | None, keep: Fraction) -> MatchLaw:
    """The law with a given p; with the largest threshold that ε admits unless one is given."""
    odds = fmpq(keep.numerator, keep.denominator - keep.numerator)
    return _fixed_odds(dim, levels, epsilon, threshold, lambda: arb(odds).log(), f"keep {keep}")


def _fixed_odds(
    dim: int, levels: int, epsilon: float, threshold: int | None, log_odds: Real, chosen: str
) -> MatchLaw:
    tau = threshold or largest_threshold(dim, levels, epsilon, log_odds)
    identity = f"privquant {dim} {levels} {tau} {chosen}"
    return MatchLaw(dim=dim, levels=levels, threshold=tau, log_odds=log_odds, identity=identity)


def best_threshold(dim: int, levels: int, epsilon: float) -> int:
    """τ*: the least τ that is at least the expected number of matches, which is proven to maximise m."""

    def enough(threshold: int) -> bool:
        def question() -> bool | None:
            gain = arb(epsilon).expm1()
            tail = exact.log_tails(dim, levels, threshold)[0].exp()
            edge = exact.log_match_probability(dim, levels, threshold).exp() * threshold / dim
            scale = edge * gain / (1 + gain * tail)
            expected = dim * (1 + (levels - 1) * scale) / levels
            return True if expected <= threshold else False if expected > threshold else None

        return exact.settle(question)

    low, high = 1, dim  # τ = dim is always enough
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def largest_threshold(dim: int, levels: int, epsilon: float, log_odds: Real) -> int:
    """The largest τ with ln(p / (1-p)) + ln(N_lo / N_hi) <= ε."""

    def admissible(threshold: int) -> bool:
        def question() -> bool | None:
            loss = log_odds() + log_size_ratio(dim, levels, threshold)
            return True if loss <= epsilon else False if loss > epsilon else None

        return exact.settle(question)

    if not admissible(1):
        raise ValueError(
            f"epsilon = {epsilon}: no threshold from 1 to {dim} is private enough for this keep "
            f"probability and levels = {levels}; use the optimal rule or a larger epsilon"
        )
    low, high = 1, dim
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if admissible(middle) else (low, middle - 1)
    return low


def realised_epsilon(law: MatchLaw, limit: float) -> float:
    """ε of a law with given parameters, rounded up; it must lie in (0, limit]."""

    def better_than_chance() -> bool | None:
        ball = law.log_loss()
        return True if ball > 1e-9 else False if ball < 2e-9 else None

    if not exact.settle(better_than_chance):
        raise ValueError(
            f"threshold = {law.threshold} and keep = {law.keep:.6g} match no better than chance; "
            "raise one of them or use the optimal rule"
        )
    loss = exact.rounded(law.log_loss, math.inf)
    if loss > limit:
        raise ValueError(
            f"threshold = {law.threshold} and keep = {law.keep:.6g} spend epsilon = {loss:.6g}, "
            f"above epsilon = {limit:.6g}"
        )
    return loss


def exact_fraction(keep: object) -> Fraction:
    """The keep probability as an exact fraction."""
    share = keep if isinstance(keep, Fraction) else Fraction(checks.real("keep", keep, 0, 1, open_ends=True))
    if not 0 < share < 1:
        raise ValueError(f"keep = {keep!r} must be a number strictly between 0 and 1")
    return share
