"""``sqsgd ledger``: what a client has spent, and whether its record is intact."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli.options import Json, group
from sqsgd.cli.output import print_fields, print_json, print_result, print_table, wrapped

if TYPE_CHECKING:
    from sqsgd.privacy.ledger import Ledger

app = group("Show and verify the privacy budget that a client has spent.")
LedgerPath = Annotated[Path, typer.Argument(help="The ledger.")]
Witness = Annotated[Path | None, typer.Option(help="Where the ledger's witness is, if it has moved.")]
ADVICE = (
    "nothing more can be spent from it. Keep the files as they are; restore the newest copies of the ledger "
    "and its tips, or name the witness with --witness. If none match, consider the whole cap spent."
)


@app.command()
def show(
    path: LedgerPath,
    last: Annotated[int, typer.Option(help="How many of the last reports to list.", min=0)] = 10,
    witness: Witness = None,
    as_json: Json = False,
) -> None:
    """Show the privacy budget that a client has spent and has left; fails for a damaged ledger."""
    found = _summary(_opened(path, witness), last)
    if as_json:
        print_json(found)
        return
    fields = {
        "ledger": found["path"],
        "owner": found["owner"],
        "witness": found["witness"],
        "after crash": found["interrupted"],
        "cap": repr(found["max_epsilon"]) + ("" if found["unit"] == "epsilon" else f" ({found['unit']})"),
        "spent": f"{found['spent']!r} in {found['reports']:,} reports",
        "left": repr(found["left"]),
    }
    print_fields([(name, text) for name, text in fields.items() if text], 12)
    if found["by_scheme"]:
        rows = [
            [row["scheme"], f"{row['reports']:,}", "" if row["spent"] is None else repr(row["spent"])]
            for row in found["by_scheme"]
        ]
        print_table(("scheme", "reports", "spent"), rows)
    if found["last"]:
        columns = ("line", "time", "task", "round", "scheme", "purpose", "epsilon")
        rows = [[str(entry[column]) for column in columns] for entry in found["last"]]
        print_table(columns, rows, title=f"the last {len(rows)} reports")


@app.command()
def verify(path: LedgerPath, witness: Witness = None, as_json: Json = False) -> None:
    """Check every line of a ledger and its tips. Exits with 1 if anything is wrong."""
    from sqsgd.privacy.ledger import LedgerDamaged

    try:
        found = _summary(_opened(path, witness), 0)
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


@app.command()
def top_up(
    path: Annotated[Path, typer.Argument(help="The ledger, or the folder of a node of sqsgd deploy.")],
    epsilon: Annotated[float, typer.Argument(help="What may be spent in addition.")],
    witness: Witness = None,
    as_json: Json = False,
) -> None:
    """Increase the privacy budget. Only the owner of the ledger can do this, not the server."""
    from sqsgd.federation.deploy import node

    if is_node := (path / node.NAME).is_file():
        ledger = node.top_up(path, epsilon)
    else:
        (ledger := _opened(path, witness)).top_up(epsilon)
    found = _summary(ledger, 0)
    lines = [f"cap         {found['max_epsilon']!r}, {found['left']!r} left"]
    lines += ["            start the node again: until then it keeps to its old node.conf"] * is_node
    print_result(as_json, {name: found[name] for name in ("path", "max_epsilon", "spent", "left")}, *lines)


def _opened(path: Path, witness: Path | None) -> Ledger:
    """Return the ledger; anything else is an error before it is opened, because a pipe would block."""
    from sqsgd.privacy.ledger import Ledger, tip_path

    for name, each in (("ledger", path), ("witness", witness)):
        if each is not None and each.exists() and not each.is_file():
            raise ValueError(f"{each} is a folder or a device; name the file of the {name}")
    if not path.exists() and not tip_path(path).exists():
        raise ValueError(f"{path} does not exist; name a ledger")
    if path.name.endswith(".tip") and path.with_suffix("").exists():
        raise ValueError(f"{path} is the tip of a ledger; name the ledger itself, {path.with_suffix('')}")
    if witness is not None and witness.resolve() in (path.resolve(), tip_path(path.resolve())):
        raise ValueError(f"witness = {str(witness)!r} must be the ledger's second tip, not its first")
    return Ledger(path, witness=witness)


def _summary(ledger: Ledger, last: int) -> dict[str, Any]:
    from sqsgd._internal.exact import from_units, rounded_down, rounded_up, to_units

    per_record = ledger.unit != "epsilon"
    entries, cap, schemes = ledger.entries, Fraction(ledger.max_epsilon), dict[str, list[int]]()
    for entry in entries:
        schemes.setdefault(entry.scheme, []).append(to_units(entry.epsilon))
    # Of the entries shown: a client may spend meanwhile.
    spent = ledger.spent if per_record else from_units(sum(map(sum, schemes.values())))
    return {
        "path": str(ledger.path),
        "owner": ledger.owner,
        "witness": str(ledger.witness or ""),
        "interrupted": ledger.interrupted,
        "unit": ledger.unit,
        "max_epsilon": rounded_down(cap),
        "spent": rounded_up(spent),
        "left": rounded_down(max(Fraction(0), cap - spent)),
        "reports": len(entries),
        "by_scheme": [
            {
                "scheme": scheme,
                "reports": len(costs),
                "spent": None if per_record else rounded_up(from_units(sum(costs))),
            }
            for scheme, costs in sorted(schemes.items())
        ],
        "last": [dataclasses.asdict(entry) for entry in (entries[-last:] if last else [])],
    }
