"""``sqsgd deploy``: create a TLS federation, try it on this machine, watch it and stop it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sqsgd.cli import _deploy_upkeep as upkeep
from sqsgd.cli._tables import cell, print_json, print_result
from sqsgd.cli.options import Bytes, Epsilon, Json, Model, Rate, Rounds, SchemeName, given
from sqsgd.deploy.federation import HERE, Federation, load_federation

app = typer.Typer(
    help="A federation of real machines, over TLS.", no_args_is_help=True, suggest_commands=False
)
Folder = Annotated[Path, typer.Argument(help="The federation's folder.")]
Node = Annotated[Path, typer.Argument(help="A node's folder.")]
Server = Annotated[Path, typer.Argument(help="The server's folder.")]
App = Annotated[Path | None, typer.Option(help="Your own Flower app.", show_default="the built-in app")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the last training run.")]
for _command in (upkeep.add_node, upkeep.revoke, upkeep.renew, upkeep.services):
    app.command()(_command)


@app.command()
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = Federation.nodes,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; repeatable, nodes use the first.")
    ] = None,
    port: Annotated[int, typer.Option(help="The server's port; 0: chosen at each up.")] = Federation.port,
    scheme: SchemeName = Federation.scheme,
    epsilon: Epsilon = Federation.epsilon,
    bytes_: Bytes = Federation.bytes,
    rounds: Rounds = Federation.rounds,
    max_epsilon: Annotated[
        float | None, typer.Option(help="Cap of each node's ledger.", show_default="the cost of all rounds")
    ] = None,
    dataset: Annotated[str, typer.Option(help="The dataset, divided among the nodes.")] = Federation.dataset,
    model: Model = Federation.model,
    lr: Rate = Federation.lr,
    seed: Annotated[int, typer.Option(help="Seed of the public randomness.")] = Federation.seed,
    min_nodes: Annotated[
        int, typer.Option(help="Nodes that a round waits for; 0: more than half.")
    ] = Federation.min_nodes,
    min_answers: Annotated[
        int,
        typer.Option(help="A round with fewer answers does not change the model; 0: half of those asked."),
    ] = Federation.min_answers,
    round_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for answers.")
    ] = Federation.round_timeout,
    wait_timeout: Annotated[float, typer.Option(help="Seconds to wait for nodes.")] = Federation.wait_timeout,
    downlink: Annotated[str, typer.Option(help="full or delta.")] = Federation.downlink,
    evaluate_every: Annotated[
        int, typer.Option(help="Rounds between evaluations.")
    ] = Federation.evaluate_every,
    evaluate_epsilon: Annotated[
        float, typer.Option(help="What nodes spend on an evaluation on their data; 0: they are not asked.")
    ] = Federation.evaluate_epsilon,
    days: Annotated[int, typer.Option(help="Validity of the server's certificate, in days.")] = 825,
    as_json: Json = False,
) -> None:
    """Write certificates, node keys, settings and scripts of a TLS federation into a new folder."""
    from sqsgd import checks
    from sqsgd.deploy.folders import write_federation
    from sqsgd.flower.internals import check_deployable

    check_deployable()
    checks.integer("days", days, 1, 3650)
    if max_epsilon is not None:  # 0 is allowed in the file only, where it means the cost of all rounds
        checks.real("max_epsilon", max_epsilon, 0.01, 1e12)
    values = given(context, Federation.__dataclass_fields__)
    if host:
        values["hosts"] = tuple(host)
        if set(host) - set(HERE):
            values.setdefault("port", 8000)  # other machines must know it in advance
    federation = Federation(**values)
    written = write_federation(folder, federation, days)
    result = {
        "folder": str(written),
        "hosts": federation.certified,
        "port": federation.port,
        "server": str(written / "server"),
        "nodes": [str(written / "nodes" / f"node-{index}") for index in range(federation.nodes)],
        "max_epsilon": federation.cap,
    }
    print_result(
        as_json,
        result,
        f"written to  {written}: a server, certified for {days} days, and {federation.nodes} nodes",
        f"each node   answers while its ledger is below epsilon {federation.cap:,g}",
        f"try it      sqsgd deploy up {folder}",
    )


@app.command()
def up(
    folder: Folder,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background; see status.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Stay up after training.")] = False,
    resume: Resume = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Run a federation on this machine and train; exits with 1 if training was not completed."""
    from sqsgd.deploy.submission import last_job
    from sqsgd.deploy.supervisor import Supervisor
    from sqsgd.flower.internals import check_deployable

    load_federation(folder)
    if not (folder / "server/superlink.sh").is_file():
        raise ValueError(
            f"{folder} has no server/ with the scripts of a server: name the folder that `sqsgd deploy init` "
            "wrote; on several machines, start each folder's own scripts instead (see its README.md)"
        )
    check_deployable()
    if detach:
        _detach(folder, resume, app)
        if as_json:
            status(folder, as_json=True)
        else:
            typer.echo(
                f"up; see it with: sqsgd deploy status {folder}; stop it with: sqsgd deploy down {folder}"
            )
        return
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda seen, _frame: stopping.append(seen))
    good, tell, before = False, (lambda _: None) if as_json else _say, last_job(folder / "server")
    with Supervisor(folder, tell, stop=lambda: bool(stopping)).running() as supervisor:
        if not stopping:
            good = _train(folder / "server", supervisor.federation, app, resume, stopping, tell)
        while stay and not stopping:
            time.sleep(0.2)
    if as_json:
        status(folder, as_json=True)
    if stopping and not good:
        begun = resume or last_job(folder / "server") != before
        _say(
            f"stopped; resume with: sqsgd deploy up {folder} --resume"
            if begun
            else "stopped before the training began"
        )
        raise typer.Exit(128 + stopping[0])
    raise typer.Exit(0 if good else 1)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="The folder of a federation, a server or a node.")],
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every few seconds.")] = False,
    as_json: Json = False,
) -> None:
    """Show what this machine knows: processes, spending, refusals by reason, and the progress of training."""
    from sqsgd.cli._federation_view import follow, show
    from sqsgd.deploy.status import read_status

    if watch:
        if as_json:
            raise ValueError("--watch is for people: leave out --json")
        follow(folder)
    elif as_json:
        print_json(read_status(folder))
    else:
        show(read_status(folder))


