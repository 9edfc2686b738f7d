"""What commands print: tables, or JSON with ``--json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import typer


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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table as wide as the terminal, or 250 characters wide if the output is not a terminal.

    Cells are printed verbatim: some quote what servers sent, and rich would read brackets as markup.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    above = None if title is None else Text(title, style="table.title")
    table = Table(*columns, box=None, header_style="bold", title=above, title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else 250).print(table)
