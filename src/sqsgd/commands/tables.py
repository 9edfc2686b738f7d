"""Tables for people and JSON for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import typer


def print_json(value: object) -> None:
    """JSON, which knows neither infinity nor NaN."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table as wide as the terminal, or wide enough for all of it elsewhere."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, header_style="bold", title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 250).print(table)
