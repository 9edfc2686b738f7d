"""PrivQuant: codes that match a quantised vector in at least so many places, with their law."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
from flint import arb, fmpq

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import Densities
from sqsgd._internal.geometry import NORMAL_FROM, clamped_square, coordinate_points, kept_share
from sqsgd.core import Mechanism, Privacy, Traits
from sqsgd.core.codec import Column, Columns, Layout
from sqsgd.core.random import Rng, check_rng
from sqsgd.mechanisms.scalardp import Sized, log_densities

Real = Callable[[], arb]  # a real number, enclosed at the working precision


@dataclass(frozen=True, kw_only=True, eq=False)
class MatchLaw:
    """P(L = l) = (A if l >= threshold else B) C(dim, l) (levels - 1)^(dim - l), A / B = e^ε."""

    dim: int
    levels: int
    threshold: int
    log_odds: Real = field(repr=False)  # ln(p / (1-p)), p the probability of the high side
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
        """(ln A, ln B): their difference never exceeds ε."""
        return log_densities(self.weights, lambda: self.dim * arb(self.levels).log())

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
    """ln(N_lo / N_hi). It rises with the threshold."""
    high, low = exact.log_tails(dim, levels, threshold)
    return low - high


def boundary_law(dim: int, levels: int, epsilon: float, threshold: int | None = None) -> MatchLaw:
    """Return the law with ln(A / B) = ε exactly, with the best threshold unless one is given."""
    tau = threshold or best_threshold(dim, levels, epsilon)
    return MatchLaw(
        dim=dim,
        levels=levels,
        threshold=tau,
        log_odds=lambda: arb(epsilon) - log_size_ratio(dim, levels, tau),
        identity=f"privquant {dim} {levels} {tau} boundary {epsilon!r}",
    )


def paper_law(dim: int, levels: int, epsilon: float) -> MatchLaw:
    """Return the paper's 0.9/0.1 rule: p / (1-p) = e^(0.1 ε), the largest τ with N_lo / N_hi <= e^(0.9 ε)."""
    return _fixed_odds(dim, levels, epsilon, None, lambda: arb(epsilon) / 10, f"paper {epsilon!r}")


def kept_law(dim: int, levels: int, epsilon: float, threshold: int | None, keep: Fraction) -> MatchLaw:
    """Return the law with a given p, with the largest threshold that ε admits unless one is given."""
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

    return 1 + bisect_left(range(1, dim), True, key=enough)  # τ = dim is always enough


def largest_threshold(dim: int, levels: int, epsilon: float, log_odds: Real) -> int:
    """Return the largest τ with ln(p / (1-p)) + ln(N_lo / N_hi) <= ε."""

    def too_large(threshold: int) -> bool:
        def question() -> bool | None:
            loss = log_odds() + log_size_ratio(dim, levels, threshold)
            return False if loss <= epsilon else True if loss > epsilon else None

        return exact.settle(question)

    admissible = bisect_left(range(1, dim + 1), True, key=too_large)
    if not admissible:
        raise ValueError(
            f"epsilon = {epsilon}: no threshold from 1 to {dim} is private enough for this keep "
            f"probability and levels = {levels}; use the optimal rule or a larger epsilon"
        )
    return admissible


def realised_epsilon(law: MatchLaw, limit: float) -> float:
    """ε of a law with given parameters, rounded up. It must lie in (0, limit]."""

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


Codes = npt.NDArray[np.uint8]
MOST_DIM, MOST_LEVELS = 1 << 24, 256
CHUNK = 1 << 17  # coordinates whose random words are drawn at once, so that they stay in the L2 cache
RUN, SPARE_BYTES = 256, 32  # rounding keeps spare words for each run of coordinates


