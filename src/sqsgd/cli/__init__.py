"""The command line: one file per command, named after it.

Commands import what they need when they run, so that ``sqsgd --help`` is quick.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sqsgd import __version__
from sqsgd.cli import (
    ablate,
    audit,
    collect,
    compare,
    conformance,
    data,
    deploy,
    doctor,
    ledger,
    plan,
    report,
    schemes,
    train,
)
from sqsgd.cli._failures import run

app = typer.Typer(
    name="sqsgd",
    help="Federated learning in a few hundred bytes per round, with proved local differential privacy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    suggest_commands=False,  # click suggests them already
)


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


app.command(cls=train.Command)(train.train)
app.command(cls=train.Command)(compare.compare)
app.command(cls=train.Command)(ablate.ablate)
app.command()(report.report)
app.command()(plan.plan)
app.command()(audit.audit)
app.command()(schemes.schemes)
app.command()(conformance.conformance)
app.command()(doctor.doctor)
app.add_typer(data.app, name="data")
app.add_typer(ledger.app, name="ledger")
app.add_typer(deploy.app, name="deploy")
app.add_typer(collect.app, name="collect")


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its status, see :mod:`sqsgd.cli._failures`."""
    sys.exit(run(app, sys.argv[1:]))
