"""The command line: thin. Each command imports what it needs, so that ``sqsgd --help`` is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sqsgd import __version__
from sqsgd.cli._assumed import Assuming
from sqsgd.cli._failures import run
from sqsgd.cli._groups import Commands, Program
from sqsgd.cli.audit import audit
from sqsgd.cli.bench import bench
from sqsgd.cli.compare import ablate, compare
from sqsgd.cli.data import fetch_data, list_data
from sqsgd.cli.deploy import (
    allow_app,
    end_deployment,
    gate_deployment,
    init_deployment,
    train_deployment,
    up_deployment,
)
from sqsgd.cli.deploy_status import show_deployment
from sqsgd.cli.doctor import doctor
from sqsgd.cli.ledger import show_ledger, verify_ledger
from sqsgd.cli.plan import plan
from sqsgd.cli.report import report
from sqsgd.cli.schemes import schemes
from sqsgd.cli.train import train

app = typer.Typer(
    name="sqsgd",
    cls=Program,
    help="Federated learning in a few hundred bytes a round, under a proved local privacy guarantee.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


app.command(cls=Assuming)(train)
app.command(cls=Assuming)(compare)
app.command()(ablate)
app.command()(report)
app.command()(plan)
app.command()(audit)
app.command()(schemes)
app.command()(bench)
app.command()(doctor)
data_app = typer.Typer(cls=Commands, help="List and fetch the data sets.", no_args_is_help=True)
data_app.command("list")(list_data)
data_app.command("fetch")(fetch_data)
app.add_typer(data_app, name="data")
ledger_app = typer.Typer(
    cls=Commands, help="What a client has spent, and whether its record holds.", no_args_is_help=True
)
ledger_app.command("show")(show_ledger)
ledger_app.command("verify")(verify_ledger)
app.add_typer(ledger_app, name="ledger")
deploy_app = typer.Typer(cls=Commands, help="A federation of real machines, over TLS.", no_args_is_help=True)
deploy_app.command("init", cls=Assuming)(init_deployment)
deploy_app.command("up")(up_deployment)
deploy_app.command("status")(show_deployment)
deploy_app.command("down")(end_deployment)
deploy_app.command("allow")(allow_app)
deploy_app.command("train")(train_deployment)
deploy_app.command("gate")(gate_deployment)
app.add_typer(deploy_app, name="deploy")


def main() -> None:
    """Run a command; failures.py says how it ends."""
    sys.exit(run(app, sys.argv[1:]))
