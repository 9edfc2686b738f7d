"""``sqsgd ledger``: what a client has spent, and whether its record is intact."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli._tables import print_fields, print_json, print_result, print_table, wrapped
from sqsgd.cli.options import Json

if TYPE_CHECKING:
    from sqsgd.privacy.ledger import Ledger

app = typer.Typer(
    help="What a client has spent, and whether its record is intact.",
    no_args_is_help=True,
    suggest_commands=False,
)
LedgerPath = Annotated[Path, typer.Argument(help="The ledger.")]
Witness = Annotated[
    Path | None, typer.Option(help="Where the ledger's witness is, if it has moved since it was created.")
]

ADVICE = (
    "nothing more can be spent from it. Keep the files as they are; restore the newest copies of the ledger "
    "and its tips, or name the witness with --witness. If none match, consider the whole cap spent."
)


@app.command()
def show(
    path: LedgerPath,
    last: Annotated[int, typer.Option(help="How many of the last reports to list.")] = 10,
    witness: Witness = None,
    as_json: Json = False,
) -> None:
    """Show what a client has spent, on what, and what is left; refuses a damaged ledger."""
    from sqsgd._internal import checks
    from sqsgd.privacy.ledger import Ledger

    checks.integer("last", last, 0, 10**9)
    _check_names(path, witness)
    found = _summary(Ledger(path, witness=witness), last)
    if as_json:
        print_json(found)
        return
    fields = {
        "ledger": found["path"],
        "owner": found["owner"],
        "witness": found["witness"],
        "after crash": found["interrupted"],
        "cap": repr(found["max_epsilon"]),
        "spent": f"{found['spent']!r} in {found['reports']:,} reports",
        "left": repr(found["left"]),
    }
    print_fields([(name, text) for name, text in fields.items() if text], 12)
    if found["by_scheme"]:
        rows = [[row["scheme"], f"{row['reports']:,}", repr(row["spent"])] for row in found["by_scheme"]]
        print_table(("scheme", "reports", "spent"), rows)
    if found["last"]:
        columns = ("line", "time", "task", "round", "scheme", "purpose", "epsilon")
        rows = [[str(entry[column]) for column in columns] for entry in found["last"]]
        print_table(columns, rows, title=f"the last {len(rows)} reports")


@app.command()
def verify(path: LedgerPath, witness: Witness = None, as_json: Json = False) -> None:
    """Check every line of a ledger and its tips. Exits with 1 if anything is wrong."""
    from sqsgd.privacy.ledger import Ledger, LedgerDamaged

    _check_names(path, witness)
    try:
        found = _summary(Ledger(path, witness=witness), 0)
    except LedgerDamaged as error:
        result = {"path": str(path.resolve()), "good": False, "problem": str(error), "what to do": ADVICE}
        print_result(as_json, result, wrapped(f"NOT GOOD    {error}\nwhat to do  {ADVICE}", 12))
        raise typer.Exit(1) from None
    kept = ("path", "max_epsilon", "spent", "left", "reports", "interrupted")
    result = {"good": True, "problem": "", "what to do": "", **{name: found[name] for name in kept}}
    lines = [f"good        {found['path']}: {found['reports']:,} reports, {found['spent']!r} spent"]
    if found["interrupted"]:
        lines.append(f"after crash {found['interrupted']}; the next spend repairs it")
    print_result(as_json, result, *lines)


def _check_names(path: Path, witness: Path | None) -> None:
    """Refuse names that cannot be a ledger before opening them: opening a pipe would block."""
    from sqsgd.privacy.ledger import tip_path

    for name, each in (("the ledger", path), ("the witness", witness)):
        if each is not None and each.is_dir():
            raise ValueError(f"{each} is a folder; name {name} in it")
        if each is not None and each.exists() and not each.is_file():
            raise ValueError(f"{each} is not a regular file; name {name}")
    if not path.exists() and not tip_path(path).exists():
        raise ValueError(f"{path} does not exist; name a ledger")
    if path.name.endswith(".tip") and path.with_suffix("").exists():
        raise ValueError(f"{path} is the tip of a ledger; name the ledger itself, {path.with_suffix('')}")
    if witness is not None and witness.resolve() in (path.resolve(), tip_path(path.resolve())):
        raise ValueError(
            f"witness = {str(witness)!r} must be the ledger's second tip, not the ledger or its first tip"
        )


def _summary(ledger: Ledger, last: int) -> dict[str, Any]:
    from sqsgd._internal.exact import from_units, rounded_down, rounded_up, to_units

    entries, cap, schemes = ledger.entries, Fraction(ledger.max_epsilon), dict[str, list[int]]()
    for entry in entries:
        schemes.setdefault(entry.scheme, []).append(to_units(entry.epsilon))
    spent = from_units(sum(map(sum, schemes.values())))  # of the entries shown: a client may spend meanwhile
    return {
        "path": str(ledger.path),
        "owner": ledger.owner,
        "witness": str(ledger.witness or ""),
        "interrupted": ledger.interrupted,
        "max_epsilon": rounded_down(cap),
        "spent": rounded_up(spent),
        "left": rounded_down(max(Fraction(0), cap - spent)),
        "reports": len(entries),
        "by_scheme": [
            {"scheme": scheme, "reports": len(costs), "spent": rounded_up(from_units(sum(costs)))}
            for scheme, costs in sorted(schemes.items())
        ],
        "last": [dataclasses.asdict(entry) for entry in (entries[-last:] if last else [])],
    }
