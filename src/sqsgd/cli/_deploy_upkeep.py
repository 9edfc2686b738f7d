"""``sqsgd deploy`` for a federation that exists: nodes come and go, certificates are renewed, services."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsgd.cli._tables import print_result
from sqsgd.cli.options import Json

Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]


def add_node(folder: Folder, as_json: Json = False) -> None:
    """Write the folder of one more node: its key, its settings, its ledger."""
    from sqsgd.deploy.membership import add_node

    node = add_node(folder)
    key = folder.absolute() / f"server/nodes/{node.name}.pub"
    print_result(
        as_json,
        {"node": str(node), "key": str(key)},
        f"written to  {node}: move it to the node's machine",
        f"register it copy {key} to nodes/ in the server's folder and run ./register.sh there;",
        "            if that is another machine, also raise `nodes` in its federation.toml by one",
    )


def revoke(
    folder: Annotated[Path, typer.Argument(help="The folder of the federation or of the server.")],
    name: Annotated[str, typer.Argument(help="The node, such as node-1.")],
    as_json: Json = False,
) -> None:
    """Refuse a node from now on; the gate notices within seconds, and nothing else is stopped."""
    from sqsgd.deploy.membership import revoke

    done = revoke(folder, name)
    lines = [f"{name} is revoked: its key is now {done.key}", *([done.note] if done.note else [])]
    if not (folder / "superlink.sh").is_file():
        lines.append(f"a server elsewhere does not know it: there, run `sqsgd deploy revoke . {name}` too")
    print_result(as_json, {"revoked": str(done.key), **({"note": done.note} if done.note else {})}, *lines)


def renew(
    folder: Folder,
    days: Annotated[int, typer.Option(help="Validity from now on, in days.")] = 825,
    authority: Annotated[
        bool, typer.Option("--authority", help="Renew the authority's certificate too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Renew the server's certificate, and the authority's, with the same keys; no node is stopped."""
    from sqsgd import checks
    from sqsgd.deploy.membership import renew

    done = renew(folder, checks.integer("days", days, 1, 3650), authority=authority)
    print_result(
        as_json,
        {"server": str(done.server), "authority": [str(path) for path in done.authority]},
        f"renewed     {done.server}, for {days} days: copy it into the server's folder, if that is elsewhere",
        *(f"renewed     {path}" for path in done.authority),
        "the gate    uses it within seconds; nodes stay up",
        "superlink   restart it before its old certificate expires; nodes reconnect by themselves",
    )


def services(
    folder: Annotated[Path, typer.Argument(help="The folder of a server or a node, where it will stay.")],
    as_json: Json = False,
) -> None:
    """Write systemd units and a compose file for a server or a node, with the paths of this machine."""
    from sqsgd.deploy.services import write_services

    written = [str(path) for path in write_services(folder)]
    print_result(as_json, written, *(f"written to {path}" for path in written))
