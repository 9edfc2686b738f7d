"""What works here, what is missing, and the command that mends it."""

from __future__ import annotations

import typer

from sqsgd.cli._options import DataDir, Json
from sqsgd.cli._tables import print_json, print_table


def doctor(data_dir: DataDir = None, as_json: Json = False) -> None:
    """Say what is installed, which engines and data sets can be used, and how to mend what is missing.

    Exits with 1 if something is wrong without which nothing works; extras and data sets may be missing.
    """
    from sqsgd.cli.checkup import examine

    checks = list(examine(data_dir))
    works = all(check.works for check in checks if check.basic)
    if as_json:
        print_json({"works": works, "checks": [check.to_dict() for check in checks]})
    else:
        rows = [[check.state, check.group, check.name, check.found, check.needed] for check in checks]
        print_table(("state", "group", "what", "found", "needed"), rows)
        mends = {check.mend: None for check in checks if check.mend}
        typer.echo("\nThe basics work." if works else "\nThe basics do NOT work.")
        if mends:
            typer.echo("To mend what is missing or broken:")
            for mend in mends:
                names = ", ".join(check.name for check in checks if check.mend == mend)
                typer.echo(f"  {mend}    ({names})")
    raise typer.Exit(0 if works else 1)
