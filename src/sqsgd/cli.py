"""The command line: thin. Each command imports what it needs, so that ``sqsgd --help`` is quick."""

from __future__ import annotations

import json
import sys
from pathlib import Path
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


data_app = typer.Typer(help="List and fetch the data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the data sets (default: $SQSGD_DATA).")
]


@app.command()
def train(
    scheme: Annotated[str | None, typer.Option(help="How gradients travel; see `sqsgd schemes`.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="mnist5k, mnist, ... or package.module:factory.")
    ] = None,
    data_dir: DataDir = None,
    model: Annotated[
        str | None, typer.Option(help="lenet5, resnet110, ... or package.module:factory.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in all.")] = None,
    participation: Annotated[str | None, typer.Option(help="all, or clients a round.")] = None,
    partition: Annotated[str | None, typer.Option(help="iid, dirichlet:BETA or shards:N.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images of a client's batch.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of one report.")] = None,
    bytes_: Annotated[int | None, typer.Option("--bytes", help="Bytes for the packed codes.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in all.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; 0: by the rule for all budgets.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum or adam.")] = None,
    bound: Annotated[float | None, typer.Option(help="Initial bound.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides everything but secure noise.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the scheme, such as levels=8; repeatable.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="local.")] = None,
    tensorboard: Annotated[bool | None, typer.Option("--tensorboard", help="Write events too.")] = None,
    secure: Annotated[bool | None, typer.Option("--secure", help="Noise that cannot be repeated.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with any of these keys.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model over simulated clients; ends with a summary and a folder on disk."""
    from sqsgd import commands

    given = {
        "scheme": scheme, "dataset": dataset, "data_dir": None if data_dir is None else str(data_dir),
        "model": model, "clients": clients, "participation": participation, "partition": partition,
        "batch": batch, "epsilon": epsilon, "bytes": bytes_, "rounds": rounds, "lr": lr,
        "optimizer": optimizer, "bound": bound, "seed": seed, "engine": engine, "tensorboard": tensorboard,
        "secure": secure, "options": _options(option) if option else None,
    }  # fmt: skip
    values = {name: value for name, value in given.items() if value is not None}
    commands.train(values, config, out, resume, as_json)


def _options(pairs: list[str]) -> dict[str, object]:
    """levels=8 adaptive=true reach=1.5 as TOML values, or else as text."""
    import tomllib

    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"option = {pair!r} must look like name=value")
        try:
            values |= tomllib.loads(f"{name} = {value}")
        except tomllib.TOMLDecodeError:
            values[name] = value
    return values


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Say which data sets are here, what is missing, and how to get it."""
    from sqsgd import commands

    commands.list_data(data_dir, as_json)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or emnist.")], data_dir: DataDir = None
) -> None:
    """Download a data set from the public mirrors; resumes, verifies, leaves nothing half-written."""
    from sqsgd import commands

    commands.fetch_data(name, data_dir)


@app.command()
def schemes(
    dim: Annotated[int, typer.Option(help="Length of the vectors.")] = 119850,
    epsilon: Annotated[float, typer.Option(help="Privacy budget of one report.")] = 400.0,
    bytes_: Annotated[int, typer.Option("--bytes", help="Bytes for the packed codes of one report.")] = 256,
    as_json: Json = False,
) -> None:
    """List the schemes with what each promises and sends under a budget."""
    from sqsgd.schemes import SCHEMES, make_scheme

    rows: list[dict[str, object]] = []
    for name, function in SCHEMES.items():
        summary = (function.__doc__ or "").strip().splitlines()[0]
        try:
            scheme = make_scheme(name, dim=dim, epsilon=epsilon, bits=8 * bytes_)
        except ValueError as error:
            if name != "sqsgd-paper":  # the only one that some legal budgets leave without parameters
                raise
            rows.append({"name": name, "notion": "impossible here", "epsilon": 0.0, "summary": str(error)})
            continue
        rows.append(
            {
                "name": name,
                "notion": scheme.privacy.notion,
                "epsilon": scheme.privacy.epsilon,
                "delta": scheme.privacy.delta,
                "message_bytes": scheme.bits // 8,
                "code_bytes": -(-scheme.code_bits // 8),
                "keeps_residual": scheme.residual,
                "summary": summary,
            }
        )
    if as_json:
        _print_json([{**row, "epsilon": _finite(row["epsilon"])} for row in rows])
        return
    columns = ("name", "notion", "epsilon", "message_bytes", "summary")
    _print_table(columns, [[_cell(row.get(column, "")) for column in columns] for row in rows])


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
    except (ValueError, OSError) as error:
        typer.echo(f"sqsgd: {error}", err=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        typer.echo(f"sqsgd: {error.name} is not installed: pip install 'sqsgd[train]'", err=True)
        sys.exit(2)
