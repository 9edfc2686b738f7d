"""The command line, by topic. Commands import what they need when they run: ``sqsgd --help`` is quick."""

import sys
from typing import Annotated

import typer

from sqsgd import __version__
from sqsgd.cli import audit, collect, compare, deploy, doctor, ledger, plan, train
from sqsgd.cli.output import run

app = typer.Typer(
    name="sqsgd",
    help="Federated learning with proved local differential privacy, from reports of a few bytes.",
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


for command in (
    train.train, compare.compare, compare.ablate, train.report, plan.plan, audit.audit, doctor.schemes,
    audit.conformance, doctor.doctor,
):  # fmt: skip
    app.command()(command)
for module, name in ((doctor, "data"), (ledger, "ledger"), (deploy, "deploy"), (collect, "collect")):
    app.add_typer(module.app, name=name)


def main() -> None:
    """Run the command in ``sys.argv`` and exit with its status, see :mod:`sqsgd.cli.output`."""
    sys.exit(run(app, sys.argv[1:]))
