"""Measuring speed and estimation error."""

from __future__ import annotations

import typer

from sqsgd.commands.options import Json
from sqsgd.commands.tables import print_json


def bench(as_json: Json = False) -> None:
    """Measure speed as ratios within one run: ours, straightforward NumPy, and a copy of the vector.

    Exits with 1 if a target is missed.
    """
    from sqsgd.bench import all_figures

    figures = []
    for figure in all_figures():
        figures.append(figure)
        if not as_json:
            row = figure.to_dict()
            target = f"{row['target']} {'met' if figure.met else 'MISSED'}" if row["target"] else ""
            typer.echo(f"{figure.name:48} {figure.value:10.3f} {figure.unit:14} {target}")
    if as_json:
        print_json([figure.to_dict() for figure in figures])
    raise typer.Exit(0 if all(figure.met for figure in figures) else 1)
