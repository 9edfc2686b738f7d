"""The command line: thin. Each command imports what it needs, so that ``sqsgd --help`` is quick."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sqsgd import __version__

app = typer.Typer(
    name="sqsgd",
    help="Federated learning in a few hundred bytes a round, under a proved local privacy guarantee.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sqsgd {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def schemes(
    dim: Annotated[int, typer.Option(help="Length of the vectors.")] = 119850,
    epsilon: Annotated[float, typer.Option(help="Privacy budget of one report.")] = 400.0,
    bytes_: Annotated[int, typer.Option("--bytes", help="Bytes for the packed codes of one report.")] = 256,
    as_json: Json = False,
) -> None:
    """List the schemes with what each promises and sends under a budget."""
    from sqsgd.schemes import SCHEMES, make_scheme

    rows = []
    for name, function in SCHEMES.items():
        scheme = make_scheme(name, dim=dim, epsilon=epsilon, bits=8 * bytes_)
        rows.append(
            {
                "name": name,
                "notion": scheme.privacy.notion,
                "epsilon": scheme.privacy.epsilon,
                "delta": scheme.privacy.delta,
                "message_bytes": scheme.bits // 8,
                "code_bytes": -(-scheme.code_bits // 8),
                "keeps_residual": scheme.residual,
                "summary": (function.__doc__ or "").strip().splitlines()[0],
            }
        )
    if as_json:
        _print_json([{**row, "epsilon": _finite(row["epsilon"])} for row in rows])
        return
    columns = ("name", "notion", "epsilon", "message_bytes", "summary")
    _print_table(columns, [[_cell(row[column]) for column in columns] for row in rows])


@app.command()
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
        _print_json([figure.to_dict() for figure in figures])
    raise typer.Exit(0 if all(figure.met for figure in figures) else 1)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def _finite(number: object) -> object:
    """JSON knows no infinity: it is written as a word."""
    return "infinity" if number == float("inf") else number


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _print_table(columns: tuple[str, ...], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def main() -> None:
    """Run a command; what the user got wrong ends in one line and exit status 2."""
    try:
        app()
    except ValueError as error:
        typer.echo(f"sqsgd: {error}", err=True)
        sys.exit(2)
