"""``sqsgd bench``: measure speed, and how well each scheme estimates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from sqsgd.cli._tables import print_json, print_table
from sqsgd.cli.options import Json, given

if TYPE_CHECKING:
    from sqsgd.measurement.estimation import Estimation


_NAME = 40
"""Width of the names in lines of 80 columns; longer ones have a line of their own."""


def bench(
    context: typer.Context,
    schemes: Annotated[
        bool, typer.Option("--schemes", help="Measure error, bytes and times of every scheme instead.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="With --schemes: seconds per scheme and setting.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Measure speed as ratios within one run: against straightforward NumPy, and a copy of the vector.

    Exits with 1 if a target is missed. With --schemes, measure how well each scheme estimates a vector.
    """
    if "seconds" in given(context) and not schemes:
        raise ValueError("--seconds needs --schemes: the other measurements take the time they need")
    if schemes:
        _estimation(seconds, as_json)
        return
    from sqsgd.measurement.speed import all_figures

    figures = []
    for figure in all_figures():
        figures.append(figure)
        if not as_json:
            row = figure.to_dict()
            target = f"{row['target']} {'met' if figure.met else 'MISSED'}" if row["target"] else ""
            long = len(figure.name) > _NAME
            if long:
                typer.echo(figure.name)
            name = "" if long else figure.name
            typer.echo(f"{name:{_NAME}} {figure.value:10.3f} {figure.unit:13} {target}".rstrip())
    if as_json:
        print_json([figure.to_dict() for figure in figures])
    raise typer.Exit(0 if all(figure.met for figure in figures) else 1)


def _estimation(seconds: float, as_json: bool) -> None:
    from sqsgd import checks
    from sqsgd.measurement.estimation import SETTINGS, estimations

    checks.real("seconds", seconds, 0.0, 3600.0)
    if as_json:
        print_json([row.to_dict() for row in estimations(SETTINGS, seconds)])
        return
    for setting in SETTINGS:
        rows = sorted(estimations((setting,), seconds), key=lambda row: (row.notion, row.where, row.nmse))
        print_table(
            list(_COLUMNS),
            [[text(row) for text in _COLUMNS.values()] for row in rows],
            title=f"dim {setting.dim:,}, epsilon {setting.epsilon:g}, {setting.bits:,} bits: "
            f"the optimum (PrivUnit) is {setting.optimum:.4g}",
        )
        typer.echo()


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""


_COLUMNS: dict[str, Callable[[Estimation], str]] = {
    "scheme": lambda row: row.scheme,
    "notion": lambda row: row.notion if row.notion != "central" else "central: needs secure aggregation",
    "error of": lambda row: row.where,
    "NMSE ± 95 %": lambda row: f"{row.nmse:.4g} ± {row.half_width:.2g}",
    "predicted": lambda row: _number(row.predicted),
    "/ optimum": lambda row: _number(row.ratio_to_optimum),
    "bytes": lambda row: f"{row.message_bytes:,}",
    "encode ms": lambda row: f"{row.encode_ms:.2f}",
    "decode ms": lambda row: f"{row.decode_ms:.2f}",
}
