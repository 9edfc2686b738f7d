"""The law of a sampler without statistics: from its random words, by bisection.

``edges`` finds, by bisection over all 2^64 first words, which words certainly lead to a value up to v and
which certainly lead beyond it. The distribution function must lie in between: ``check_edges`` compares it
with one that was computed independently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal, localcontext
from fractions import Fraction

from scripted import ScriptedRng

WORDS = 2**64
DIGITS = 1200
FURTHER = 20  # words that follow the first
BEYOND_THE_LAST_WORD = Fraction(1, WORDS**FURTHER)


def exponential(value: float | Fraction, digits: int = DIGITS) -> Fraction:
    """e^value to a relative 10^-digits, by the decimal module: independent of Arb."""
    with localcontext() as context:
        context.prec = digits + 10
        exact = Fraction(value)
        return Fraction((Decimal(exact.numerator) / Decimal(exact.denominator)).exp())


def first(holds: Callable[[int], bool], count: int = WORDS) -> int:
    """The first number below ``count`` for which a monotone predicate holds, or ``count``."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _drawn(draw: Callable[[ScriptedRng], int], word: int, further: int) -> int | None:
    """The draw for a first word and then always the same; None if hundreds of bits do not decide."""
    try:
        return int(draw(ScriptedRng(word, *[further] * FURTHER, WORDS // 2)))
    except IndexError:
        return None


def edges(draw: Callable[[ScriptedRng], int], value: int) -> tuple[int, int]:
    """The number of words that certainly give at most ``value``, and the first word that gives more.

    A word that does not decide by itself has been followed by the smallest and by the largest words.
    """

    def beyond(word: int) -> bool:
        least = _drawn(draw, word, 0)
        return least is not None and least > value

    def not_within(word: int) -> bool:
        most = _drawn(draw, word, WORDS - 1)
        return most is None or most > value

    return first(not_within), first(beyond)


def check_edges(
    draw: Callable[[ScriptedRng], int],
    cdf: Callable[[int], Fraction],
    values: Iterable[int],
    most_undecided: int = 2,
) -> None:
    """Each edge lies between the words that certainly decide, and the words in between draw on.

    So a value's share of the words that decide is its probability, up to the few words that do not; for those
    the second and third words are tried next to the edge.
    """
    for value in values:
        exact = cdf(value) * WORDS
        within, beyond = edges(draw, value)
        assert within <= exact + BEYOND_THE_LAST_WORD, (
            f"the edge after {value} is at {float(exact / WORDS)!r}"
        )
        assert exact <= beyond + BEYOND_THE_LAST_WORD, (
            f"the edge after {value} is at {float(exact / WORDS)!r}"
        )
        assert beyond - within <= most_undecided, f"{beyond - within} words at {value} decide nothing"
        if within == beyond or not 0 < exact < WORDS:
            continue
        word, rest = divmod(int(exact * WORDS**2), WORDS**2)
        for step in (-1, 1):
            if 0 <= rest + step < WORDS**2:
                further = ScriptedRng(word, *divmod(rest + step, WORDS), WORDS // 2)
                drawn = int(draw(further))
                assert (drawn <= value) == (step < 0), f"the words beyond the first at {value} are ignored"
