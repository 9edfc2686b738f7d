"""``sqsgd deploy``: write a federation for standard parts to run, change it, try it here, watch it."""

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sqsgd._internal import checks
from sqsgd.cli.options import Json, given, group, takes
from sqsgd.cli.output import cell, print_fields, print_json, print_result, print_table
from sqsgd.federation.deploy.federation import Federation, load_federation

app = group("Deploy a federation on several machines over TLS.")
Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]
Server = Annotated[Path, typer.Argument(help="The folder of a federation or a server.")]
Node = Annotated[Path, typer.Argument(help="A node's folder.")]
App = Annotated[Path | None, typer.Option(help="Your own Flower app.", show_default="the built-in app")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the last training run.")]
Days = Annotated[int, typer.Option(help="Validity of the server's certificate.", min=1, max=3650)]


@app.command()
@takes(Federation, without=("hosts", "link_port"))
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; repeatable, nodes use the first.")
    ] = None,
    days: Days = 825,
    as_json: Json = False,
    **_settings: Any,
) -> None:
    """Create a folder with certificates, keys, settings, scripts and services for a TLS federation."""
    from sqsgd.federation.deploy.folders import check_settings, write_federation

    values = given(context, Federation.__dataclass_fields__)
    if "max_epsilon" in values:  # 0 is allowed in the file only, where it means the cost of all rounds
        checks.real("max_epsilon", values["max_epsilon"], 0.01, 1e12)
    if host:
        values["hosts"] = tuple(host)
    if importlib.util.find_spec("torch"):  # a machine without it can write a federation for others
        values["bytes"] = check_settings(Federation(**values)).bytes
    written = write_federation(folder, Federation(**values), days)
    federation = load_federation(written)
    nodes = [str(written / f"nodes/node-{index}") for index in range(federation.nodes)]
    result = {"folder": str(written), "server": str(written / "server"), "nodes": nodes}
    unit = f" per record, at delta = {federation.delta:g}" if federation.per_record else ""
    of_server = {"hosts": federation.certified, "port": federation.port, "max_epsilon": federation.cap}
    print_result(
        as_json,
        result | of_server,
        f"written to  {written}: a server, certified for {days} days, and {federation.nodes} nodes",
        f"each node   answers while its ledger is below epsilon {federation.cap:,g}{unit}",
        f"try it      sqsgd deploy up {folder}",
    )


@app.command()
def up(folder: Folder, resume: Resume = False, app: App = None, as_json: Json = False) -> None:
    """Run a federation on this machine. Exits with 1 if the training was not completed."""
    from sqsgd.federation.deploy.folders import find_nginx
    from sqsgd.federation.deploy.training import read_status
    from sqsgd.federation.flower.guard import check_version

    federation = load_federation(folder)
    if not (folder / "Procfile").is_file():
        raise ValueError(f"{folder} has no Procfile: name the folder that `sqsgd deploy init` wrote")
    importlib.import_module("honcho")  # what is missing, and how to install it, is said by output.py
    check_version()
    options = [*(["--resume"] if resume else []), *(["--app", str(app.absolute())] if app else [])]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "SQSGD_TRAIN_OPTIONS": shlex.join(options)}
    command = [sys.executable, "-m", "honcho", "start"]
    if find_nginx() is None:
        told = "nginx is not installed: here, and only here, nodes connect to Flower's SuperLink directly"
        typer.echo(told, err=True)
        names = [line.partition(":")[0] for line in (folder / "Procfile").read_text().splitlines()]
        command += [name for name in names if name != "nginx"]
        environment["SQSGD_SERVER"] = f"127.0.0.1:{federation.link_port}"
    output = sys.stderr if as_json else None
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=output) as honcho:  # noqa: S603
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: honcho.terminate())  # it ends everything, and then itself
        code = honcho.wait()
    if as_json:
        print_json(read_status(folder))
    raise typer.Exit(code)


@app.command()
def train(server: Server, resume: Resume = False, app: App = None, as_json: Json = False) -> None:
    """Register new nodes, train, and show the progress. Exits with 1 if the training was not completed."""
    from sqsgd.federation.deploy import training

    job = training.train(server, app=app, resume=resume)
    typer.echo(f"{job.status}: {job.name}", err=True)
    if as_json:
        print_json(training.read_status(server)["run"])
    raise typer.Exit(0 if job.status == training.COMPLETED else 1)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Of a federation, a server or a node.")],
    as_json: Json = False,
) -> None:
    """Show the spent budgets, the refusals by reason, and the progress of the training."""
    from sqsgd.federation.deploy.training import read_status

    found = read_status(folder)
    if as_json:
        print_json(found)
    else:
        _show(found)