@app.command()
def metrics(
    folder: Annotated[Path, typer.Argument(help="The folder of a federation, a server or a node.")],
    listen: Annotated[
        str | None, typer.Option(help="Serve them at this address, such as 127.0.0.1:9464.")
    ] = None,
) -> None:
    """Print what status knows in the format of Prometheus, or serve it at /metrics until Ctrl-C."""
    from sqsgd.deploy.gauges import make_server, metrics_text

    text = metrics_text(folder)  # a wrong folder is named before anything is served
    if listen is None:
        typer.echo(text, nl=False)
        return
    with make_server(folder, _address("listen", listen)) as server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


@app.command()
def down(folder: Folder, as_json: Json = False) -> None:
    """Stop a federation that runs on this machine; leaves no process behind."""
    from sqsgd.deploy import live_state

    load_federation(folder)
    ended = live_state.down(folder)
    text = f"{ended} processes stopped" if ended else f"{folder} was not up"
    print_result(as_json, {"folder": str(folder.absolute()), "ended": ended}, text)


@app.command()
def allow(
    node: Node,
    app: Annotated[Path, typer.Argument(help="A Flower app that you have reviewed.")],
    as_json: Json = False,
) -> None:
    """Allow a node to run one more Flower app, exactly as it is now; for the node's owner."""
    from sqsgd.flower.guard import app_hash

    allowed = node / "allowed-apps"
    if not allowed.is_file():
        raise ValueError(f"{node} has no allowed-apps; name a node's folder, such as federation/nodes/node-0")
    if not (app / "pyproject.toml").is_file():
        raise ValueError(f"{app} is not a Flower app: it has no pyproject.toml")
    bundle = app_hash(app)
    with allowed.open("a") as file:
        file.write(f"{bundle}  # {app.absolute().name}\n")
    result = {"node": str(node), "app": str(app), "sha256": bundle}
    print_result(as_json, result, f"{bundle} may run on {node.name}")


