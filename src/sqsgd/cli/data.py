"""``sqsgd data``: which datasets are installed, and how to get the others."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sqsgd.cli._tables import print_fields, print_json, print_result
from sqsgd.cli.options import DataDir, Json
from sqsgd.learning.files import FETCHABLE

app = typer.Typer(help="List and download datasets.", no_args_is_help=True, suggest_commands=False)


@app.command("list")
def list_data(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the datasets: where each is, what is missing, and how to get it."""
    from sqsgd.learning.files import dataset_status

    rows = dataset_status(data_dir)
    if as_json:
        print_json([{**asdict(row), "where": str(row.where or "")} for row in rows])
        return
    for row in rows:
        where = f"here: {row.where}" if row.available else f"missing {', '.join(row.missing)}; {row.how}"
        print_fields([(row.name, where)], 15)


@app.command("fetch")
def fetch_data(
    name: Annotated[
        str,
        typer.Argument(
            help="The dataset to download.",
            metavar="|".join(FETCHABLE),
            autocompletion=lambda: list(FETCHABLE),
        ),
    ],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a dataset from public mirrors; resumes, verifies, and leaves no partial files."""
    from sqsgd.learning.files import fetch

    where = fetch(name, data_dir)
    print_result(as_json, {"name": name, "where": str(where)}, f"{name}: {where}")
