"""A federation on real machines: made, run for a try, looked at, ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli._options import Json, given
from sqsgd.cli._tables import print_json
from sqsgd.cli.deploy_status import Folder, show_deployment

if TYPE_CHECKING:
    from sqsgd.deploy.federation import Federation

App = Annotated[Path | None, typer.Option(help="A Flower app of your own (default: the one of sqsgd).")]


def init_deployment(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    nodes: Annotated[int | None, typer.Option(help="How many nodes.")] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server; repeatable, nodes use the first.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The server's port; 0: chosen at each `up`.")] = None,
    scheme: Annotated[str | None, typer.Option(help="How gradients travel; see `sqsgd schemes`.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of one report.")] = None,
    bytes_: Annotated[int | None, typer.Option("--bytes", help="Bytes for the packed codes.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in all.")] = None,
    max_epsilon: Annotated[
        float | None, typer.Option(help="Cap of each node's ledger (default: what the rounds cost).")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="What the nodes hold parts of.")] = None,
    model: Annotated[str | None, typer.Option(help="What is trained.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; 0: by the rule for all budgets.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the public randomness.")] = None,
    min_nodes: Annotated[int | None, typer.Option(help="A round waits for so many; 0: most.")] = None,
    min_answers: Annotated[int | None, typer.Option(help="Fewer leave the model as it is.")] = None,
    round_timeout: Annotated[float | None, typer.Option(help="Seconds to wait for answers.")] = None,
    wait_timeout: Annotated[float | None, typer.Option(help="Seconds to wait for nodes.")] = None,
    downlink: Annotated[str | None, typer.Option(help="full or delta.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Rounds between measurements.")] = None,
    days: Annotated[int, typer.Option(help="How long the certificates hold.")] = 825,
    as_json: Json = False,
) -> None:
    """Write certificates, node keys, settings and scripts of a TLS federation into a new folder."""
    from sqsgd import checks
    from sqsgd.deploy.federation import HERE, Federation
    from sqsgd.deploy.folders import write_federation

    checks.integer("days", days, 1, 3650)
    if max_epsilon is not None:  # in a file 0 is what the rounds cost; whoever types it means none at all
        checks.real("max_epsilon", max_epsilon, 0.01, 1e12)
    values: dict[str, Any] = given(
        nodes=nodes, hosts=tuple(host) if host else None, port=port, scheme=scheme, epsilon=epsilon,
        bytes=bytes_, rounds=rounds, max_epsilon=max_epsilon, dataset=dataset, model=model, lr=lr, seed=seed,
        min_nodes=min_nodes, min_answers=min_answers, round_timeout=round_timeout,
        wait_timeout=wait_timeout, downlink=downlink, evaluate_every=evaluate_every,
    )  # fmt: skip
    if port is None and host and set(host) - set(HERE):
        values["port"] = 8000  # other machines must know it beforehand
    federation = Federation(**values)
    written = write_federation(folder, federation, days)
    if as_json:
        names = [f"node-{index}" for index in range(federation.nodes)]
        print_json(
            {
                "folder": str(written),
                "hosts": federation.certified,
                "port": federation.port,
                "server": str(written / "server"),
                "nodes": [str(written / "nodes" / name) for name in names],
                "max_epsilon": federation.cap,
            }
        )
        return
    typer.echo(f"written to  {written}: a server and {federation.nodes} nodes, certified for {days} days")
    typer.echo(f"each node   answers while its ledger is below epsilon {federation.cap:,g}")
    typer.echo(f"try it      sqsgd deploy up {folder}")


def up_deployment(
    folder: Folder,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running; see `status`.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Stay up when the training is over.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last training.")] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Run a federation on this machine, train, and say how it ended; exits with 1 if it was not completed."""
    from sqsgd.deploy.federation import load_federation
    from sqsgd.deploy.supervisor import Supervisor

    load_federation(folder)
    if detach:
        _detach(folder, resume, app)
        if as_json:
            show_deployment(folder, as_json=True)
        else:
            typer.echo(f"up; see `sqsgd deploy status {folder}`, end it with `sqsgd deploy down {folder}`")
        return
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda seen, _frame: stopping.append(seen))
    good, tell = False, _quiet if as_json else _say
    with Supervisor(folder, tell, stop=lambda: bool(stopping)).running() as supervisor:
        if not stopping:
            good = _train(folder / "server", supervisor.federation, app, resume, stopping, tell)
        while stay and not stopping:
            time.sleep(0.2)
    if as_json:
        show_deployment(folder, as_json=True)
    if stopping and not good:
        _say(f"stopped; go on with: sqsgd deploy up {folder} --resume")
        raise typer.Exit(128 + stopping[0])
    raise typer.Exit(0 if good else 1)