@app.command()
def add_node(folder: Folder, as_json: Json = False) -> None:
    """Create the folder of an additional node with its key, settings and ledger."""
    from sqsgd.federation.deploy.folders import add_node

    node = add_node(folder)
    key = folder.absolute() / f"server/nodes/{node.name}.pub"
    print_result(
        as_json,
        {"node": str(node), "key": str(key)},
        f"written to {node}: move it to the node's machine",
        f"if the server is elsewhere, copy {key} to its nodes/ and raise `nodes` in its federation.toml",
    )


@app.command()
def revoke(
    folder: Server, name: Annotated[str, typer.Argument(help="Such as node-1.")], as_json: Json = False
) -> None:
    """Refuse a node from now on, without stopping anything else."""
    from sqsgd.federation.deploy.folders import revoke

    key, done = revoke(folder, name)
    elsewhere = f"nginx does not run here: on the server, run `sqsgd deploy revoke . {name}`, or reload nginx"
    lines = f"{name} is revoked: its key is now {key}", "nginx refuses it already" if done else elsewhere
    print_result(as_json, {"revoked": str(key), "reloaded": done}, *lines)


@app.command()
def renew(folder: Folder, days: Days = 825, as_json: Json = False) -> None:
    """Renew the server's certificate with the same key, without stopping any node."""
    from sqsgd.federation.deploy.folders import renew

    path = str(renew(folder, days))
    restart = "copy it to the server; restart superlink.sh, and nginx.sh if it runs elsewhere"
    print_result(as_json, {"renewed": [path]}, f"renewed     {path}", restart)


@app.command()
def allow(
    node: Node,
    app: Annotated[Path, typer.Argument(help="The folder of a Flower app that you have reviewed.")],
    as_json: Json = False,
) -> None:
    """Allow a node to run the current version of a Flower app in this folder (for the node's owner)."""
    from sqsgd.federation.flower.guard import allow

    if not (node / "allowed-apps").is_file():
        raise ValueError(f"{node} has no allowed-apps; name a node's folder, such as federation/nodes/node-0")
    if not (app / "pyproject.toml").is_file():
        raise ValueError(f"{app} is not a Flower app: it has no pyproject.toml")
    bundle = allow(node / "allowed-apps", app)
    result = {"node": str(node), "app": str(app.absolute()), "sha256": bundle}
    print_result(as_json, result, f"{bundle} may run on {node.name}, from {app.absolute()}")


@app.command()
def ledger(node: Node, as_json: Json = False) -> None:
    """Create the ledger of a node as set in its node.conf, or its missing witness (for the owner)."""
    from sqsgd.federation.deploy.node import create_ledger

    made = create_ledger(node)
    print_result(
        as_json,
        {"node": str(node), "ledger": str(made.path), "witness": str(made.witness or "")},
        f"{made.path}: cap {made.max_epsilon:,g}, {cell(float(made.spent))} spent",
        f"witness     {made.witness or 'none: see witness in node.conf'}",
    )


def _show(found: Mapping[str, Any]) -> None:
    nodes = [found] if found["kind"] == "node" else found["nodes"]
    columns = ["node", "spent", "left", "answers", "refusals", "last reason", "ledger"]
    keys = ("name", "epsilon_spent", "epsilon_left", "answers", "refusals", "last_refusal", "ledger")
    if nodes:
        print_table(columns, [[_short(node[key]) for key in keys] for node in nodes])
    for node in nodes:
        for reason, count in node["refusals_by_reason"].items():
            typer.echo(f"{node['name']:11} refused {count} x {_short(reason)}")
        if node["zeros"]:  # the server cannot tell, and must not
            typer.echo(f"{node['name']:11} {node['zeros']} of its reports are zero: {node['last_zero']}")
    if found["kind"] != "node":
        typer.echo(f"keys        {', '.join(found['keys']) or 'none'}")
        _show_run(found["run"])
    typer.echo(f"certificate valid until {found['certificate_ends']}")


def _show_run(run: Mapping[str, Any] | None) -> None:
    if run is None:
        typer.echo("training    none yet")
        return
    accuracy = "" if run["accuracy"] is None else f", accuracy {run['accuracy']:.2%}"
    attempts = f", attempt {run['attempts']}" if run["attempts"] > 1 else ""
    fields = [("training", f"{run['status']}: round {run['round']} of {run['rounds']}{accuracy}{attempts}")]
    fields += [("", run["problem"])] if run["problem"] else []
    fields.append(("answers", f"{run['answers']} accepted, {run['rejected']} rejected"))
    fields += [("", f"{count} x {_short(reason)}") for reason, count in run["rejected_by_reason"].items()]
    fields.append(("bytes", f"up {run['bytes_up']:,}, down {run['bytes_down']:,}"))
    print_fields(fields, 12)


def _short(value: object) -> str:
    text = f"{value:,g}" if isinstance(value, float) else cell(value)
    return text if len(text) <= 80 else text[:79] + "…"
