"""ScalarDP: one bounded number as one of K levels; and mechanisms that send a vector's size with it."""

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.exact import Densities, add_up, divided, take_away
from sqsgd.core import Mechanism, Part, Privacy, Traits
from sqsgd.core.codec import AnyColumn, Array, Column, Columns, Layout
from sqsgd.core.random import Rng, check_rng, idle_rng
from sqsgd.mechanisms.channels import LEAST_EPSILON

Floats = npt.NDArray[np.float64]
Symbols = npt.NDArray[np.uint8]

MOST_LEVELS = 255  # so that a symbol fits one byte


def respond(code: int, alphabet: int, stays: exact.InverseCdf, rng: Rng) -> int:
    """Randomised response: the code itself if ``stays`` draws one, else a uniform one of the others."""
    moves = 1 - stays.draw(rng)
    shift = 1 + (idle_rng(), rng)[moves].below(alphabet - 1)  # both cases draw, in the same time
    return (code + moves * shift) % alphabet


@final
class ScalarDP(Part):
    """A mechanism for numbers in [0, maximum], using unbiased rounding to a grid and randomised response.

    For k = ``levels``, the rounded symbol J in 0..k is kept with probability e^ε / (e^ε + k). Otherwise, it
    is replaced by one of the k other symbols.

    Args:
        maximum: The upper end of the range.
        epsilon: The privacy budget.
        levels: The number k of steps of the grid. By default it is ceil(e^{ε/3}), but at most 255.

    Raises:
        ValueError: If an argument is out of range.

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

    def __repr__(self) -> str:
        return f"ScalarDP(maximum={self.maximum!r}, epsilon={self.epsilon!r}, levels={self.levels})"

    @property
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""
        return f"scalardp {self.levels} {self.epsilon!r}"

    @cached_property
    def _stays(self) -> exact.InverseCdf:
        return exact.bernoulli(lambda: arb(self.epsilon) - arb(self.levels).log())

    def weights(self) -> tuple[arb, arb]:
        """Return the probabilities of the kept and of another symbol, times the number of symbols."""
        odds = arb(self.epsilon).exp()
        low = (self.levels + 1) / (odds + self.levels)
        return odds * low, low

    def _position(self, value: object) -> float:
        inside = min(max(checks.real("value", value, -math.inf, math.inf), 0.0), self.maximum)
        return self.levels * (inside / self.maximum)

    def privatize(self, value: float, rng: Rng) -> int:
        """Privatise a number.

        Args:
            value: The number, which is clamped to [0, maximum].
            rng: The private generator.

        Returns:
            A symbol in 0..levels.

        Raises:
            ValueError: If the value is not a number.
        """
        position = self._position(value)
        check_rng(rng)
        lower = min(int(position), self.levels - 1)
        symbol = lower + (rng.uniform() < position - lower)
        return respond(symbol, self.levels + 1, self._stays, rng)

    def privatize_many(self, values: Floats, rng: Rng) -> Symbols:
        """Return a symbol for each value, with the law of ``privatize``."""
        positions = self.levels * (np.clip(values, 0.0, self.maximum) / self.maximum)
        lower = np.minimum(positions.astype(np.int64), self.levels - 1)
        symbols = lower + (rng.uniforms(lower.size) < positions - lower)
        moves = 1 - self._stays.draw_many(lower.size, rng)
        shifts = 1 + rng.below_many(np.full(lower.size, self.levels))
        return np.asarray((symbols + moves * shifts) % (self.levels + 1), np.uint8)

    def estimate(self, symbol: int) -> float:
        """Compute the unbiased estimate a (J - b).

        The constants are a = (e^ε + k) R / ((e^ε - 1) k) and b = k (k+1) / (2 (e^ε + k)) for the range R.

        Args:
            symbol: The symbol J of a report.

        Returns:
            The estimate, which may be outside of [0, maximum].

        Raises:
            ValueError: If the symbol is out of range.
        """
        symbol, odds = checks.integer("symbol", symbol, 0, self.levels), math.exp(-self.epsilon)
        k = self.levels
        slope = (1 + k * odds) * self.maximum / (-math.expm1(-self.epsilon) * k)
        return slope * (symbol - k * (k + 1) * odds / (2 * (1 + k * odds)))

    def variance(self, value: float) -> float:
        """Compute the variance of the estimate in closed form.

        Args:
            value: The number, which is clamped to [0, maximum].

        Returns:
            The variance, which is computed without overflow for large ε.

        Raises:
            ValueError: If the value is not a number.
        """
        position = self._position(value)
        k, odds = self.levels, math.exp(-self.epsilon)
        part = position - math.floor(position)
        gain, whole = -math.expm1(-self.epsilon), 1 + k * odds
        second = (gain * (position**2 + part * (1 - part)) + odds * k * (k + 1) * (2 * k + 1) / 6) / whole
        first = (gain * position + odds * k * (k + 1) / 2) / whole
        slope = whole * self.maximum / (gain * k)
        return slope**2 * max(second - first**2, 0.0)

    def log_density(self, symbol: int, value: float) -> float:
        """Compute the log probability of a symbol, including the rounding.

        Args:
            symbol: The symbol of a report.
            value: The number, which is clamped to [0, maximum].

        Returns:
            The natural logarithm of the probability.

        Raises:
            ValueError: If the symbol is out of range or the value is not a number.
        """
        symbol = checks.integer("symbol", symbol, 0, self.levels)
        here = max(0.0, 1.0 - abs(self._position(value) - symbol))
        spread = -self.epsilon - math.log1p(self.levels * math.exp(-self.epsilon))
        if here == 0:
            return spread
        return math.log(here + (1 - here) * math.exp(-self.epsilon)) + spread + self.epsilon


class Sized(Mechanism):
    """A code of the vector, and the vector's size by ScalarDP where there is a ``symbol``.

    Guarantees
    ----------
    * ε = ε1 + ε2, pure LDP of all columns together: tests/schemes/test_privacy.py::test_exact_privacy, and
      ::test_what_is_sent_has_the_density_that_privacy_is_proved_of.
    """

    norm: ScalarDP | None

    @property
    def symbol(self) -> ScalarDP | None:
        """The mechanism for the size over the bound, or None where the size is not reported."""
        return self.norm

    @property
    @abstractmethod
    def code(self) -> tuple[AnyColumn, float, Densities]:
        """The column of the code, its ε and its densities."""

    @cached_property
    def traits(self) -> Traits:
        sizes = [] if self.symbol is None else [self.symbol.weights]
        return Traits(has_symbol=bool(sizes), blanket=(self.code[2], *sizes))

    @cached_property
    def layout(self) -> Layout:
        column = self.code[0]
        return (column,) if self.symbol is None else (column, Column(1, self.symbol.levels + 1))

    @cached_property
    def privacy(self) -> Privacy:
        parts = [self.code[1]] + ([] if self.symbol is None else [self.symbol.epsilon])
        return Privacy(epsilon=add_up(*parts), notion="local")

    def with_symbol(self, codes: Array, size: float | None, rng: Rng) -> Columns:
        """Return the codes, and the private symbol of a size over the bound."""
        if self.symbol is None or size is None:
            return (codes,)
        return codes, np.array([self.symbol.privatize(size, rng)], np.uint8)

    def symbol_density(self, columns: Columns, size: float | None) -> float:
        """ln P(symbol | size); 0 where there is none."""
        if self.symbol is None or size is None:
            return 0.0
        return self.symbol.log_density(int(columns[1][0]), size)

    def magnitude(self, columns: Columns, bound: float) -> float | None:
        return None if self.symbol is None else bound * self.symbol.estimate(int(columns[1][0]))

    def magnitudes(self, columns: Columns, bound: float) -> list[float]:
        if self.symbol is None:
            return []
        sizes = [bound * self.symbol.estimate(symbol) for symbol in range(self.symbol.levels + 1)]
        return [sizes[symbol] for symbol in columns[1][:, 0].tolist()]


# ---------------------------------------------------------------- shares of a budget

_NORM_SHARES = ((1000.0, 10.0), (60.0, 6.0), (20.0, 4.0), (8.0, 2.0), (4.0, 1.5), (2.0, 1.0))
"""(least ε, ε2): near the minimum of (1 + Var(norm) / norm²) / m(ε - ε2)², which hardly depends on the
dimension; a table, so that client and server agree to the last bit."""


def equal_share(epsilon: float, parts: int) -> float:
    """Return the largest float that ``parts`` times never exceeds epsilon."""
    share = divided(epsilon, parts)
    if share < LEAST_EPSILON:
        raise ValueError(
            f"epsilon = {epsilon!r} over {parts} coordinates leaves {share:g} for each; "
            f"at most {int(epsilon / LEAST_EPSILON)} coordinates can be sent"
        )
    return share


def split(epsilon: float, norm_epsilon: float | None) -> tuple[float, ScalarDP]:
    """ε1 for the direction, and ScalarDP for norm / bound with ε2 = ``norm_epsilon`` (default: a table).

    >>> split(400.0, None)
    (394.0, ScalarDP(maximum=1.0, epsilon=6.0, levels=8))
    """
    if norm_epsilon == 0:
        raise ValueError("norm_epsilon = 0: only sparse codes can omit the norm")
    if norm_epsilon is None:
        share = next((share for least, share in _NORM_SHARES if epsilon >= least), epsilon / 2)
    else:
        share = checks.real("norm_epsilon", norm_epsilon, 1e-3 * epsilon, 0.999 * epsilon)
    return take_away(epsilon, share), ScalarDP(1.0, share)


def log_densities(weights: Densities, log_outputs: Callable[[], arb]) -> tuple[float, float]:
    """(ln A, ln B) from A and B times the number of outputs, rounded towards each other: at most ε apart."""
    return (
        exact.rounded(lambda: weights()[0].log() - log_outputs(), -math.inf),
        exact.rounded(lambda: weights()[1].log() - log_outputs(), math.inf),
    )
