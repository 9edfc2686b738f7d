"""Formatting of numbers and untrusted strings for display."""

from __future__ import annotations

import html
import math
import unicodedata

MISSING = "–"


def clean(text: str) -> str:
    """One line without control characters or lone surrogates, which file names may contain."""
    return "".join(
        letter
        if letter.isprintable() or unicodedata.category(letter) == "Zs"
        else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


def escape(text: object) -> str:
    """Escape text for use between tags and in quoted attributes."""
    return html.escape(clean(str(text)), quote=True)


def number(value: float) -> str:
    """A number with at most four significant digits and thousands separators.

    >>> number(24000.0), number(0.123456), number(float("inf"))
    ('24,000', '0.1235', 'infinite')
    """
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(value: float) -> str:
    """A share in percent, to one decimal.

    >>> percent(0.9213).split()
    ['92.1', '%']
    """
    return MISSING if math.isnan(value) else f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def interval(mean: float, half: float, *, share: bool) -> str:
    """A mean, in percent if it is a share, with half the width of its confidence interval if there is one.

    >>> interval(0.9213, 0.0041, share=True), interval(0.25, 0.01, share=False)
    ('92.1\\xa0% ± 0.4', '0.25 ± 0.01')
    """
    if share:
        return percent(mean) + ("" if math.isnan(half) else f" ± {100 * half:.1f}")
    return number(mean) + ("" if math.isnan(half) else f" ± {half:.2g}")


def listed(names: list[str]) -> str:
    """Join names for a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: int, name: str) -> str:
    """A count with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count:,} {name}" + ("" if count == 1 else "s")
