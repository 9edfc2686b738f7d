"""PrivQuant_{K,∞} (paper, Algorithm 1): a vector of codes, privatised by its number of matches.

With n coordinates, K levels, threshold τ and keep probability p, the output v has density
A = p / N_hi if it matches the input codes in at least τ places, else B = (1 - p) / N_lo, where N_hi
and N_lo count the vectors on either side. ε = ln(A / B), and E[v] = m · input with the scale m.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.mechanisms.match_law import boundary_law, exact_fraction, kept_law, paper_law, realised_epsilon
from sqsgd.numerics.gaussian import normal_points
from sqsgd.randomness import Rng, check_rng

Codes = npt.NDArray[np.uint8]
MOST_DIM, MOST_LEVELS = 1 << 24, 256
CHUNK = 1 << 17  # coordinates whose random words are drawn at once, so that they stay in the L2 cache
RUN, SPARE_BYTES = 256, 32  # rounding keeps spare words for each run of coordinates
U1, U2, U4 = (np.dtype(f"<u{width}") for width in (1, 2, 4))


@final
class PrivQuant:
    """Stochastic K-level quantisation and its exact ε-LDP privatisation.

    By default, τ is the least threshold that is at least the expected number of matches (the proven
    optimum), and p lies on the privacy boundary. ``threshold`` alone puts p on the boundary for it; ``keep``
    alone uses the largest threshold that ε admits; both together fix the mechanism, and ``epsilon`` is then
    an optional limit.
    ``rule="paper"`` is the paper's 0.9/0.1 rule: p / (1 - p) = e^{0.1 ε} and the largest τ with
    N_lo / N_hi <= e^{0.9 ε}, with τ free over 1..dim.

    Guarantees
    ----------
    * ``privatize`` is ``epsilon``-LDP, pure, between any two code vectors, as implemented: the match
      count is drawn exactly over its full support, the keepers are a uniform subset, the other codes
      uniform. tests/mechanisms/test_privquant_exact.py, tests/mechanisms/test_privquant_sampling.py.
    * ``epsilon`` is never above the requested one, and equals it by default.
      tests/mechanisms/test_privquant.py::test_the_whole_range_of_parameters, ::test_overrides.
    * ``estimate(privatize(quantize(x)))`` has mean x for x in [-bound, bound]^dim, up to float32
      rounding of x / bound; values outside are clamped first.
      tests/mechanisms/test_privquant_sampling.py::test_mean_and_variance_are_the_closed_forms,
      tests/mechanisms/test_privquant.py::test_values_outside_are_clamped.

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
        self._bits = levels.bit_length() - 1 if levels & (levels - 1) == 0 else 0
        self._kind = U4 if not self._bits else U1 if self._bits == 1 else U2  # of the noise of a coordinate
        self._width, self._offset = self._kind.itemsize, (levels - 1) / 2
        starts = range(0, dim, CHUNK)
        self._pieces = len(starts)
        self._parts = [(slice(start, min(start + CHUNK, dim)), min(CHUNK, dim - start)) for start in starts]
        on_boundary = keep is None and rule == "optimal"
        self.epsilon = limit if on_boundary else realised_epsilon(self.law, limit)
        if threshold is not None and not (self.law.scale > 0 and self.law.keep > 0):
            raise ValueError(f"threshold = {threshold} leaves almost no signal: the scale is below 1e-308")

        self._arguments = (dim, levels, epsilon, threshold, keep, rule)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, self._arguments

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
    def drop(self) -> float:
        """1 - p to full precision, where ``keep`` is close to one."""
        return self.law.drop

    @property
    def log_drop(self) -> float:
        """ln(1 - p), for values of 1 - p that are too small for a float."""
        return self.law.log_drop

    @property
    def scale(self) -> float:
        """m: the mean of a privatised value is m times the value."""
        return self.law.scale

    # ------------------------------------------------------------ the client's side

    def quantize(self, x: Any, bound: float, rng: Rng) -> Codes:
        """Round each x[j] in [-bound, bound] without bias to a neighbouring level (codes 0..K-1)."""
        from sqsgd.kernels.sampling import round_randomly

        x = checks.vector("x", x, self.dim)
        factor = self._factor(checks.real("bound", bound, 1e-30, 1e30))
        check_rng(rng)
        codes = np.empty(self.dim, np.uint8)
        for part, size in self._parts:
            noise, spare = self._rounding_noise(size, rng)
            round_randomly(x[part], factor, self._offset, noise, spare, codes[part])
        return codes

    def privatize(self, codes: Any, rng: Rng) -> Codes:
        """The private step: codes that match the input in exactly L places, L drawn from its exact law."""
        from sqsgd.kernels.sampling import scramble, scramble_bytes, scramble_pairs

        codes = checks.codes("codes", codes, self.dim, self.levels)
        wanted = self.law.sampler.draw(check_rng(rng))
        keep, out, count = self._keep(wanted), np.empty(self.dim, np.uint8), 0
        for part, size in self._parts:
            noise = rng.take(self._width * size).view(self._kind)
            if self._bits:
                kernel = scramble_bytes if self._width == 1 else scramble_pairs
                count += kernel(codes[part], self._bits, keep, noise, out[part])
            else:
                count += scramble(codes[part], self.levels, keep, noise, out[part])
        return self._adjusted(codes, out, count, wanted, rng)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Codes:
        """privatize(quantize(x, bound, rng), rng) for a float32 vector, in one pass if K = 2^b."""
        if not self._bits:
            return self.privatize(self.quantize(x, bound, rng), rng)
        x, bound = checks.shaped("x", x, self.dim), checks.real("bound", bound, 1e-30, 1e30)
        wanted = self.law.sampler.draw(check_rng(rng))
        keep, kernel, factor = self._keep(wanted), self._one_pass, self._factor(bound)
        codes, out = np.empty(self.dim, np.uint8), np.empty(self.dim, np.uint8)
        if self._pieces == 1:
            words = rng.take(self._one_pass_bytes)
            count = kernel(x, factor, self._offset, keep, self._bits, words, codes, out, wanted)
            counts = [count]
        else:  # pieces are scrambled one by one; the whole vector is adjusted at the end
            counts = []
            for part, _ in self._parts:
                words = rng.take(self._one_pass_bytes)
                counts.append(
                    kernel(x[part], factor, self._offset, keep, self._bits, words, codes[part], out[part], -1)
                )
        if min(counts) < 0:
            raise ValueError("x contains NaN or infinity")
        if self._pieces == 1 and counts[0] == wanted:  # the kernel has made all the usual tries
            return out
        return self._adjusted(codes, out, sum(counts), wanted, rng)

    @cached_property
    def _one_pass(self) -> Any:
        from sqsgd.kernels.sampling import round_and_scramble_bytes, round_and_scramble_pairs

        return round_and_scramble_bytes if self._width == 1 else round_and_scramble_pairs

    @cached_property
    def _one_pass_bytes(self) -> int:
        """Noise for a piece: scrambling, rounding, spare bits, and usually enough tries to adjust."""
        size = min(self.dim, CHUNK)
        scrambling = size + (-size & 7) if self._width == 1 else 2 * size
        noise = scrambling + 2 * size
        return noise + (-noise & 7) + SPARE_BYTES * -(-size // RUN) + 8 * _usual_tries(size)

    def _factor(self, bound: float) -> float:
        """Levels per unit of x."""
        return (self.levels - 1) / (2 * bound)

    def _rounding_noise(self, size: int, rng: Rng) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32]]:
        spares = SPARE_BYTES * -(-size // RUN)
        words = rng.take(spares + 2 * size)
        return words[spares:].view(U2), words[:spares].view(U4)

    def _keep(self, wanted: int) -> int:
        """The noise below which a code is kept, so that about the wanted number matches; -1 keeps all.

        All are kept where nearly all must match: changing the few others one by one is faster.
        """
        share = max(0.0, (wanted * self.levels / self.dim - 1) / (self.levels - 1))
        steps = 1 << (16 if not self._bits else 8 * self._width - self._bits)
        keep = min(round(share * steps), steps - 1) << self._bits
        return (keep, -1)[16 * (self.dim - wanted) < self.dim]

    def _adjusted(self, codes: Codes, out: Codes, count: int, wanted: int, rng: Rng) -> Codes:
        """Move ``out`` from its exchangeable number of matches to exactly the wanted one.

        Tries that are not needed are made up for, so that the time tells little about the number of matches.
        """
        from sqsgd.kernels.sampling import adjust

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
        """Words for tries that change nothing, as many as an adjustment usually needs."""
        steps = np.arange(_usual_tries(self.dim), dtype=np.uint64)
        return steps * np.uint64(0x9E3779B97F4A7C15)  # spread over all coordinates

    # ------------------------------------------------------------ the server's side

    def estimate(self, out: Any, bound: float) -> npt.NDArray[np.float64]:
        """The unbiased estimate of x: the level values over m."""
        codes = checks.codes("out", out, self.dim, self.levels)
        bound = checks.real("bound", bound, 1e-30, 1e30)
        return (2.0 * codes / (self.levels - 1) - 1.0) * (bound / self.scale)

    def add_levels(self, codes: Codes, unit: float, total: Vector) -> None:
        """total += unit * (level values in [-1, 1]), in one pass."""
        from sqsgd.kernels.rotation import accumulate

        accumulate(codes, 2 * unit / (self.levels - 1), -unit, total)

    def variance(self, x: Any, bound: float) -> npt.NDArray[np.float64]:
        """Var(estimate[j] | x), exactly: (y² + (y - B_k)(B_{k+1} - y)) / m + (1-m) s / m² - y².

        y is x clamped to [-bound, bound], between levels B_k and B_{k+1}; s = bound² (K+1) / (3 (K-1)).
        """
        bound = checks.real("bound", bound, 1e-30, 1e30)
        y = np.clip(checks.vector("x", x, self.dim).astype(np.float64), -bound, bound)
        m, top = self.scale, self.levels - 1
        below = np.minimum(np.floor((y + bound) * top / (2 * bound)), top - 1)
        low, step = -bound + 2 * bound * below / top, 2 * bound / top
        rounding = np.maximum((y - low) * (low + step - y), 0.0)
        uniform = bound**2 * (self.levels + 1) / (3 * top)
        return (y**2 * self.law.loss + rounding) / m + self.law.loss * uniform / m**2

    def gaussian_energy(self, reach: float) -> float:
        """E[estimate²] of one coordinate y ~ N(0, 1) quantised over ± reach and privatised."""
        y = np.clip(normal_points(), -reach, reach)
        step = 2 * reach / (self.levels - 1)
        part = ((y + reach) / step) % 1.0
        rounded = y**2 + step**2 * part * (1 - part)
        uniform = reach**2 * (self.levels + 1) / (3 * (self.levels - 1))
        return float(np.mean(rounded / self.scale + self.law.loss * uniform / self.scale**2))

    def log_density(self, out: Any, codes: Any) -> float:
        """ln P(privatize(codes) = out)."""
        out = checks.codes("out", out, self.dim, self.levels)
        codes = checks.codes("codes", codes, self.dim, self.levels)
        return self.law.log_densities[0 if np.count_nonzero(out == codes) >= self.threshold else 1]

    def log_likelihood(self, out: Any, x: Any, bound: float) -> float:
        """ln P(privatize(quantize(x, bound)) = out), averaged over the rounding.

        Coordinates are rounded independently, so the number of matches between the rounded x and
        ``out`` has a Poisson-binomial law; with H = P(matches >= τ) the density is A H + B (1 - H).
        """
        out = checks.codes("out", out, self.dim, self.levels).astype(np.float64)
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
    """Tries that nearly always suffice to adjust ``size`` codes."""
    return 64 + 4 * math.isqrt(size)


def _rebuilt(dim: int, levels: int, epsilon: Any, threshold: Any, keep: Any, rule: Any) -> PrivQuant:
    """For unpickling: the law holds functions, which cannot be pickled."""
    return PrivQuant(dim, levels, epsilon, threshold=threshold, keep=keep, rule=rule)