@app.command()
def ledger(node: Node, as_json: Json = False) -> None:
    """Create a node's ledger where its node.conf says, or the witness that it lacks; for the node's owner."""
    from sqsgd.deploy.node_config import create_ledger

    made = create_ledger(node)
    if as_json:
        print_json({"node": str(node), "ledger": str(made.path), "witness": str(made.witness or "")})
    else:
        typer.echo(f"{made.path}: cap {made.max_epsilon:,g}, {cell(float(made.spent))} spent")
        typer.echo(f"witness     {made.witness or 'none: see witness in node.conf'}")


@app.command()
def train(server: Server, resume: Resume = False, app: App = None, as_json: Json = False) -> None:
    """Submit a training run to the server and follow it; exits with 1 if it was not completed."""
    from sqsgd.deploy.status import run_status

    good = _train(server, load_federation(server), app, resume, [], (lambda _: None) if as_json else _say)
    if as_json:
        print_json(run_status(server))
    raise typer.Exit(0 if good else 1)


@app.command()
def gate(
    server: Server,
    listen: Annotated[str, typer.Option(help="Address for the nodes, such as 0.0.0.0:8000.")],
    to: Annotated[str, typer.Option(help="Address of the SuperLink, such as 127.0.0.1:8001.")],
) -> None:
    """Forward nodes to a SuperLink, and nothing else: its Control API stays unreachable from outside."""
    import asyncio
    import os

    from sqsgd.deploy.gate import Gate
    from sqsgd.flower.internals import check_deployable

    check_deployable()
    address, link = _address("listen", listen), _address("to", to)
    for name in ("server.pem", "server.key", "ca.pem"):
        if not (server / name).is_file():
            raise ValueError(f"{server} has no {name}: name the server's folder, such as federation/server")
    counts = Path(os.environ.get("SQSGD_GATE_COUNTS") or server / "gate.json")
    gatekeeper = Gate(server, link, counts)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(gatekeeper.serve(*address))


def _address(name: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{name} = {text!r} must look like 127.0.0.1:8001")
    return host.strip("[]"), int(port)


def _detach(folder: Path, resume: bool, app: Path | None) -> None:
    """Start the same command in a new session, and wait until its training has started."""
    from sqsgd.deploy import submission as training
    from sqsgd.deploy.live_state import running_supervisor, tail

    if (pid := running_supervisor(folder)) is not None:
        raise ValueError(f"{folder} is up already (process {pid}): stop it with: sqsgd deploy down {folder}")
    more = [*(["--resume"] if resume else []), *(["--app", str(app)] if app else [])]
    (folder / "live/logs").mkdir(mode=0o700, parents=True, exist_ok=True)
    log, before = folder / "live/logs/supervisor.log", training.last_job(folder / "server")
    with log.open("wb") as file:
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "sqsgd", "deploy", "up", str(folder), "--stay", *more],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while training.last_job(folder / "server") == before:
        if child.poll() is not None:
            raise OSError(f"the background process ended with {child.returncode}: {tail(log)}")
        time.sleep(0.2)


def _train(
    server: Path,
    federation: Federation,
    app: Path | None,
    resume: bool,
    stopping: list[int],
    tell: Callable[[str], None],
) -> bool:
    from sqsgd.deploy import submission as training

    job = training.train(server, federation, app=app, resume=resume, stop=lambda: bool(stopping), tell=tell)
    tell(f"{job.status}: {job.folder}")
    return job.status == training.COMPLETED


def _say(text: str) -> None:
    typer.echo(text, err=True)
