"""How ``sqsgd deploy status`` shows a federation, a server or a node to people."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from sqsgd.cli._tables import print_table
from sqsgd.deploy.live_state import SERVER_PARTS
from sqsgd.deploy.submission import describe_evaluation
from sqsgd.deploy.training import read_status

REFRESH = 2.0
"""Seconds between two views."""


def follow(folder: Path) -> None:
    """Show the status again and again until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            found = read_status(folder)  # before the screen is cleared: it may fail
            typer.clear()
            typer.echo(f"{folder}  {datetime.now().astimezone():%Y-%m-%d %H:%M:%S}  Ctrl-C ends this view")
            show(found)
            time.sleep(REFRESH)


def show(found: Mapping[str, Any]) -> None:
    """Print one status."""
    if found["kind"] == "node":
        _show_nodes([found], running=False)
        _show_reasons(found["refusals_by_reason"])
        typer.echo(f"last answer {found['last_answer'] or 'none yet'}")
    else:
        for name in SERVER_PARTS if found["kind"] == "federation" else ():
            address = f" at {found['address']}" if name == "gate" and found["address"] else ""
            typer.echo(f"{name:11} {_running(found[name])}{address}")
        _show_wire(found["wire"])
        if found["kind"] == "federation":
            _show_nodes(found["nodes"])
        else:
            typer.echo(f"nodes       {', '.join(found['nodes']) or 'none'}")
        _show_run(found["run"])
    typer.echo(f"certificate valid until {found['certificate_ends']}")
    for event in found.get("events", ()):
        typer.echo(f"            {event['time']} {event['event']}")


def _show_wire(wire: Mapping[str, Any] | None) -> None:
    if wire is not None:
        last = f"; {wire['refused']} requests refused, last {wire['last_refused']}" if wire["refused"] else ""
        typer.echo(f"wire        {wire['bytes_up']:,} bytes up, {wire['bytes_down']:,} down{last}")
        for name, node in wire.get("nodes", {}).items():
            if node["over_quota"]:
                sent = f"sent its quota of bytes: {node['over_quota']} of its requests refused for now"
                typer.echo(f"            {name} {sent}, {node['bytes_up']:,} bytes forwarded")


def _show_nodes(nodes: list[Mapping[str, Any]], *, running: bool = True) -> None:
    columns = ["node", "state", "spent", "left", "answers", "refusals", "last reason", "ledger"]
    rows = [
        [
            node["name"], _running(node) if running else "", _number(node["epsilon_spent"]),
            _number(node["epsilon_left"]), str(node["answers"]), str(node["refusals"]),
            _short(node["last_refusal"]), _short(node["ledger"]),
        ]
        for node in nodes
    ]  # fmt: skip
    if not running:  # a node's own folder has no process numbers
        columns, rows = columns[:1] + columns[2:], [row[:1] + row[2:] for row in rows]
    print_table(columns, rows)
    for node in nodes:
        if node["zeros"]:  # the server cannot tell, and must not
            typer.echo(f"{node['name']:11} {node['zeros']} of its reports are zero: {node['last_zero']}")


def _show_run(run: Mapping[str, Any] | None) -> None:
    if run is None:
        typer.echo("training    none yet")
        return
    accuracy = "" if run["accuracy"] is None else f", accuracy {run['accuracy']:.2%}"
    attempts = f", attempt {run['attempts']}" if run["attempts"] > 1 else ""
    typer.echo(f"training    {run['status']}: round {run['round']} of {run['rounds']}{accuracy}{attempts}")
    if run["problem"]:
        typer.echo(f"            {run['problem']}")
    if run["evaluation"]:
        typer.echo(
            f"at nodes    {describe_evaluation(run['evaluation'])}, round {run['evaluation']['round'] + 1}"
        )
    typer.echo(f"answers     {run['answers']} accepted, {run['rejected']} rejected")
    _show_reasons(run["rejected_by_reason"])
    for each in run["last_rejected"]:
        who = f"node {each['node']}" if "node" in each else f"slot {each.get('slot')}"
        typer.echo(f"            round {each['round'] + 1}: {who}: {each.get('reason')}")
    up, down = (
        f"{run[name]:,}"
        + (f" ({run[f'{name}_serialised']:,} serialised)" if run[f"{name}_serialised"] else "")
        for name in ("bytes_up", "bytes_down")
    )
    typer.echo(f"bytes       up {up}, down {down}")


def _show_reasons(reasons: Mapping[str, int]) -> None:
    for reason, count in reasons.items():
        typer.echo(f"            {count} x {_short(reason)}")


def _running(part: Mapping[str, Any]) -> str:
    state = f"running ({part['pid']})" if part["running"] else "not running"
    if part["restarts"]:
        state += f", restarted {part['restarts']} times"
    if not part["running"] and part["last_exit"] is not None:
        state += f", last exit {part['last_exit']}"
    return state


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,g}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"
