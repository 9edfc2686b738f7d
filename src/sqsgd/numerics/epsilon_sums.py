"""Exact sums of epsilons: every float is a whole number of units of 2^-1074."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context
from fractions import Fraction

from sqsgd import checks

_UNITS = 1 << 1074


def to_units(number: float) -> int:
    """A finite float as a whole number of units, exactly.

    >>> to_units(0.1) + to_units(0.2) == to_units(0.3)
    False
    """
    top, bottom = number.as_integer_ratio()
    return top * (_UNITS // bottom)


def from_units(units: int) -> Fraction:
    """The number of units as an exact fraction.

    >>> from_units(to_units(0.5))
    Fraction(1, 2)
    """
    return Fraction(units, _UNITS)


def rounded_up(number: Fraction) -> float:
    """The least float not below the number.

    >>> rounded_up(Fraction(0.1) + Fraction(0.2)), rounded_up(Fraction(1, 3)) > 1 / 3
    (0.30000000000000004, True)
    """
    try:
        result = float(number)
    except OverflowError:
        return math.inf
    return math.nextafter(result, math.inf) if result < number else result


def rounded_down(number: Fraction) -> float:
    """The greatest float not above the number.

    >>> rounded_down(Fraction(0)), rounded_down(Fraction(1, 3)) < Fraction(1, 3)
    (0.0, True)
    """
    return -rounded_up(-number) + 0.0  # never -0.0, which would look like an error in reports


def total(epsilon: float, reports: int) -> float:
    """The epsilon of ``reports`` reports of ``epsilon`` each: the exact product, rounded up.

    Guarantees
    ----------
    * Never below the exact product:
      tests/numerics/test_epsilon_sums.py::test_totals_are_never_too_small.

    >>> total(1.1, 20), 1.1 * 20, total(math.inf, 3)
    (22.000000000000004, 22.0, inf)
    """
    return math.inf if math.isinf(epsilon) else rounded_up(Fraction(epsilon) * reports)


def add_up(*epsilons: float) -> float:
    """The exact sum, rounded up."""
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


def limit(name: str, value: object) -> float:
    """A finite positive number as a float not above it."""
    number = checks.positive(name, value)
    return math.nextafter(number, 0.0) if number > value else number  # type: ignore[operator]


def four_digits(epsilon: float) -> str:
    """An ε as text with four significant digits, rounded up: what is stated is never below it.

    >>> four_digits(0.138111), four_digits(4.0)
    ('0.1382', '4')
    """
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(epsilon)):g}"
