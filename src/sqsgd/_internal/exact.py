"""Exact arithmetic: decisions in ball arithmetic, exact draws, exact sums of epsilons."""

import math
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from flint import arb, ctx, fmpq

from sqsgd._internal import checks

Answer = TypeVar("Answer")
Words = npt.NDArray[np.uint64]
Densities = Callable[[], tuple[arb, arb]]  # a high and a low density, enclosed at the working precision
START_BITS, MOST_BITS = 128, 1 << 20
_LAST_WORD = 2**64 - 1
_lock = threading.RLock()  # Arb's working precision is a global setting of the process


class Source(Protocol):
    """Where random words come from: ``sqsgd.core.random.Rng``."""

    def word(self) -> int: ...  # uniform below 2^64
    def words(self, count: int) -> npt.NDArray[np.uint64]: ...
    def uniforms(self, count: int) -> npt.NDArray[np.float64]: ...  # multiples of 2^-53 in [0, 1)


def _unlock_after_fork() -> None:
    """In a child process: the thread that held the lock or changed the precision does not exist there."""
    global _lock
    _lock, ctx.prec = threading.RLock(), 53


os.register_at_fork(after_in_child=_unlock_after_fork)


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Work with ``bits`` bits of precision; one thread at a time."""
    with _lock, ctx.workprec(bits):
        yield


def settle(question: Callable[[], Answer | None]) -> Answer:
    """Ask at increasing precision until the enclosures decide. Returns the first answer that is not None."""
    bits = START_BITS
    while bits <= MOST_BITS:
        with precision(bits):
            answer = question()
        if answer is not None:
            return answer
        bits *= 2
    raise ArithmeticError(f"undecided at {MOST_BITS} bits of precision: the two sides look equal")


def nearest(value: Callable[[], arb]) -> float:
    """Return the value as a float, within one unit in the last place (zero if it is below 2^-1100)."""

    def question() -> float | None:
        ball = value()
        tight = ball.rel_accuracy_bits() >= 60 or abs(ball) < arb(2) ** -1100
        return float(ball.mid()) if tight else None

    return settle(question)


def rounded(value: Callable[[], arb], towards: float) -> float:
    """Return the value as a float on the side of ``towards`` (an infinity), at most two units away."""

    def question() -> float | None:
        ball = value()
        result = float(ball.mid())
        for _ in range(3):
            beyond = arb(result) >= ball if towards > 0 else arb(result) <= ball
            if beyond:
                return result
            result = math.nextafter(result, towards)
        return None

    return settle(question)


# ---------------------------------------------------------------- binomial tails


def log_match_probability(dim: int, levels: int | fmpq, matches: int) -> arb:
    """ln P(X = matches) for X ~ Binomial(dim, 1/levels): chance matches between two code vectors."""
    whole = arb(dim + 1).lgamma() - arb(matches + 1).lgamma() - arb(dim - matches + 1).lgamma()
    return whole + (dim - matches) * arb(levels - 1).log() - dim * arb(levels).log()


def _ratio_above(dim: int, levels: int | fmpq, matches: int) -> tuple[int, int | fmpq]:
    """P(X = matches + 1) / P(X = matches) as a fraction; it decreases as matches increase."""
    return dim - matches, (matches + 1) * (levels - 1)


def _ratio_below(dim: int, levels: int | fmpq, matches: int) -> tuple[int | fmpq, int]:
    """P(X = matches - 1) / P(X = matches) as a fraction; it decreases as matches decrease."""
    return matches * (levels - 1), dim - matches + 1


def _relative_tail(dim: int, levels: int | fmpq, start: int, upward: bool) -> arb:
    """Sum of P(X = l) / P(X = start) over l from start outward, where the ratios are below one.

    It stops once the geometric series that bounds the rest is negligible, and is widened by it. Arb's
    incomplete beta function takes 10 to 1,000 times as long for the parameters used here.
    """
    ratio = _ratio_above if upward else _ratio_below
    step = 1 if upward else -1
    total = term = arb(1)
    negligible = arb(2) ** -ctx.prec
    at = start
    while True:
        top, bottom = ratio(dim, levels, at)
        if top == 0:
            return total
        if (at - start) % 16 == 0:
            rest = term * top / (bottom - top)
            if rest < negligible * total:
                return total + rest.union(arb(0))
        term = term * top / bottom
        total += term
        at += step


@lru_cache(maxsize=256)
def _log_tails(dim: int, levels: int | fmpq, threshold: int, bits: int) -> tuple[arb, arb]:
    if threshold > dim:
        return arb.neg_inf(), arb(0)
    if threshold <= 0:
        return arb(0), arb.neg_inf()
    # Sum the side on which the terms decrease from the threshold outward; the other is its complement.
    upward = threshold * levels > dim - levels + 1
    start = threshold if upward else threshold - 1
    summed = log_match_probability(dim, levels, start) + _relative_tail(dim, levels, start, upward).log()
    other = (-summed.exp()).log1p()
    return (summed, other) if upward else (other, summed)


def log_tails(dim: int, levels: int | fmpq, threshold: int) -> tuple[arb, arb]:
    """(ln P(X >= threshold), ln P(X < threshold)) for X ~ Binomial(dim, 1/levels)."""
    return _log_tails(dim, levels, threshold, ctx.prec)


def running_sum(
    dim: int, levels: int, first: int, last: int, weight: arb, before: arb, negligible: arb
) -> Iterator[tuple[int, arb]]:
    """(l, before + weight * P(first <= X <= l)) for consecutive l where the sum still changes.

    Negligible mass at both ends is omitted; the mass before the start widens the enclosures.
    """
    peak = min(max(dim // levels, first), last)

    def outward(step: int, stop: int) -> tuple[list[arb], arb]:
        """Terms from the peak (exclusive) outward, and a bound on the mass beyond them."""
        ratio = _ratio_above if step > 0 else _ratio_below
        terms: list[arb] = []
        at, term = peak, peak_term
        while at != stop:
            top, bottom = ratio(dim, levels, at)
            if top < bottom:
                beyond = term * top / (bottom - top)
                if beyond < negligible:
                    return terms, beyond
            term = term * top / bottom
            terms.append(term)
            at += step
        return terms, arb(0)

    peak_term = weight * log_match_probability(dim, levels, peak).exp()
    below, missing = outward(-1, first)
    above, _ = outward(1, last)
    total = before + missing.union(arb(0))
    yield peak - len(below) - 1, total
    for value, term in enumerate([*reversed(below), peak_term, *above], start=peak - len(below)):
        total += term
        yield value, total


# ---------------------------------------------------------------- exact draws


class InverseCdf:
    """Draws an integer from 0..top, exactly: the least v with U < P(X <= v), U uniform on [0, 1).

    ``cdf(v)`` encloses P(X <= v) at the working precision. ``edges`` are (v, cdf(v)) in increasing order for
    the values that 64 random bits can reach. A draw that they do not decide takes more bits: no tail is cut.

    Guarantees
    ----------
    * The distribution is exactly ``cdf``: tests/internal/test_exact.py,
      tests/mechanisms/test_sampler_tables.py.
    """

    def __init__(self, top: int, cdf: Callable[[int], arb], edges: Iterable[tuple[int, arb]]) -> None:
        self._top, self._cdf = top, cdf
        self._values: list[int] = []
        self._below: list[int] = []  # words below this are certainly below the edge
        self._above: list[int] = []  # words above this are certainly above the edge
        for value, edge in edges:
            scaled = edge * 2**64
            self._values.append(value)
            self._below.append(_whole(scaled.lower()))
            self._above.append(_whole(scaled.upper()))
        # Every word is below the edge of ``top``, which is added here so that all draws take one path.
        self._ends, self._sure = [*self._values, top], [*self._below, 2**64]

    def draw(self, rng: Source) -> int:
        """One exact draw."""
        word = rng.word()
        i = bisect_left(self._above, word)  # the first edge that the word may be below
        before = self._ends[i - 1] if i else -1
        if word < self._sure[i] and before == self._ends[i] - 1:
            return self._ends[i]
        return self.continue_from(word, rng)

    def draw_many(self, count: int, rng: Source) -> npt.NDArray[np.int64]:
        """``count`` exact draws: a word each, and further ones for those that their word does not decide."""
        words, (ends, below, above) = rng.words(count), self._arrays
        i = np.searchsorted(above[1:], words, "left")
        before = np.where(i > 0, ends[i - 1], -1)
        sure = ((i == 0) | (words > above[i])) & ((i == ends.size - 1) | (words < below[i]))
        values = ends[i]
        for place in np.flatnonzero(~sure | (before != values - 1)).tolist():
            values[place] = self.continue_from(int(words[place]), rng)
        return values

    @cached_property
    def _arrays(self) -> tuple[npt.NDArray[np.int64], Words, Words]:
        """For each end: the words that are certainly below its edge, and above the edge before it."""
        below, above = (
            np.array([min(word, _LAST_WORD) for word in table], np.uint64)
            for table in (self._sure, [0, *self._above])
        )
        return np.array(self._ends, np.int64), below, above

    def continue_from(self, word: int, rng: Source) -> int:
        """Return the exact draw whose first 64 bits are ``word``, when these bits do not decide it."""
        bits = 64
        while True:
            with precision(bits + START_BITS):
                found = self._search(word, bits)
            if found is not None:
                return found
            word, bits = word << 64 | rng.word(), bits + 64

    def _search(self, word: int, bits: int) -> int | None:
        """Return the draw for U in [word, word + 1) / 2^bits, if it is the same for all of them."""
        low, high = arb(word) / arb(2) ** bits, arb(word + 1) / arb(2) ** bits
        least, most = 0, self._top
        while least < most:
            middle = (least + most) // 2
            edge = self._cdf(middle)
            if high <= edge:
                most = middle
            elif low >= edge:
                least = middle + 1
            else:
                return None
        return least


def _whole(number: arb) -> int:
    """Return the floor of an exact number, at least zero."""
    floor = number.floor().unique_fmpz()
    if floor is None:
        raise ArithmeticError(f"{number} is not exact")
    return max(0, int(floor))


def bernoulli(log_odds: Callable[[], arb]) -> InverseCdf:
    """Return an exact draw that is 1 with probability 1 / (1 + exp(-log_odds)), else 0."""

    def cdf(value: int) -> arb:
        return arb(1) if value else 1 / (1 + log_odds().exp())

    with precision(START_BITS):
        return InverseCdf(1, cdf, [(0, cdf(0))])


_UNITS = 1 << 1074


def to_units(number: float) -> int:
    """Return a finite float as a whole number of units, exactly."""
    top, bottom = number.as_integer_ratio()
    return top * (_UNITS // bottom)


def from_units(units: int) -> Fraction:
    """Return the number of units as an exact fraction."""
    return Fraction(units, _UNITS)


def rounded_up(number: Fraction) -> float:
    """Return the least float not below the number."""
    try:
        result = float(number)
    except OverflowError:
        return math.inf
    return math.nextafter(result, math.inf) if result < number else result


def rounded_down(number: Fraction) -> float:
    """Return the greatest float not above the number."""
    return -rounded_up(-number) + 0.0  # never -0.0, which would look like an error in reports


def total(epsilon: float, reports: int) -> float:
    """Return the epsilon of ``reports`` reports of ``epsilon`` each: the exact product, rounded up.

    tests/internal/test_exact.py::test_totals_are_never_too_small.
    """
    return math.inf if math.isinf(epsilon) else rounded_up(Fraction(epsilon) * reports)


def add_up(*epsilons: float) -> float:
    """Return the exact sum, rounded up."""
    return rounded_up(sum(map(Fraction, epsilons), Fraction()))


def take_away(epsilon: float, part: float) -> float:
    """epsilon - part, rounded down: the result plus ``part`` never exceeds epsilon."""
    return rounded_down(Fraction(epsilon) - Fraction(part))


def divided(epsilon: float, parts: int) -> float:
    """epsilon / parts, rounded down."""
    return rounded_down(Fraction(epsilon) / parts)


def cost(name: str, value: object) -> float:
    """A finite positive number as a float not below it (a large integer may not be exact as a float)."""
    number = checks.positive(name, value)
    return math.nextafter(number, math.inf) if number < value else number  # type: ignore[operator]


def three_digits(epsilon: float, digits: int = 3) -> str:
    """Return an ε as text with so many significant digits, rounded up, so that no statement is below it.

    >>> three_digits(0.138111), three_digits(4.0)
    ('0.139', '4')
    """
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(epsilon)):g}"
