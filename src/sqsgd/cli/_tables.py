"""Tables for people and JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import typer


def print_json(value: object) -> None:
    """JSON, which knows neither infinity nor NaN."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def cell(value: object) -> str:
    """A value as a table shows it; nothing for None.

    >>> cell(400.0), cell(None), cell(12)
    ('400', '', '12')
    """
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table as wide as the terminal, or wide enough for all of it elsewhere.

    Cells are shown as they are: some quote what servers sent, and brackets would be read as colours.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    above = None if title is None else Text(title, style="table.title")
    table = Table(*columns, box=None, header_style="bold", title=above, title_justify="left")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else 250).print(table)
