"""ScalarDP: one bounded number as one of K levels; and how a budget is split between direction and norm."""

from __future__ import annotations

import math
from typing import final

import numpy as np
import numpy.typing as npt
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.exact import divided, take_away
from sqsgd.core.random import Rng, check_rng, idle_rng
from sqsgd.mechanisms.channels import LEAST_EPSILON

Floats = npt.NDArray[np.float64]
Symbols = npt.NDArray[np.uint8]

MOST_LEVELS = 255  # so that a symbol fits one byte


@final
class ScalarDP:
    """A number in [0, maximum], rounded without bias to a grid, then randomised response on the grid.

    The grid has k = ``levels`` steps. The symbol J in 0..k is kept with probability
    e^ε / (e^ε + k), and otherwise replaced by one of the k others. ``levels=None`` means
    k = ceil(e^{ε/3}), at most 255.

    Guarantees
    ----------
    * ``privatize`` is exactly ``epsilon``-LDP, as implemented: tests/mechanisms/test_scalardp.py.
    * ``estimate`` is unbiased. It may lie outside [0, maximum]; clamping would bias it.
      tests/mechanisms/test_scalardp.py::test_law_is_exactly_private_unbiased_and_has_the_closed_form_variance.

    >>> s = ScalarDP(maximum=1.0, epsilon=10.0)
    >>> s.levels, round(s.variance(0.5) ** 0.5, 4)
    (29, 0.0205)
    """

    def __init__(self, maximum: float, epsilon: float, levels: int | None = None) -> None:
        self.maximum = checks.positive("maximum", maximum)
        self.epsilon = checks.real("epsilon", epsilon, 1e-6, 1e6)
        if levels is None:
            fits = 3 * math.log(MOST_LEVELS)
            levels = MOST_LEVELS if self.epsilon > fits else math.ceil(math.exp(self.epsilon / 3))
        self.levels = checks.integer("levels", levels, 1, MOST_LEVELS)
        self.identity = f"scalardp {self.levels} {self.epsilon!r}"
        self._stays = exact.bernoulli(self._log_odds)

    def __reduce__(self) -> tuple[type[ScalarDP], tuple[float, float, int]]:
        return ScalarDP, (self.maximum, self.epsilon, self.levels)

    def __repr__(self) -> str:
        return f"ScalarDP(maximum={self.maximum!r}, epsilon={self.epsilon!r}, levels={self.levels})"

    def _log_odds(self) -> arb:
        return arb(self.epsilon) - arb(self.levels).log()

    def weights(self) -> tuple[arb, arb]:
        """The probabilities of the kept and of another symbol, times the number of symbols."""
        odds = arb(self.epsilon).exp()
        low = (self.levels + 1) / (odds + self.levels)
        return odds * low, low

    def _position(self, value: object) -> float:
        """The value on the grid: k r / R."""
        inside = min(max(checks.real("value", value, -math.inf, math.inf), 0.0), self.maximum)
        return self.levels * (inside / self.maximum)

    def privatize(self, value: float, rng: Rng) -> int:
        """A symbol 0..levels for the value clamped to [0, maximum]."""
        position = self._position(value)
        check_rng(rng)
        lower = min(int(position), self.levels - 1)
        symbol = lower + (rng.uniform() < position - lower)
        moves = 1 - self._stays.draw(rng)
        shift = 1 + (idle_rng(), rng)[moves].below(self.levels)  # both cases draw, in the same time
        return (symbol + moves * shift) % (self.levels + 1)

    def privatize_many(self, values: Floats, rng: Rng) -> Symbols:
        """A symbol for each value, with the law of ``privatize``.

        tests/mechanisms/test_scalardp.py::test_many_symbols_have_the_law_of_single_ones.
        """
        positions = self.levels * (np.clip(values, 0.0, self.maximum) / self.maximum)
        lower = np.minimum(positions.astype(np.int64), self.levels - 1)
        symbols = lower + (rng.uniforms(lower.size) < positions - lower)
        moves = 1 - self._stays.draw_many(lower.size, rng)
        shifts = 1 + rng.below_many(np.full(lower.size, self.levels))
        return np.asarray((symbols + moves * shifts) % (self.levels + 1), np.uint8)

    def estimate(self, symbol: int) -> float:
        """Unbiased: a (J - b), a = (e^ε + k) R / ((e^ε - 1) k), b = k (k+1) / (2 (e^ε + k))."""
        k, odds = checks.integer("symbol", symbol, 0, self.levels), math.exp(-self.epsilon)
        steps = self.levels
        slope = (1 + steps * odds) * self.maximum / (-math.expm1(-self.epsilon) * steps)
        return slope * (k - steps * (steps + 1) * odds / (2 * (1 + steps * odds)))

    def variance(self, value: float) -> float:
        """Var(estimate | value), in closed form, divided by e^ε so that nothing overflows."""
        position = self._position(value)
        k, odds = self.levels, math.exp(-self.epsilon)
        part = position - math.floor(position)
        gain, whole = -math.expm1(-self.epsilon), 1 + k * odds
        second = (gain * (position**2 + part * (1 - part)) + odds * k * (k + 1) * (2 * k + 1) / 6) / whole
        first = (gain * position + odds * k * (k + 1) / 2) / whole
        slope = whole * self.maximum / (gain * k)
        return slope**2 * max(second - first**2, 0.0)

    def log_density(self, symbol: int, value: float) -> float:
        """ln P(privatize(value) = symbol), including the rounding."""
        symbol = checks.integer("symbol", symbol, 0, self.levels)
        position = self._position(value)
        lower = min(int(position), self.levels - 1)
        here = position - lower if symbol == lower + 1 else lower + 1 - position if symbol == lower else 0.0
        spread = -self.epsilon - math.log1p(self.levels * math.exp(-self.epsilon))
        if here == 0:
            return spread
        return math.log(here + (1 - here) * math.exp(-self.epsilon)) + spread + self.epsilon


_NORM_SHARES = ((1000.0, 10.0), (60.0, 6.0), (20.0, 4.0), (8.0, 2.0), (4.0, 1.5), (2.0, 1.0))


def equal_share(epsilon: float, parts: int) -> float:
    """The largest float that ``parts`` times never exceeds epsilon."""
    share = divided(epsilon, parts)
    if share < LEAST_EPSILON:
        raise ValueError(
            f"epsilon = {epsilon!r} over {parts} coordinates leaves {share:g} for each; "
            f"at most {int(epsilon / LEAST_EPSILON)} coordinates can be sent"
        )
    return share


def norm_share(epsilon: float) -> float:
    """ε2: the norm's share of the budget.

    Near the minimum of (1 + Var(norm) / norm²) / m(ε - ε2)², which hardly depends on the dimension. It is
    a table so that client and server agree to the last bit.
    """
    return next((share for least, share in _NORM_SHARES if epsilon >= least), epsilon / 2)


def split(epsilon: float, norm_epsilon: float | None) -> tuple[float, ScalarDP]:
    """ε1 for the direction, and ScalarDP for norm / bound with ``norm_epsilon`` (default: ``norm_share``).

    >>> split(400.0, None)
    (394.0, ScalarDP(maximum=1.0, epsilon=6.0, levels=8))
    """
    if norm_epsilon is not None:
        if norm_epsilon == 0:
            raise ValueError("norm_epsilon = 0: only sparse codes do without a norm")
        norm_epsilon = checks.real("norm_epsilon", norm_epsilon, 1e-3 * epsilon, 0.999 * epsilon)
    share = norm_share(epsilon) if norm_epsilon is None else norm_epsilon
    return take_away(epsilon, share), ScalarDP(1.0, share)