@final
class PrivQuant(Mechanism):
    """Stochastic quantisation of vectors in [-bound, bound]^dim to K levels with exact ε-LDP.

    Args:
        dim: The number of coordinates.
        levels: The number K of levels.
        epsilon: The privacy budget. It is optional if both ``threshold`` and ``keep`` are given.
        threshold: The threshold τ. By default it is optimal, or with ``keep`` the largest that ε admits.
        keep: The probability p. By default it is on the privacy boundary for τ.
        rule: With ``"paper"``, p / (1 - p) = e^{0.1 ε} and τ is the largest with N_lo / N_hi <= e^{0.9 ε}.

    Raises:
        ValueError: If an argument is out of range, or if the arguments cannot be combined.

    Guarantees
    ----------
    * ``privatize`` is ``epsilon``-LDP, pure, as implemented: tests/mechanisms/test_privquant.py.
    * ``epsilon`` is never above the requested one, and equals it by default:
      tests/mechanisms/test_privquant.py::test_overrides.
    * ``estimate(privatize(quantize(x)))`` has mean x for x in [-bound, bound]^dim, up to float32
      rounding of x / bound; values outside are clamped first.
      tests/mechanisms/test_privquant.py::test_mean_and_variance_are_the_closed_forms.

    >>> q = PrivQuant(dim=512, levels=16, epsilon=400.0)
    >>> q.threshold, round(q.scale, 4), q.epsilon
    (263, 0.4804, 400.0)
    """

    def __init__(
        self,
        dim: int,
        levels: int,
        epsilon: float | None = None,
        *,
        threshold: int | None = None,
        keep: float | Fraction | None = None,
        rule: Literal["optimal", "paper"] = "optimal",
    ) -> None:
        dim = checks.integer("dim", dim, 1, MOST_DIM)
        levels = checks.integer("levels", levels, 2, MOST_LEVELS)
        if rule not in ("optimal", "paper"):
            raise ValueError(f"rule = {rule!r} must be 'optimal' or 'paper'")
        if rule == "paper" and (threshold is not None or keep is not None):
            raise ValueError("rule = 'paper' chooses threshold and keep; omit them")
        if epsilon is None and (threshold is None or keep is None):
            raise ValueError("epsilon = None: set epsilon, or both threshold and keep")
        limit = math.inf if epsilon is None else checks.real("epsilon", epsilon, 1e-6, 1e6)
        if threshold is not None:
            threshold = checks.integer("threshold", threshold, 1, dim)
        if keep is not None:
            self.law = kept_law(dim, levels, limit, threshold, exact_fraction(keep))
        elif rule == "paper":
            self.law = paper_law(dim, levels, limit)
        else:
            self.law = boundary_law(dim, levels, limit, threshold)
        self.dim, self.levels, self.threshold = dim, levels, self.law.threshold
        self._bits = levels.bit_length() - 1 if levels.bit_count() == 1 else 0
        self._width = 4 if not self._bits else 1 if self._bits == 1 else 2  # bytes of a coordinate's noise
        self._offset = (levels - 1) / 2
        self._parts = [slice(start, min(start + CHUNK, dim)) for start in range(0, dim, CHUNK)]
        on_boundary = keep is None and rule == "optimal"
        self.epsilon = limit if on_boundary else realised_epsilon(self.law, limit)
        if threshold is not None and not (self.law.scale > 0 and self.law.keep > 0):
            raise ValueError(f"threshold = {threshold} leaves almost no signal: the scale is below 1e-308")
        self._remade = partial(PrivQuant, dim, levels, epsilon, threshold=threshold, keep=keep, rule=rule)

    def __reduce__(self) -> tuple[partial[PrivQuant], tuple[()]]:
        return self._remade, ()  # the law holds functions, which cannot be pickled

    def __repr__(self) -> str:
        return (
            f"PrivQuant(dim={self.dim}, levels={self.levels}, epsilon={self.epsilon!r}, "
            f"threshold={self.threshold}, scale={self.scale:.6g})"
        )

    @property
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""
        return self.law.identity

    @property
    def keep(self) -> float:
        """p: the probability of at least ``threshold`` matches. Rounded down, so it is never 1.0."""
        return self.law.keep

    @property
    def scale(self) -> float:
        """m: the mean of a privatised value is m times the value."""
        return self.law.scale

    @property
    def layout(self) -> Layout:
        """One column: a code for each coordinate."""
        return (Column(self.dim, self.levels),)

    @property
    def privacy(self) -> Privacy:
        """``epsilon``, local and pure."""
        return Privacy(epsilon=self.epsilon, notion="local")

    @property
    def traits(self) -> Traits:
        """The bound limits coordinates; the certificate knows both densities."""
        return Traits(bounds_coordinates=True, blanket=(self.law.weights,))

    def quantize(self, x: Any, bound: float, rng: Rng) -> Codes:
        """Round each x[j] in [-bound, bound] without bias to a neighbouring level (codes 0..K-1)."""
        from sqsgd._internal.kernels.sampling import round_randomly

        x = checks.vector("x", x, self.dim)
        factor = self._offset / checks.real("bound", bound, 1e-30, 1e30)
        check_rng(rng)
        codes = np.empty(self.dim, np.uint8)
        for part in self._parts:
            noise, spare = self._rounding_noise(part.stop - part.start, rng)
            round_randomly(x[part], factor, self._offset, noise, spare, codes[part])
        return codes

    def privatize(self, codes: Any, rng: Rng) -> Codes:
        """Privatise a vector of codes, where the number of matches is sampled from its exact distribution.

        Args:
            codes: A vector of ``dim`` codes in 0..levels-1.
            rng: The private generator.

        Returns:
            A vector of codes which agrees with the input in exactly this number of positions.

        Raises:
            ValueError: If the codes are out of range or their number is not ``dim``.
        """
        from sqsgd._internal.kernels.sampling import scramble, scramble_bytes, scramble_pairs

        codes = checks.codes("codes", codes, self.dim, self.levels)
        wanted = self.law.sampler.draw(check_rng(rng))
        keep, out, count = self._keep(wanted), np.empty(self.dim, np.uint8), 0
        kernel = {1: scramble_bytes, 2: scramble_pairs, 4: scramble}[self._width]
        for part in self._parts:
            noise = rng.take(self._width * (part.stop - part.start)).view(f"<u{self._width}")
            count += kernel(codes[part], self._bits or self.levels, keep, noise, out[part])
        return self._adjusted(codes, out, count, wanted, rng)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        """privatize(quantize(x, bound, rng), rng) for a float32 vector, in one pass if K = 2^b."""
        from sqsgd._internal.kernels.sampling import round_and_scramble_bytes, round_and_scramble_pairs

        if not self._bits:
            return (self.privatize(self.quantize(x, bound, rng), rng),)
        x, bound = checks.shaped("x", x, self.dim), checks.real("bound", bound, 1e-30, 1e30)
        wanted = self.law.sampler.draw(check_rng(rng))
        kernel = round_and_scramble_bytes if self._width == 1 else round_and_scramble_pairs
        numbers = self._offset / bound, self._offset, self._keep(wanted), self._bits
        codes, out = np.empty(self.dim, np.uint8), np.empty(self.dim, np.uint8)
        goal = wanted if len(self._parts) == 1 else -1  # several pieces are adjusted together, at the end
        counts = []
        for part in self._parts:
            words = rng.take(self._one_pass_bytes)
            counts.append(kernel(x[part], *numbers, words, codes[part], out[part], goal))
        if min(counts) < 0:
            raise ValueError("x contains NaN or infinity")
        if counts == [goal]:  # the kernel has made all the usual tries
            return (out,)
        return (self._adjusted(codes, out, sum(counts), wanted, rng),)

    @cached_property
    def _one_pass_bytes(self) -> int:
        """Noise for a piece: scrambling, rounding, spare bits, and usually enough tries to adjust."""
        size = min(self.dim, CHUNK)
        scrambling = size + (-size & 7) if self._width == 1 else 2 * size
        noise = scrambling + 2 * size
        return noise + (-noise & 7) + SPARE_BYTES * -(-size // RUN) + 8 * _usual_tries(size)

    def _rounding_noise(self, size: int, rng: Rng) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32]]:
        spares = SPARE_BYTES * -(-size // RUN)
        words = rng.take(spares + 2 * size)
        return words[spares:].view("<u2"), words[:spares].view("<u4")

    def _keep(self, wanted: int) -> int:
        """The noise below which a code is kept, for about the wanted matches; -1 (all) if few change."""
        share = max(0.0, (wanted * self.levels / self.dim - 1) / (self.levels - 1))
        steps = 1 << (16 if not self._bits else 8 * self._width - self._bits)
        keep = min(round(share * steps), steps - 1) << self._bits
        return -1 if 16 * (self.dim - wanted) < self.dim else keep

    def _adjusted(self, codes: Codes, out: Codes, count: int, wanted: int, rng: Rng) -> Codes:
        """Move ``out`` to exactly the wanted matches; idle tries hide in the time how many were needed."""
        from sqsgd._internal.kernels.sampling import adjust

        tried = 0
        while count != wanted:
            gap = abs(wanted - count)
            candidates = wanted if count > wanted else self.dim - wanted
            tries = gap * self.dim // max(candidates, 1) + gap // 4 + 32
            words = rng.words(min(tries, CHUNK))
            count = adjust(codes, out, count, wanted, self.levels, words)
            tried += words.size
        adjust(codes, out, count, wanted, self.levels, self._idle_words[tried:])
        return out

    @cached_property
    def _idle_words(self) -> npt.NDArray[np.uint64]:
        steps = np.arange(_usual_tries(self.dim), dtype=np.uint64)
        return steps * np.uint64(0x9E3779B97F4A7C15)  # spread over all coordinates

    def estimate(self, out: Any, bound: float) -> npt.NDArray[np.float64]:
        """Compute the unbiased estimate of x, which is given by the values of the levels divided by m.

        Args:
            out: The output of ``privatize`` or ``randomize``.
            bound: The public range.

        Returns:
            ``dim`` numbers.

        Raises:
            ValueError: If the codes or the bound are out of range.
        """
        codes = self._codes(out)
        bound = checks.real("bound", bound, 1e-30, 1e30)
        return (2.0 * codes / (self.levels - 1) - 1.0) * (bound / self.scale)

    def add_levels(self, codes: Codes, unit: float, total: Vector) -> None:
        """total += unit * (level values in [-1, 1]), in one pass."""
        from sqsgd._internal.kernels.rotation import accumulate

        accumulate(codes, 2 * unit / (self.levels - 1), -unit, total)

    def variance(self, x: Any, bound: float) -> npt.NDArray[np.float64]:
        """Compute the exact variance of the estimate for each coordinate.

        It is (y² + (y - B_k)(B_{k+1} - y)) / m + (1-m) s / m² - y².

        Args:
            x: The vector, which is clamped to [-bound, bound].
            bound: The public range.

        Returns:
            The variance of the estimate for each of the ``dim`` coordinates.

        Raises:
            ValueError: If the vector or the bound are invalid.
        """
        bound = checks.real("bound", bound, 1e-30, 1e30)
        y = np.clip(checks.vector("x", x, self.dim).astype(np.float64), -bound, bound)
        m, top = self.scale, self.levels - 1
        below = np.minimum(np.floor((y + bound) * top / (2 * bound)), top - 1)
        low, step = -bound + 2 * bound * below / top, 2 * bound / top
        rounding = np.maximum((y - low) * (low + step - y), 0.0)
        uniform = bound**2 * (self.levels + 1) / (3 * top)
        return (y**2 * self.law.loss + rounding) / m + self.law.loss * uniform / m**2

    def coordinate_energy(self, reach: float, dim: int = NORMAL_FROM) -> float:
        """E[estimate²] of a coordinate of a uniform vector, mean square one, quantised and privatised."""
        step = 2 * reach / (self.levels - 1)
        part = ((np.clip(coordinate_points(dim), -reach, reach) + reach) / step) % 1.0
        rounded = clamped_square(reach, dim) + step**2 * float(np.mean(part * (1 - part)))
        rounded = reach**2 if self.levels == 2 else rounded  # both levels are at the ends of the range
        uniform = reach**2 * (self.levels + 1) / (3 * (self.levels - 1))
        return rounded / self.scale + self.law.loss * uniform / self.scale**2

    def relative_error(self, share: float) -> float:
        """For Gaussian coordinates whose bound is three deviations of a vector at this share of it."""
        reach = 3.0 / share
        return self.coordinate_energy(reach) - 2 * kept_share(reach) + 1

    def _codes(self, out: Any) -> Codes:
        return checks.codes("out", out[0] if isinstance(out, tuple) else out, self.dim, self.levels)

    def log_density(self, out: Any, x: Any, bound: float | None = None) -> float:
        """Compute the log probability of an output.

        Args:
            out: The codes of a report.
            x: The codes passed to ``privatize``, or the vector passed to ``randomize`` if ``bound`` is given.
            bound: The public range of ``randomize``. In this case, the probability is A H + B (1 - H), where
                H is the probability of at least τ matches over the rounding.

        Returns:
            The natural logarithm of the probability.

        Raises:
            ValueError: If an argument is out of range.
        """
        out = self._codes(out)
        if bound is None:
            codes = checks.codes("codes", x, self.dim, self.levels)
            return self.law.log_densities[0 if np.count_nonzero(out == codes) >= self.threshold else 1]
        bound = checks.real("bound", bound, 1e-30, 1e30)
        y = np.clip(checks.vector("x", x, self.dim).astype(np.float64), -bound, bound)
        position = (y + bound) * (self.levels - 1) / (2 * bound)
        chance = np.maximum(0.0, 1.0 - np.abs(position - out))
        above = self.threshold - np.count_nonzero(chance == 1.0)
        uncertain = chance[(chance > 0.0) & (chance < 1.0)]
        if above <= 0 or above > uncertain.size:
            return self.law.log_densities[0 if above <= 0 else 1]
        log_law = np.full(uncertain.size + 1, -np.inf)  # ln P(this many of the uncertain ones match)
        log_law[0] = 0.0
        for match in uncertain:
            log_law[1:] = np.logaddexp(log_law[1:] + math.log1p(-match), log_law[:-1] + math.log(match))
            log_law[0] += math.log1p(-match)
        high, low = np.logaddexp.reduce(log_law[above:]), np.logaddexp.reduce(log_law[:above])
        return float(np.logaddexp(self.law.log_densities[0] + high, self.law.log_densities[1] + low))


def _usual_tries(size: int) -> int:
    return 64 + 4 * math.isqrt(size)


class Quantized(Sized):
    """PrivQuant over a range. The audit tests the codes of such mechanisms against their exact law."""

    quantizer: PrivQuant

    @property
    def own_reach(self) -> float | None:
        """The range in root mean squares of the vector itself, or None where the range is public."""
        return None

    @abstractmethod
    def prepared(self, x: Vector, bound: float) -> tuple[Vector, float, float | None]:
        """The vector to quantise, the quantiser's half-range, and the size over the bound for the symbol."""

    @property
    def dim(self) -> int:  # type: ignore[override]
        return self.quantizer.dim

    @property
    def code(self) -> tuple[Column, float, Densities]:
        quantizer = self.quantizer
        return Column(self.dim, quantizer.levels), quantizer.epsilon, quantizer.law.weights

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        x, half_range, size = self.prepared(x, bound)
        return self.with_symbol(self.quantizer.randomize(x, half_range, rng)[0], size, rng)

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        x, half_range, size = self.prepared(x, bound)
        density = self.quantizer.log_density(columns[0], x, half_range)
        return density + self.symbol_density(columns, size)
