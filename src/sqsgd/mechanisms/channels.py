"""Channels for one coordinate at a time, whose odds depend on the distance; choosing a coordinate."""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import START_BITS, InverseCdf, precision
from sqsgd._internal.geometry import round_unbiased
from sqsgd.core import Part
from sqsgd.core.random import Rng

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[Any]
Ranks = npt.NDArray[np.int64]
LEAST_EPSILON, MOST_EPSILON = 1e-6, 1e6


class Channel(Part):
    """A mechanism for one number in [-1, 1], which is passed as its place from 0 to 1 in that range."""

    alphabet: int
    epsilon: float
    """The ε of one code, as implemented; never rounded down."""

    @abstractmethod
    def randomize(self, places: Floats, rng: Rng) -> Codes:
        """Return a code for each place, independently."""

    @abstractmethod
    def estimate(self, codes: Codes) -> Floats:
        """Unbiased estimates of the encoded numbers. They may lie outside [-1, 1]."""

    @abstractmethod
    def second_moment(self, places: Floats) -> Floats:
        """E[estimate²] at each place."""

    @abstractmethod
    def log_probability(self, codes: Codes, places: Floats) -> Floats:
        """ln P(code | place) of each pair, over all randomness of ``randomize``."""


def integers_below(bound: int, count: int, rng: Rng) -> Codes:
    """Uniform integers in 0..bound-1, by rejection; int64, or Python integers beyond a bound of 2^63."""
    if bound > 2**63:
        return np.array([_long_below(bound, rng) for _ in range(count)] or [], object)
    return rng.below_many(np.full(count, bound, np.uint64))


