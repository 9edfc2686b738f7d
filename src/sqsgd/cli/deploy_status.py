"""How a federation does, for people and machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sqsgd.cli._options import Json
from sqsgd.cli._tables import print_json, print_table

Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]


def show_deployment(folder: Folder, as_json: Json = False) -> None:
    """Say how a federation does: its programs, what each node has spent and refused, the training."""
    from sqsgd.deploy.status import read_status

    found = read_status(folder)
    if as_json:
        print_json(found)
        return
    for name in ("superlink", "superexec", "gate"):
        typer.echo(f"{name:11} {_running(found[name])}{' at ' + found['address'] if name == 'gate' else ''}")
    if (wire := found["wire"]) is not None:
        refused = (
            f"; {wire['refused']} requests refused, last {wire['last_refused']}" if wire["refused"] else ""
        )
        typer.echo(f"wire        {wire['bytes_up']:,} bytes up, {wire['bytes_down']:,} down{refused}")
    columns = ("node", "state", "spent", "left", "answers", "refusals", "last reason", "ledger")
    rows = [
        [
            node["name"], _running(node), _number(node["epsilon_spent"]), _number(node["epsilon_left"]),
            str(node["answers"]), str(node["refusals"]), _short(node["last_refusal"]), _short(node["ledger"]),
        ]
        for node in found["nodes"]
    ]  # fmt: skip
    print_table(columns, rows)
    if (run := found["run"]) is None:
        typer.echo("training    none yet")
        return
    accuracy = "" if run["accuracy"] is None else f", accuracy {run['accuracy']:.2%}"
    attempts = f", attempt {run['attempts']}" if run["attempts"] > 1 else ""
    typer.echo(f"training    {run['status']}: round {run['round']} of {run['rounds']}{accuracy}{attempts}")
    typer.echo(f"answers     {run['answers']} accepted, {run['rejected']} rejected")
    for each in run["last_rejected"]:
        typer.echo(f"            round {each['round']}: node {each.get('node')}: {each.get('reason')}")
    typer.echo(
        f"bytes       up {run['bytes_up']:,} ({run['bytes_up_serialised']:,} serialised), "
        f"down {run['bytes_down']:,} ({run['bytes_down_serialised']:,} serialised)"
    )
    for event in found["events"]:
        typer.echo(f"            {event['time']} {event['event']}")


def _running(part: dict[str, Any]) -> str:
    state = f"running ({part['pid']})" if part["running"] else "not running"
    if part["restarts"]:
        state += f", started again {part['restarts']} times"
    return (
        state if part["running"] or part["last_exit"] is None else f"{state}, last exit {part['last_exit']}"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,g}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
