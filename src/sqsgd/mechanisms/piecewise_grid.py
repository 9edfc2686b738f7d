"""The Piecewise Mechanism of Wang et al. with its output rounded to a grid, drawn exactly."""

from __future__ import annotations

import math
from functools import cached_property
from typing import final

import numpy as np
from flint import arb

from sqsgd import checks
from sqsgd.mechanisms.channel import LEAST_EPSILON, MOST_EPSILON, Channel, Codes, Floats, integers_below
from sqsgd.numerics import exact
from sqsgd.randomness import Rng

MOST_ALPHABET = 2**32
_SHORT_BITS = 61  # of a lattice whose sums fit into a signed 64-bit integer
_WINDOW_BITS = 44  # of the window's length in cells, so that ε is met to a relative 1e-9 at 1e-3 and above


@final
class PiecewiseGrid(Channel):
    """PM of a number t in [-1, 1], then unbiased rounding to ``alphabet`` points of [-C, C].

    PM (Wang et al., ICDE 2019, Algorithm 2): uniform on a window of length C - 1 around
    (C + 1) t / 2 with probability h / (h + 1), else uniform on the rest of [-C, C];
    C = (h + 1) / (h - 1), and h = e^{ε/2} for an output that is not rounded. With q = 1 / (h + 1), as
    shares of the range: a window of length q, from (1 - q) (t + 1) / 2 on, hit with probability 1 - q.

    **Exact draws.** The range has G = alphabet - 1 steps of M = 2^s cells. The window covers W whole cells,
    so q = W / (G M) and all probabilities are rational. A uniform point of a cell rounds up with the
    probability of the cell's midpoint, so cells introduce no error.

    **Privacy of the codes.** Densities differ by h². A code collects the cells within a step of its point,
    so its ratio is smaller where the window is shorter than a step. For the end codes, which have the largest
    ratio, with w = q G: e^ε = h² for w >= 1, 1 + (h² - 1) (2 w - w²) for w < 1, and h for G = 1 (Duchi's
    bit). h is the largest that ε admits, so a coarse grid has less noise than h = e^{ε/2}.

    Guarantees
    ----------
    * Exactly ``epsilon``-LDP as implemented (in integers), attained with three or more levels; at most the
      requested ε, and at most a relative 1e-9 below it:
      tests/mechanisms/test_piecewise_grid.py::test_epsilon_is_exact.
    * Unbiased, up to the rounding of t to a float64 and to a cell:
      tests/mechanisms/test_piecewise_grid.py::test_estimates_are_unbiased.

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

    def __reduce__(self) -> tuple[type[PiecewiseGrid], tuple[int, float]]:
        return PiecewiseGrid, (self.alphabet, self._request)

    def __repr__(self) -> str:
        return f"PiecewiseGrid(alphabet={self.alphabet}, epsilon={self._request!r})"

    @property
    def identity(self) -> str:
        return f"piecewise {self.alphabet} {self._request!r}"

    # ---------------------------------------------------------------- parameters

    def _odds(self) -> arb | None:
        """The largest h that ε admits; None where the precision does not decide."""
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

    # ---------------------------------------------------------------- codes

    def _starts(self, places: Floats) -> Codes:
        """The first cell of each place's window."""
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
            """The total weight of the cells before ``end``, as multiples of 1 / (2 step)."""
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
    """The integral of f (1 - f) from 0 to ``end``, f being the fractional part."""
    whole = np.floor(end)
    part = end - whole
    return np.asarray(whole / 6 + part**2 / 2 - part**3 / 3)
