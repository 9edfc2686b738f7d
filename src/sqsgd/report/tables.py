"""Values as text, and rows of cells for pages and CSV files."""

import csv
import io
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

MISSING = "–"


class Shown(NamedTuple):
    """A value that pages show as another text."""

    value: str | float
    text: str


Cell = str | float | Shown
Row = Mapping[str, Cell]
"""The cells of a row by the names of their columns in CSV files."""


def clean(text: str) -> str:
    """One line without control characters or lone surrogates, which file names may contain."""
    kept = (letter if letter.isprintable() or unicodedata.category(letter) == "Zs" else "" for letter in text)
    return "".join(letter or "\N{REPLACEMENT CHARACTER}" for letter in kept)


def number(value: float) -> str:
    """Return a number with at most four significant digits and thousands separators.

    >>> number(24000.0), number(0.123456), number(float("inf"))
    ('24,000', '0.1235', 'infinite')
    """
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(value: float) -> str:
    """Return a share in percent, to one decimal.

    >>> percent(0.9213).split()
    ['92.1', '%']
    """
    return MISSING if math.isnan(value) else f"{100 * value:.1f}\N{NO-BREAK SPACE}%"


def interval(mean: float, half: float, *, share: bool) -> str:
    """Return a mean, in percent if it is a share, with half the width of its confidence interval if there is
    one.

    >>> interval(0.9213, 0.0041, share=True), interval(0.25, 0.01, share=False)
    ('92.1\\xa0% ± 0.4', '0.25 ± 0.01')
    """
    if share:
        return percent(mean) + ("" if math.isnan(half) else f" ± {100 * half:.1f}")
    return number(mean) + ("" if math.isnan(half) else f" ± {half:.2g}")


def listed(names: Sequence[str]) -> str:
    """Join names for a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def counted(count: int, name: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def csv_text(rows: Sequence[Row]) -> str:
    """Rows with the same keys as CSV: numbers in full, a missing value empty, infinity as ``inf``."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    writer.writerows([_csv_cell(_value(cell)) for cell in row.values()] for row in rows)
    return buffer.getvalue()


def text(cell: Cell) -> str:
    """What pages show."""
    return cell.text if isinstance(cell, Shown) else cell if isinstance(cell, str) else number(cell)


def sort_key(cell: Cell) -> str | None:
    """The number to sort by, or None for text. JavaScript parses Infinity. A missing value sorts last."""
    value = _value(cell)
    if isinstance(value, str):
        return None
    return "" if math.isnan(value) else "Infinity" if math.isinf(value) else repr(float(value))


def _value(cell: Cell) -> str | float:
    return cell.value if isinstance(cell, Shown) else cell


def _csv_cell(value: str | float) -> str:
    if isinstance(value, str):  # a spreadsheet would compute what begins like a formula
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t")) else value
    return "" if math.isnan(value) else repr(value)
