"""What commands print: tables and paragraphs as wide as the terminal, or JSON with ``--json``."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Sequence

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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table that fits the terminal: cells are broken between words, never within.

    If not even the longest words fit beside each other, each row is printed as a list. Cells are printed
    verbatim, without control characters: some quote what servers sent. No-break spaces become spaces.
    """
    texts = [[_printable(text) for text in row] for row in (columns, *rows)]
    widths = _widths(list(zip(*texts, strict=True)), width() - GAP * (len(columns) - 1))
    if title is not None:
        typer.echo(typer.style(wrapped(_printable(title)), bold=True))
    if widths is None:
        for row in texts[1:]:
            _print_record(texts[0], row)
        return
    for number, row in enumerate(texts):
        cells = [_lines(text, wide) for text, wide in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            parts = [lines[at] if at < len(lines) else "" for lines in cells]
            line = (" " * GAP).join(part.ljust(wide) for part, wide in zip(parts, widths, strict=True))
            line = line.rstrip().replace("\N{NO-BREAK SPACE}", " ")
            typer.echo(line if number else typer.style(line, bold=True))


def _widths(columns: Sequence[Sequence[str]], whole: int) -> list[int] | None:
    """The width of each column: as wide as its longest cell if possible, else at least its longest word.

    Words of more than LONG letters, such as paths, stick out of their column.
    """
    wanted = [max(map(len, texts)) for texts in columns]
    found = [max(_length(word) for text in texts for word in text.split(" ")) for texts in columns]
    left = whole - sum(found)
    if left < 0:
        return None
    for index in sorted(range(len(columns)), key=lambda each: wanted[each] - found[each]):
        more = min(left, wanted[index] - found[index])  # columns that lack little are served first
        found[index] += more
        left -= more
    return found


def _length(word: str) -> int:
    return len(word) if len(word) <= LONG else 0


def _print_record(columns: Sequence[str], row: Sequence[str]) -> None:
    """A row as a list of its cells that are not empty, the first as its heading."""
    indent = GAP + max(map(len, columns)) + GAP
    named = [(name, text) for name, text in zip(columns, row, strict=True) if text]
    for number, (name, text) in enumerate(named):
        line = text if not number else f"{'':{GAP}}{name:{indent - GAP}}{text}"
        shown = wrapped(line, indent if number else GAP).replace("\N{NO-BREAK SPACE}", " ")
        typer.echo(shown if number else typer.style(shown, bold=True))


def _lines(text: str, wide: int, indent: int = 0) -> list[str]:
    """The text broken between words; all lines but the first are indented."""
    broken = textwrap.wrap(
        text,
        max(wide, 1),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return broken or [""]


def _printable(text: str) -> str:
    return "".join(
        letter if letter.isprintable() or letter == "\N{NO-BREAK SPACE}" else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )
