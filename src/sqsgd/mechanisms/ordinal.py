"""The ordinal exponential mechanism on a few levels, drawn exactly; with two levels, Duchi's bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import final

import numpy as np
from flint import arb

from sqsgd import checks
from sqsgd.mechanisms.channel import LEAST_EPSILON, MOST_EPSILON, Channel, Codes, Floats
from sqsgd.numerics.exact import START_BITS, InverseCdf, precision
from sqsgd.numerics.rounding import round_unbiased
from sqsgd.randomness import Rng

MOST_LEVELS = 256


@final
class OrdinalChannel(Channel):
    """Round to one of ``levels`` = L + 1 levels without bias, then move by P(y | v) ∝ e^{-α|v - y|/2}.

    On the full interval of levels the exact budget is ε = α L / 2, half of the textbook α L (LDP-Fed,
    Truex et al. 2020, after Gursoy et al. 2019): the normalisers of the two ends are equal, and those of
    neighbours differ by at most e^{α/2}. With L = 1 it is randomised response on the two ends, which
    after rounding is Duchi's bit: P(+) = 1/2 + t / (2 M), M = (e^ε + 1) / (e^ε - 1).

    Codes are biased towards the centre; ``estimate`` corrects that with f = R^{-1}(levels). With
    r = e^{-ε/L} and levels t_v = 2 v / L - 1, the inverse of r^{|v-y|} is tridiagonal, and
    f_v = t_v + (2/L) (r^{L-v+1} - r^{v+1}) / (1 - r) between the ends, -f_0 = f_L =
    1 + (2/L) r (1 + r - r² - r^L) / ((1 - r) (1 - r²)).

    Guarantees
    ----------
    * Exactly ``epsilon``-LDP as implemented, attained between the two ends: moves are drawn from the
      exact law.
      tests/mechanisms/test_ordinal.py::test_epsilon_is_exact, ::test_ambiguous_words_are_settled.
    * ``estimate`` is unbiased: tests/mechanisms/test_ordinal.py::test_estimates_are_unbiased.

    >>> channel = OrdinalChannel(levels=2, epsilon=1.0)
    >>> channel.estimate(np.array([0, 1])).round(4).tolist()  # M = (e + 1) / (e - 1)
    [-2.164, 2.164]
    """

    def __init__(self, levels: int, epsilon: float) -> None:
        self.alphabet = checks.integer("levels", levels, 2, MOST_LEVELS)
        self.epsilon = checks.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)
        self._top = self.alphabet - 1

    def __reduce__(self) -> tuple[type[OrdinalChannel], tuple[int, float]]:
        return OrdinalChannel, (self.alphabet, self.epsilon)

    def __repr__(self) -> str:
        return f"OrdinalChannel(levels={self.alphabet}, epsilon={self.epsilon!r})"

    @property
    def identity(self) -> str:
        return f"ordinal {self.alphabet} {self.epsilon!r}"

    def _split(self, places: Floats) -> tuple[Codes, Floats]:
        """The level below each place, and the probability of the one above it."""
        position = self._top * places
        lower = np.minimum(position.astype(np.int64), self._top - 1)
        return lower, position - lower

    def randomize(self, places: Floats, rng: Rng) -> Codes:
        levels = round_unbiased(self._top * places, rng)
        return self._move(levels, rng.words(places.size), rng).astype(np.uint8)

    def _move(self, levels: Codes, words: Codes, rng: Rng) -> Codes:
        """The codes for U = (words + further bits) / 2^64, by inversion of P(y | level).

        All levels take the same steps, those of a binary search in their row of the table.
        """
        below, above, laws = self._table
        codes = np.zeros(words.size, np.int64)  # the first edge that a word is not certainly above
        step = above.shape[1] + 1 >> 1
        while step:
            codes += step * (above[levels, codes + step - 1] < words)
            step >>= 1
        # Beyond the last edge the code is certain: it is the top one.
        unsure = (codes < self._top) & (words >= below[levels, np.minimum(codes, self._top - 1)])
        for at in np.flatnonzero(unsure).tolist():
            codes[at] = laws[levels[at]].continue_from(int(words[at]), rng)
        return codes

    @cached_property
    def _table(self) -> tuple[Codes, Codes, list[InverseCdf]]:
        """One row per level: the words certainly below and above each edge of its law, and the law.

        All rows are made at once, so that the time of a report does not tell which levels it needs.
        """
        laws = []
        with precision(START_BITS):
            for level in range(self.alphabet):
                cdf = self._cdf(level)
                laws.append(InverseCdf(self._top, cdf, [(code, cdf(code)) for code in range(self._top)]))
        width = (1 << self._top.bit_length()) - 1  # a full binary tree; no word is above the edges added
        above = np.full((self.alphabet, width), 2**64 - 1, np.uint64)
        below = np.empty((self.alphabet, self._top), np.uint64)
        for level, law in enumerate(laws):
            below[level], above[level, : self._top] = law.tables()
        return below, above, laws

    def _cdf(self, level: int) -> Callable[[int], arb]:
        """P(y <= code | level), from two geometric sums."""

        def power(exponent: int) -> arb:
            return (-arb(self.epsilon) * exponent / self._top).exp()

        def weight_up_to(code: int) -> arb:
            if code <= level:
                return power(level - code) - power(level + 1)
            return 1 + power(1) - power(level + 1) - power(code - level + 1)

        return lambda code: weight_up_to(code) / weight_up_to(self._top)

    @cached_property
    def values(self) -> Floats:
        """f: the estimate for each code."""
        top, rate = self._top, self.epsilon / self._top
        levels = np.arange(top + 1)
        gap = -math.expm1(-rate)
        near, far = np.exp(-rate * (top - levels + 1)), np.exp(-rate * (levels + 1))
        result = 2 * levels / top - 1 + (2 / top) * (near - far) / gap
        inner = -math.expm1(-self.epsilon) + math.exp(-rate) * gap
        result[-1] = 1 + (2 / top) * math.exp(-rate) * inner / (gap * -math.expm1(-2 * rate))
        result[0] = -result[-1]
        return np.asarray(result)

    @cached_property
    def log_kernel(self) -> Floats:
        """ln P(y | v), one row per level v."""
        levels = np.arange(self.alphabet)
        weights = -(self.epsilon / self._top) * np.abs(levels[:, None] - levels)
        return np.asarray(weights - np.logaddexp.reduce(weights, axis=1, keepdims=True))

    def estimate(self, codes: Codes) -> Floats:
        return self.values[codes]

    def second_moment(self, places: Floats) -> Floats:
        moments = np.exp(self.log_kernel) @ self.values**2
        return np.interp(self._top * places, np.arange(self.alphabet), moments)

    def log_probability(self, codes: Codes, places: Floats) -> Floats:
        lower, part = self._split(places)
        with np.errstate(divide="ignore"):
            here = np.log1p(-part) + self.log_kernel[lower, codes]
            return np.asarray(np.logaddexp(here, np.log(part) + self.log_kernel[lower + 1, codes]))