def _detach(folder: Path, resume: bool, app: Path | None) -> None:
    """Start the same command in a session of its own, and wait until its training has begun."""
    from sqsgd.deploy import submission as training
    from sqsgd.deploy.live_state import running_supervisor, tail

    if (pid := running_supervisor(folder)) is not None:
        raise ValueError(f"{folder} is up already (process {pid}): end it with `sqsgd deploy down {folder}`")
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
            raise OSError(f"it ended with {child.returncode}: {tail(log)}")
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


def train_deployment(
    server: Annotated[Path, typer.Argument(help="The server's folder.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last training.")] = False,
    app: App = None,
    as_json: Json = False,
) -> None:
    """Submit a training to a server that runs, and follow it; exits with 1 if it was not completed."""
    from sqsgd.deploy.federation import load_federation
    from sqsgd.deploy.status import run_status

    good = _train(server, load_federation(server), app, resume, [], _quiet if as_json else _say)
    if as_json:
        print_json(run_status(server))
    raise typer.Exit(0 if good else 1)


def gate_deployment(
    server: Annotated[Path, typer.Argument(help="The server's folder.")],
    listen: Annotated[str, typer.Option(help="Where nodes come in, such as 0.0.0.0:8000.")],
    to: Annotated[str, typer.Option(help="Where the SuperLink listens, such as 127.0.0.1:8001.")],
) -> None:
    """Let nodes through to a SuperLink, and nothing else: its Control API stays closed to others."""
    import asyncio
    import contextlib
    import os

    from sqsgd.deploy.gate import Gate

    counts = os.environ.get("SQSGD_GATE_COUNTS")
    gate = Gate(server, _address("to", to), Path(counts) if counts else None)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(gate.serve(*_address("listen", listen)))


def _address(name: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{name} = {text!r} must look like 127.0.0.1:8001")
    return host.strip("[]"), int(port)


def allow_app(
    node: Annotated[Path, typer.Argument(help="A node's folder.")],
    app: Annotated[Path, typer.Argument(help="A Flower app that you have read.")],
    as_json: Json = False,
) -> None:
    """Let a node run one more Flower app, exactly as it is now; for the node's owner."""
    from sqsgd.flower.guard import app_hash

    allowed = node / "allowed-apps"
    if not allowed.is_file():
        raise ValueError(f"{node} holds no allowed-apps; name a node's folder, as federation/nodes/node-0")
    if not (app / "pyproject.toml").is_file():
        raise ValueError(f"{app} is no Flower app: it holds no pyproject.toml")
    bundle = app_hash(app)
    with allowed.open("a") as file:
        file.write(f"{bundle}  # {app.absolute().name}\n")
    if as_json:
        print_json({"node": str(node), "app": str(app), "sha256": bundle})
    else:
        typer.echo(f"{bundle} may run on {node.name}")


def end_deployment(folder: Folder, as_json: Json = False) -> None:
    """End a federation that runs on this machine; leaves no process behind."""
    from sqsgd.deploy.federation import load_federation
    from sqsgd.deploy.live_state import down

    load_federation(folder)
    ended = down(folder)
    if as_json:
        print_json({"folder": str(folder.absolute()), "ended": ended})
    else:
        typer.echo(f"{ended} processes ended" if ended else f"{folder} was not up")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _quiet(_text: str) -> None:
    pass
