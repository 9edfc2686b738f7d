"""Infinity and NaN as strings, for JSON."""

from __future__ import annotations

import math

NUMBERS = {"infinity": math.inf, "-infinity": -math.inf, "nan": math.nan}
"""The inverse of ``worded``."""


def worded(value: object) -> object:
    """The value, with infinity and NaN as strings.

    >>> worded(float("inf")), worded(float("nan")), worded(0.5), worded("text")
    ('infinity', 'nan', 0.5, 'text')
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "infinity" if value > 0 else "nan" if math.isnan(value) else "-infinity"
    return value


def known(value: object) -> object:
    """The value, with infinity as a string, and NaN and minus infinity (unknown values) as None.

    >>> known(float("inf")), known(float("nan")), known(0.5)
    ('infinity', None, 0.5)
    """
    word = worded(value)
    return word if word is value or word == "infinity" else None
