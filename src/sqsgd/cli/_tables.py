"""What commands print: tables and paragraphs as wide as the terminal, or JSON with ``--json``."""

from __future__ import annotations

import itertools
import json
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence

import typer

GAP, LONG = 2, 24


def print_json(value: object) -> None:
    """Print JSON; ValueError for infinity and NaN, which JSON cannot represent."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_result(as_json: bool, value: object, *lines: str) -> None:
    """Print the value as JSON, or these lines."""
    if as_json:
        print_json(value)
    else:
        typer.echo("\n".join(lines))


def cell(value: object) -> str:
    """A value as text for a table; empty for None.

    >>> cell(400.0), cell(None), cell(12)
    ('400', '', '12')
    """
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def width() -> int:
    """The columns of the terminal, even if the output is piped: $COLUMNS, else of any stream, else 80."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    for descriptor in (1, 2, 0):
        try:
            return os.get_terminal_size(descriptor).columns or 80
        except OSError:
            continue
    return 80


def wrapped(text: str, indent: int = 0) -> str:
    """The text with every line broken between words at the terminal's width; what follows is indented."""
    return "\n".join("\n".join(_lines(line, width(), indent)) for line in text.splitlines())


def print_note(text: str) -> None:
    """Print on standard error; lines are broken if that is a terminal."""
    typer.echo(wrapped(text) if sys.stderr.isatty() else text, err=True)


def print_fields(fields: Iterable[tuple[str, object]], wide: int) -> None:
    """Print a name and a text per line, the texts below each other from this column on."""
    for name, text in fields:
        typer.echo(wrapped(f"{name:{wide - 1}} {text}", wide))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table that fits the terminal: cells are broken between words, never within.

    If not even the longest words fit beside each other, each row is printed as a list. Cells are printed
    verbatim, without control characters: some quote what servers sent. No-break spaces become spaces.
    """
    heads, *table = ([_printable(text) for text in row] for row in (columns, *rows))
    widths = _widths(list(zip(heads, *table, strict=True)), width() - GAP * (len(columns) - 1))
    if title is not None:
        _print_bold(wrapped(_printable(title)))
    if widths is None:
        indent = GAP + max(map(len, columns)) + GAP
        for row in table:
            named = [(name, text) for name, text in zip(heads, row, strict=True) if text]
            _print_bold(wrapped(named[0][1], GAP))
            for name, text in named[1:]:
                _print(wrapped(f"{'':{GAP}}{name:{indent - GAP}}{text}", indent))
        return
    for row in (heads, *table):
        cells = [_lines(text, wide) for text, wide in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            padded = (part.ljust(wide) for part, wide in zip(parts, widths, strict=True))
            (_print_bold if row is heads else _print)((" " * GAP).join(padded).rstrip())


def _print(text: str) -> None:
    typer.echo(text.replace("\N{NO-BREAK SPACE}", " "))


def _print_bold(text: str) -> None:
    _print(typer.style(text, bold=True))


def _widths(columns: Sequence[Sequence[str]], whole: int) -> list[int] | None:
    """The width of each column: as wide as its longest cell if possible, else at least its longest word.

    Words of more than LONG letters, such as paths, stick out of their column.
    """
    wanted = [max(map(len, texts)) for texts in columns]
    words = [{len(word) for text in texts for word in text.split(" ")} for texts in columns]
    widths = [max(length if length <= LONG else 0 for length in lengths) for lengths in words]
    left = whole - sum(widths)
    if left < 0:
        return None
    for index in sorted(range(len(columns)), key=lambda column: wanted[column] - widths[column]):
        more = min(left, wanted[index] - widths[index])  # columns that lack little are served first
        widths[index] += more
        left -= more
    return widths


def _lines(text: str, wide: int, indent: int = 0) -> list[str]:
    """The text broken between words; all lines but the first are indented."""
    wrapper = textwrap.TextWrapper(
        max(wide, 1), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text) or [""]


def _printable(text: str) -> str:
    """The text with a replacement for each control character."""
    return "".join(
        letter if letter.isprintable() or letter == "\N{NO-BREAK SPACE}" else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )
