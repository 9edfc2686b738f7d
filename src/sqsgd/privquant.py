"""PrivQuant_{K,∞} (paper, Algorithm 1): a vector of codes, privatised by its number of matches.

With n coordinates, K levels, threshold τ and keep probability p, the output v has density
A = p / N_hi if it matches the input codes in at least τ places, else B = (1 - p) / N_lo, where N_hi
and N_lo count the vectors on either side. ε = ln(A / B), and E[v] = m · input with the scale m.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from sqsgd import checks, exact
from sqsgd.checks import Vector
from sqsgd.match_law import MatchLaw, boundary_law, kept_law, paper_law
from sqsgd.randomness import Rng, check_rng

Codes = npt.NDArray[np.uint8]
MOST_DIM, MOST_LEVELS = 1 << 24, 256
CHUNK = 1 << 15  # coordinates whose random words are drawn at once: they stay in cache
RUN, SPARE_BYTES = 256, 32  # rounding keeps spare words for each run of coordinates


@final
class PrivQuant:
    """Stochastic K-level quantisation and its exact ε-LDP privatisation.

    Without ``threshold`` and ``keep``, both are chosen: τ is the least threshold that is at least the
    expected number of matches (the proven optimum), and p lies on the privacy boundary. ``threshold``
    alone puts p on the boundary for it; ``keep`` alone takes the largest threshold that ε admits;
    both together fix the mechanism, and ``epsilon`` is then a limit, or may be left out.
    ``rule="paper"`` is the paper's 0.9/0.1 rule: p / (1 - p) = e^{0.1 ε} and the largest τ with
    N_lo / N_hi <= e^{0.9 ε}, with τ free over 1..dim.

    Guarantees
    ----------
    * ``privatize`` is ``epsilon``-LDP, pure, between any two code vectors, as implemented: the match
      count is drawn exactly over its full support, the keepers are a uniform subset, the other codes
      uniform. tests/test_privquant_exact.py, tests/test_privquant_sampling.py.
    * ``epsilon`` is never above the request; where nothing was overridden it equals it.
    * ``estimate(privatize(quantize(x)))`` has mean x for x in [-bound, bound]^dim, up to float32
      rounding of x / bound; values outside are clamped first.

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
            raise ValueError("rule = 'paper' chooses threshold and keep itself; leave them out")
        if epsilon is None and (threshold is None or keep is None):
            raise ValueError("epsilon = None: give epsilon, or both threshold and keep")
        limit = math.inf if epsilon is None else checks.real("epsilon", epsilon, 1e-6, 1e6)
        if threshold is not None:
            threshold = checks.integer("threshold", threshold, 1, dim)
        if keep is not None:
            self.law = kept_law(dim, levels, limit, threshold, _fraction(keep))
        elif rule == "paper":
            self.law = paper_law(dim, levels, limit)
        else:
            self.law = boundary_law(dim, levels, limit, threshold)
        self.dim, self.levels, self.threshold = dim, levels, self.law.threshold
        on_boundary = keep is None and rule == "optimal"
        self.epsilon = limit if on_boundary else _realised(self.law, limit)

    def __repr__(self) -> str:
        return (
            f"PrivQuant(dim={self.dim}, levels={self.levels}, epsilon={self.epsilon!r}, "
            f"threshold={self.threshold}, scale={self.scale:.6g})"
        )

    @property
    def identity(self) -> str:
        """What client and server must share, in words."""
        return self.law.identity

    @property
    def keep(self) -> float:
        """p: the probability of at least ``threshold`` matches. Rounded down, so it is never 1.0."""
        return self.law.keep

    @property
    def drop(self) -> float:
        """1 - p to full precision: ``keep`` cannot show how far below one it lies (``log_drop`` can)."""
        return self.law.drop

    @property
    def log_drop(self) -> float:
        """ln(1 - p), where 1 - p itself may be too small for a float."""
        return self.law.log_drop

    @property
    def scale(self) -> float:
        """m: the mean of a privatised value over the value itself."""
        return self.law.scale

    # ------------------------------------------------------------ the client's side

    def quantize(self, x: Any, bound: float, rng: Rng) -> Codes:
        """Round each x[j] in [-bound, bound] to one of its two nearest levels, unbiased (codes 0..K-1)."""
        x = checks.vector("x", x, self.dim)
        return self.round(x, checks.real("bound", bound, 1e-30, 1e30), check_rng(rng))

    def privatize(self, codes: Any, rng: Rng) -> Codes:
        """The private step: codes that match the input in exactly L places, L drawn from its exact law."""
        return self.scramble(checks.codes("codes", codes, self.dim, self.levels), check_rng(rng))

    def round(self, x: Vector, bound: float, rng: Rng) -> Codes:
        """``quantize`` for a float32 vector of the right length; still refuses NaN and infinity."""
        from sqsgd.kernels.privatising import round_randomly

        top = self.levels - 1
        factor, offset = np.float32(top / (2 * bound)), np.float32(top / 2)
        codes = np.empty(self.dim, np.uint8)
        finite = True
        for start in range(0, self.dim, CHUNK):
            size = min(CHUNK, self.dim - start)
            part = slice(start, start + size)
            words = rng.take(2 * size + SPARE_BYTES * -(-size // RUN))
            noise, spare = words[: 2 * size].view("<u2"), words[2 * size :]
            finite &= round_randomly(x[part], factor, offset, noise, spare, codes[part])
        if not finite:
            raise ValueError("x holds NaN or infinity")
        return codes

    def scramble(self, codes: Codes, rng: Rng) -> Codes:
        """``privatize`` for uint8 codes that are known to be in range."""
        from sqsgd.kernels.privatising import adjust

        wanted = self.law.sampler.draw(rng)
        out, count = self._about(codes, wanted, rng)
        while count != wanted:
            gap = abs(wanted - count)
            candidates = wanted if count > wanted else self.dim - wanted
            tries = gap * self.dim // max(candidates, 1) + gap // 4 + 32
            words = rng.take(8 * min(tries, CHUNK)).view("<u8")
            count = adjust(codes, out, count, wanted, self.levels, words)
        return out

    def _about(self, codes: Codes, wanted: int, rng: Rng) -> tuple[Codes, int]:
        """Codes with about the wanted number of matches at exchangeable places, and how many there are."""
        n, levels = self.dim, self.levels
        if 16 * (n - wanted) < n:
            return codes.copy(), n
        share = max(0.0, (wanted * levels / n - 1) / (levels - 1))
        bits = levels.bit_length() - 1 if levels & (levels - 1) == 0 else 0
        out = np.empty(n, np.uint8)
        return out, (self._about_bits if bits else self._about_any)(codes, share, bits, rng, out)

    def _about_bits(self, codes: Codes, share: float, bits: int, rng: Rng, out: Codes) -> int:
        from sqsgd.kernels.privatising import scramble_bits

        width = 1 if bits == 1 else 2  # bytes of noise for a coordinate
        steps = 1 << (8 * width - bits)
        keep = (np.uint8 if width == 1 else np.uint16)(min(round(share * steps), steps - 1) << bits)
        count = 0
        for start in range(0, self.dim, CHUNK):
            part = slice(start, min(start + CHUNK, self.dim))
            noise = rng.take(width * (part.stop - start)).view(keep.dtype)
            count += scramble_bits(codes[part], bits, keep, noise, out[part])
        return count

    def _about_any(self, codes: Codes, share: float, bits: int, rng: Rng, out: Codes) -> int:
        from sqsgd.kernels.privatising import scramble

        keep = min(round(share * 65536), 65535)
        count = 0
        for start in range(0, self.dim, CHUNK):
            part = slice(start, min(start + CHUNK, self.dim))
            noise = rng.take(4 * (part.stop - start)).view("<u4")
            count += scramble(codes[part], self.levels, keep, noise, out[part])
        return count

    # ------------------------------------------------------------ the server's side

    def estimate(self, out: Any, bound: float) -> npt.NDArray[np.float64]:
        """The unbiased estimate of x: the level values over m."""
        codes = checks.codes("out", out, self.dim, self.levels)
        bound = checks.positive("bound", bound)
        return (2.0 * codes / (self.levels - 1) - 1.0) * (bound / self.scale)

    def add_levels(self, codes: Codes, unit: float, total: npt.NDArray[np.float64]) -> None:
        """total += unit * (level values in [-1, 1]), in one pass."""
        from sqsgd.kernels.privatising import accumulate

        accumulate(codes, np.float32(2 * unit / (self.levels - 1)), np.float32(-unit), total)

    def variance(self, x: Any, bound: float) -> npt.NDArray[np.float64]:
        """Var(estimate[j] | x), exactly: (y² + (y - B_k)(B_{k+1} - y)) / m + (1-m) s / m² - y².

        y is x clamped to [-bound, bound], between levels B_k and B_{k+1}; s = bound² (K+1) / (3 (K-1)).
        """
        bound = checks.positive("bound", bound)
        y = np.clip(checks.vector("x", x, self.dim).astype(np.float64), -bound, bound)
        m, top = self.scale, self.levels - 1
        below = np.minimum(np.floor((y + bound) * top / (2 * bound)), top - 1)
        low, step = -bound + 2 * bound * below / top, 2 * bound / top
        rounding = np.maximum((y - low) * (low + step - y), 0.0)
        uniform = bound**2 * (self.levels + 1) / (3 * top)
        return (y**2 * self.law.loss + rounding) / m + self.law.loss * uniform / m**2

    def log_density(self, out: Any, codes: Any) -> float:
        """ln P(privatize(codes) = out)."""
        out = checks.codes("out", out, self.dim, self.levels)
        codes = checks.codes("codes", codes, self.dim, self.levels)
        return self.law.log_densities[0 if np.count_nonzero(out == codes) >= self.threshold else 1]

    def log_likelihood(self, out: Any, x: Any, bound: float) -> float:
        """ln P(privatize(quantize(x, bound)) = out): the rounding is averaged over.

        Rounding is independent by coordinate, so the number of matches between the rounded x and
        ``out`` has a Poisson-binomial law; with H = P(matches >= τ) the density is A H + B (1 - H).
        """
        out = checks.codes("out", out, self.dim, self.levels).astype(np.float64)
        bound = checks.positive("bound", bound)
        y = np.clip(checks.vector("x", x, self.dim).astype(np.float64), -bound, bound)
        position = (y + bound) * (self.levels - 1) / (2 * bound)
        chance = np.maximum(0.0, 1.0 - np.abs(position - out))
        above = self.threshold - np.count_nonzero(chance == 1.0)
        unsure = chance[(chance > 0.0) & (chance < 1.0)]
        if above <= 0 or above > unsure.size:
            return self.law.log_densities[0 if above <= 0 else 1]
        log_law = np.full(unsure.size + 1, -np.inf)  # ln P(this many of the unsure ones match)
        log_law[0] = 0.0
        for match in unsure:
            log_law[1:] = np.logaddexp(log_law[1:] + math.log1p(-match), log_law[:-1] + math.log(match))
            log_law[0] += math.log1p(-match)
        high, low = np.logaddexp.reduce(log_law[above:]), np.logaddexp.reduce(log_law[:above])
        return float(np.logaddexp(self.law.log_densities[0] + high, self.law.log_densities[1] + low))


def _realised(law: MatchLaw, limit: float) -> float:
    """ε of a law whose parameters were given, rounded up; it must lie in (0, limit]."""

    def better_than_chance() -> bool | None:
        ball = law.log_loss()
        return True if ball > 1e-9 else False if ball < 2e-9 else None

    if not exact.settle(better_than_chance):
        raise ValueError(
            f"threshold = {law.threshold} and keep = {law.keep:.6g} match no better than chance; "
            "raise one of them, or use the optimal rule"
        )
    loss = exact.rounded(law.log_loss, math.inf)
    if loss > limit:
        raise ValueError(
            f"threshold = {law.threshold} and keep = {law.keep:.6g} spend epsilon = {loss:.6g}, "
            f"above epsilon = {limit:.6g}"
        )
    return loss


def _fraction(keep: object) -> Fraction:
    """The keep probability as the exact rational that it is."""
    share = keep if isinstance(keep, Fraction) else Fraction(checks.real("keep", keep, 0, 1, open_ends=True))
    if not 0 < share < 1:
        raise ValueError(f"keep = {keep!r} must be a number strictly between 0 and 1")
    return share
