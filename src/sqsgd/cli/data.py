"""Which data sets are here, and how to get the others."""

from __future__ import annotations

from typing import Annotated

import typer

from sqsgd.cli._options import DataDir, Json, complete_fetchable
from sqsgd.cli._tables import print_json


def list_data(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Say which data sets are here, what is missing, and how to get it."""
    from sqsgd.learning.dataset_files import dataset_status

    rows = dataset_status(data_dir)
    if as_json:
        print_json(
            [
                {
                    "name": row.name,
                    "available": row.available,
                    "where": str(row.where or ""),
                    "missing": row.missing,
                    "how": row.how,
                }
                for row in rows
            ]
        )
        return
    for row in rows:
        where = f"here: {row.where}" if row.available else f"missing {', '.join(row.missing)}; {row.how}"
        typer.echo(f"{row.name:14} {where}")


def fetch_data(
    name: Annotated[
        str, typer.Argument(help="mnist, fashion-mnist or emnist.", autocompletion=complete_fetchable)
    ],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a data set from the public mirrors; resumes, verifies, leaves nothing half-written."""
    from sqsgd.learning.fetch import fetch

    where = fetch(name, data_dir)
    if as_json:
        print_json({"name": name, "where": str(where)})
    else:
        typer.echo(f"{name}: {where}")