def _long_below(bound: int, rng: Rng) -> int:
    bits = (bound - 1).bit_length()
    while True:
        number = int.from_bytes(rng.take(-(-bits // 8)).tobytes(), "little") & ((1 << bits) - 1)
        if number < bound:
            return number


MOST_LEVELS = 256


@final
class OrdinalChannel(Channel):
    """Round to one of ``levels`` = L + 1 levels without bias, then move by P(y | v) ∝ e^{-α|v - y|/2}.

    On the full interval of levels the exact budget is ε = α L / 2, half of the textbook α L (LDP-Fed,
    Truex et al. 2020): the normalisers of the two ends are equal. With L = 1 it is Duchi's bit.

    Codes are biased towards the centre; ``estimate`` corrects that with f = R^{-1}(levels). With
    r = e^{-ε/L} and levels t_v = 2 v / L - 1, the inverse of r^{|v-y|} is tridiagonal, and
    f_v = t_v + (2/L) (r^{L-v+1} - r^{v+1}) / (1 - r) between the ends, -f_0 = f_L =
    1 + (2/L) r (1 + r - r² - r^L) / ((1 - r) (1 - r²)).

    Guarantees
    ----------
    * Exactly ``epsilon``-LDP as implemented, attained between the two ends: moves are drawn from the
      exact law.
      tests/mechanisms/test_channels.py::test_epsilon_is_exact, ::test_ambiguous_words_are_settled.
    * ``estimate`` is unbiased: tests/mechanisms/test_channels.py::test_estimates_are_unbiased.

    >>> channel = OrdinalChannel(levels=2, epsilon=1.0)
    >>> channel.estimate(np.array([0, 1])).round(4).tolist()  # M = (e + 1) / (e - 1)
    [-2.164, 2.164]
    """

    def __init__(self, levels: int, epsilon: float) -> None:
        self.alphabet = checks.integer("levels", levels, 2, MOST_LEVELS)
        self.epsilon = checks.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)
        self._top = self.alphabet - 1

    @property
    def identity(self) -> str:
        return f"ordinal {self.alphabet} {self.epsilon!r}"

    def randomize(self, places: Floats, rng: Rng) -> Codes:
        levels = round_unbiased(self._top * places, rng)
        codes = np.empty(places.size, np.uint8)
        for level, law in enumerate(self._laws):
            here = np.flatnonzero(levels == level)
            codes[here] = law.draw_many(here.size, rng)
        return codes

    @cached_property
    def _laws(self) -> list[InverseCdf]:
        """The law of the code for each level."""
        laws = []
        with precision(START_BITS):
            for level in range(self.alphabet):
                cdf = self._cdf(level)
                laws.append(InverseCdf(self._top, cdf, [(code, cdf(code)) for code in range(self._top)]))
        return laws

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
        lower = np.minimum((self._top * places).astype(np.int64), self._top - 1)
        part = self._top * places - lower  # the probability of the level above
        with np.errstate(divide="ignore"):
            here = np.log1p(-part) + self.log_kernel[lower, codes]
            return np.asarray(np.logaddexp(here, np.log(part) + self.log_kernel[lower + 1, codes]))


MOST_ALPHABET = 2**32
_SHORT_BITS = 61  # of a lattice whose sums fit into a signed 64-bit integer
_WINDOW_BITS = 44  # of the window's length in cells, so that ε is met to a relative 1e-9 at 1e-3 and above


@final
class PiecewiseGrid(Channel):
    """PM of a number t in [-1, 1], then unbiased rounding to ``alphabet`` points of [-C, C].

    PM (Wang et al., ICDE 2019, Algorithm 2): uniform on a window with probability h / (h + 1), else on the
    rest of [-C, C], C = (h + 1) / (h - 1). With q = 1 / (h + 1), as shares of the range: a window of length
    q, from (1 - q) (t + 1) / 2 on, hit with probability 1 - q. The range has G = alphabet - 1 steps of
    M = 2^s cells, the window W whole ones, so q = W / (G M) and all probabilities are rational.

    The end codes have the largest ratio, with w = q G: e^ε = h² for w >= 1, 1 + (h² - 1) (2 w - w²) for
    w < 1, and h for G = 1 (Duchi's bit). h is the largest that ε admits, so a coarse grid has less noise
    than h = e^{ε/2}: docs/proofs/piecewise-grid.md.

    Guarantees
    ----------
    * Exactly ``epsilon``-LDP as implemented (in integers), attained with three or more levels; at most the
      requested ε, and at most a relative 1e-9 below it:
      tests/mechanisms/test_channels.py::test_epsilon_is_exact.
    * Unbiased, up to the rounding of t to a float64 and to a cell:
      tests/mechanisms/test_channels.py::test_estimates_are_unbiased.

    >>> channel = PiecewiseGrid(alphabet=256, epsilon=5.0)
    >>> round(channel.reach, 4), channel.epsilon, float(channel.second_moment(np.array([0.5])).round(3)[0])
    (1.1789, 5.0, 0.04)
    """

    def __init__(self, alphabet: int, epsilon: float) -> None:
        self.alphabet = checks.integer("alphabet", alphabet, 2, MOST_ALPHABET)
        self._request = checks.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)
        self._steps = self.alphabet - 1
        # The window needs enough cells for ε to be met closely.
        odds_bits = float(exact.settle(self._odds).log().mid()) / math.log(2)
        total_bits = max(_SHORT_BITS, math.ceil(odds_bits) + _WINDOW_BITS)
        self._shift = total_bits - self._steps.bit_length()
        self._step = 1 << self._shift
        self._cells = self._steps * self._step
        self._window = exact.settle(self._least_window)

    @property
    def identity(self) -> str:
        return f"piecewise {self.alphabet} {self._request!r}"

    def _odds(self) -> arb | None:
        """Return the largest h that ε admits, or None where the precision does not decide."""
        steps, epsilon = self._steps, arb(self._request)
        if steps == 1:
            return epsilon.exp()
        plain = (epsilon / 2).exp()
        if plain <= steps - 1:
            return plain
        if not plain > steps - 1:
            return None
        # 1 + (h² - 1) (2 w - w²) = e^ε with w = G / (1 + h): 2 G h² - (G² + E) h + G² - 2 G - E = 0.
        excess = epsilon.expm1()
        linear, constant = steps**2 + excess, steps**2 - 2 * steps - excess
        return (linear + (linear**2 - 8 * steps * constant).sqrt()) / (4 * steps)

    def _least_window(self) -> int | None:
        """W: the least number of cells with (F - W) / W <= h, F = G M."""
        odds = self._odds()
        cells = None if odds is None else (self._cells / (1 + odds)).ceil().unique_fmpz()
        return None if cells is None else int(cells)

    def _log_ratio(self) -> arb:
        """ln of the largest ratio of a code's probabilities, from the integers."""
        cells, window, step = self._cells, self._window, self._step
        odds = arb(cells - window) / window
        if self._steps == 1:
            return odds.log()
        if window >= step:
            return 2 * odds.log()
        covered = arb(2 * step * window - window**2) / step**2
        return ((odds**2 - 1) * covered).log1p()

    @cached_property
    def epsilon(self) -> float:  # type: ignore[override]
        return exact.rounded(self._log_ratio, math.inf)

    @cached_property
    def reach(self) -> float:
        """C: the estimates of the end codes are ± C."""
        return self._cells / (self._cells - 2 * self._window)

    def _starts(self, places: Floats) -> Codes:
        free = self._cells - self._window
        if self._cells < 2**62:
            return np.minimum((places * float(free)).astype(np.int64), free)
        parts = (places * 2.0**53).astype(np.int64).astype(object)
        return np.asarray((parts * free) >> 53)

    def randomize(self, places: Floats, rng: Rng) -> Codes:
        count, cells, window = places.size, self._cells, self._window
        starts = self._starts(places)
        inside = integers_below(cells, count, rng) < cells - window
        within = starts + integers_below(window, count, rng)
        rest = integers_below(cells - window, count, rng).astype(starts.dtype)  # the sum may exceed int64
        rest = np.where(rest < starts, rest, rest + window)
        # Twice the cell's midpoint plus a uniform part of twice a step rounds up with the right probability.
        doubled = 2 * np.where(inside, within, rest) + 1 + integers_below(2 * self._step, count, rng)
        return np.asarray((doubled >> (self._shift + 1)).astype(np.uint32))

    def estimate(self, codes: Codes) -> Floats:
        return np.asarray(self.reach * (codes.astype(np.float64) * (2 / self._steps) - 1))

    def second_moment(self, places: Floats) -> Floats:
        """E[PM²] = t² / (1 - 1/h) + (1/h) (1 + 3/h) / (3 (1 - 1/h)²), and the variance of the rounding."""
        inverse, share = self._window / (self._cells - self._window), self._window / self._cells
        plain = (2 * places - 1) ** 2 / (1 - inverse) + inverse * (1 + 3 * inverse) / (3 * (1 - inverse) ** 2)
        width = self._steps * share
        begin = (self._steps - width) * places % 1.0
        if width < 1e-6:  # too short for a difference of two integrals
            inside = begin * (1 - begin)
        else:
            inside = (_rounding(begin + width) - _rounding(begin)) / width
        outside = (self._steps / 6 - width * inside) / (self._steps - width)
        step = 2 * self.reach / self._steps
        return np.asarray(plain + step**2 * ((1 - share) * inside + share * outside))

    def log_probability(self, codes: Codes, places: Floats) -> Floats:
        pairs = zip(codes.tolist(), self._starts(places).tolist(), strict=True)
        return np.array([self._log_probability(code, start) for code, start in pairs])

    def _log_probability(self, code: int, start: int) -> float:
        """Computed from integers: the cells' weights for a code rise 1, 3, 5, ... and fall again."""
        cells, window, step = self._cells, self._window, self._step

        def gathered(end: int) -> int:
            """Return the total weight of the cells before ``end``, as multiples of 1 / (2 step)."""
            rise = min(max(end - (code - 1) * step, step if code == 0 else 0), step)
            fall = min(max(end - code * step, 0), step)
            before = step**2 if code == 0 else 0
            return rise**2 - before + (step**2 - (step - fall) ** 2 if code < self._steps else 0)

        inside = gathered(start + window) - gathered(start)
        outside = gathered(cells) - inside
        # (1 - q) / W for a cell inside, q / (F - W) for one outside, over one denominator.
        free = cells - window
        numerator = free**2 * inside + window**2 * outside
        return math.log(numerator) - math.log(2 * step * cells * window * free)


def _rounding(end: Floats) -> Floats:
    """Return the integral of f (1 - f) from 0 to ``end``, f being the fractional part."""
    whole = np.floor(end)
    part = end - whole
    return np.asarray(whole / 6 + part**2 / 2 - part**3 / 3)


@final
class TopSet(Part):
    """Perturbed sampling (FedSel, section 4): weight e^ε for each of the ``top`` largest coordinates, else 1.

    Guarantees
    ----------
    * Exactly ``epsilon``-LDP as implemented: the side is drawn exactly, then a coordinate uniformly.
      tests/mechanisms/test_channels.py::test_selection_is_exactly_private.

    >>> TopSet(dim=100, top=10, epsilon=2.0).log_probability(np.array([0, 99])).round(3).tolist()
    [-3.099, -5.099]
    """

    def __init__(self, dim: int, top: int, epsilon: float) -> None:
        self.dim = checks.integer("dim", dim, 2, 2**32 - 1)
        self.top = checks.integer("top", top, 1, dim - 1)
        self.epsilon = checks.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)

    @property
    def identity(self) -> str:
        return f"top {self.top} of {self.dim} {self.epsilon!r}"

    @cached_property
    def _is_top(self) -> InverseCdf:
        return exact.bernoulli(lambda: arb(self.epsilon) + (arb(self.top) / (self.dim - self.top)).log())

    def choose(self, magnitudes: Vector, picks: int, rng: Rng) -> Ranks:
        """Return the coordinates of ``picks`` independent picks."""
        sides = [self._is_top.draw(rng) for _ in range(picks)]
        top = largest(magnitudes, self.top)
        others = np.ones(self.dim, np.bool_)
        others[top] = False
        rest = np.flatnonzero(others)
        chosen = (top[rng.below(self.top)] if side else rest[rng.below(rest.size)] for side in sides)
        return np.fromiter(chosen, np.int64, picks)

    def log_probability(self, ranks: Codes) -> Floats:
        """ln of the probability of picking the coordinate of each rank, the largest at 0."""
        whole = np.logaddexp(np.log(self.top), np.log(self.dim - self.top) - self.epsilon)
        return np.asarray(np.where(ranks < self.top, 0.0, -self.epsilon) - whole)


def ranking(magnitudes: Vector) -> Ranks:
    """Return the coordinates from the largest magnitude to the smallest; ties keep their order."""
    return np.argsort(-magnitudes, kind="stable")


def largest(magnitudes: Vector, count: int) -> Ranks:
    """``ranking(magnitudes)[:count]`` in some order, in linear time that the magnitudes do not change."""
    from sqsgd._internal.kernels.sampling import select_largest

    chosen = np.empty(count, np.int64)
    select_largest(np.ascontiguousarray(magnitudes, np.float32).view(np.uint32), chosen)
    return chosen
