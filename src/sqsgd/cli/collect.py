"""``sqsgd collect``: a service for devices that report once, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sqsgd.cli._tables import print_json, print_result, print_table
from sqsgd.cli.options import Bytes, Epsilon, Json, Rate, Rounds, SchemeName, given

if TYPE_CHECKING:
    from sqsgd.federation.node.structure import Arrays

app = typer.Typer(
    help="A service for devices that report once, over HTTP.", no_args_is_help=True, suggest_commands=False
)
Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's folder.")]


@app.command()
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="A new folder.")],
    users: Annotated[int, typer.Option(help="Devices that will report, over all rounds.")],
    dim: Annotated[int | None, typer.Option(help="Number of weights, which start at zero.")] = None,
    initial: Annotated[
        Path | None, typer.Option(help="The model to start with, instead of --dim: a safetensors file.")
    ] = None,
    name: Annotated[
        str, typer.Option(help="What the study is called.", show_default="the folder's name")
    ] = "",
    rounds: Rounds = 40,
    scheme: SchemeName = "auto",
    epsilon: Epsilon = 8.0,
    bytes_: Bytes = 48,
    softmax: Annotated[
        bool, typer.Option("--softmax", help="The model is a softmax on features of unit length.")
    ] = False,
    bound: Annotated[float, typer.Option(help="Bound of a gradient's norm; 0: the default.")] = 0.0,
    lr: Rate = 0.0,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum or adam.")] = "sgd",
    decay: Annotated[str, typer.Option(help="Of the learning rate: linear or none.")] = "linear",
    admission: Annotated[
        str, typer.Option(help="invited: one report per invitation; open: anybody, at a limited rate.")
    ] = "invited",
    joins_per_minute: Annotated[int, typer.Option(help="Rate limit of an open study.")] = 600,
    round_seconds: Annotated[
        float, typer.Option(help="Time after which a round ends, full or not.")
    ] = 86400.0,
    ticket_seconds: Annotated[float, typer.Option(help="Time that a device has for its report.")] = 600.0,
    fewest: Annotated[int, typer.Option(help="Reports without which no round ends; 0: half.")] = 0,
    database: Annotated[
        str, typer.Option(help="URL of an empty PostgreSQL database.", show_default="SQLite, in the folder")
    ] = "",
    page: Annotated[
        str, typer.Option(help="digits: a web page on which people draw a digit.", show_default="none")
    ] = "",
    as_json: Json = False,
) -> None:
    """Create a study: its settings, its signing key and its database."""
    from sqsgd.federation.collect.rounds import create_study
    from sqsgd.federation.collect.study import Study

    values = given(context, set(Study.__dataclass_fields__) - {"name", "dim"})
    values["name"] = name or folder.absolute().name
    study = create_study(folder, _start(dim, initial), values, database, page)
    made = study.made_scheme
    print_result(
        as_json,
        {"folder": str(folder.absolute()), **study.public(), "lr": study.lr, "bound": study.bound},
        f"created    {folder}: study {study.id}, {study.rounds} rounds of {study.slots:,} devices",
        f"a report   {made.bits // 8} bytes, epsilon {made.privacy.epsilon:g} ({study.scheme})",
        f"next       sqsgd collect serve {folder}, and sqsgd collect invite {folder} {study.users}",
    )


def _start(dim: int | None, initial: Path | None) -> Arrays:
    """The model before the first round."""
    import numpy as np

    from sqsgd._internal import checks

    if (dim is None) == (initial is None):
        raise ValueError("give either --dim, for weights that start at zero, or --initial FILE")
    if initial is None:
        return {"weights": np.zeros(checks.integer("dim", dim, 1, 2**24), np.float32)}
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(initial)
    except SafetensorError as error:
        raise ValueError(f"{initial} is not a safetensors file: {error}") from None


@app.command()
def serve(
    folder: Folder,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: the system chooses one.")] = 8080,
    certificate: Annotated[Path | None, typer.Option(help="Certificate chain for TLS, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM.")] = None,
    log_addresses: Annotated[
        bool, typer.Option("--log-addresses", help="Log requests with addresses, which gives the order away.")
    ] = False,
    clock_is_right: Annotated[
        bool, typer.Option("--clock-is-right", help="Go on although no worker ran for longer than a round.")
    ] = False,
) -> None:
    """Serve a study until it is stopped (SIGTERM, Ctrl-C); several workers may serve one study."""
    from sqsgd._internal import checks
    from sqsgd.federation.collect.serving import serve as run

    checks.integer("port", port, 0, 65535)
    run(
        folder, host=host, port=port, certificate=certificate, key=key, log_addresses=log_addresses,
        clock_is_right=clock_is_right, tell=lambda address: typer.echo(f"listening  {address}"),
    )  # fmt: skip


@app.command()
def invite(
    folder: Folder,
    count: Annotated[int, typer.Argument(metavar="N", help="Number of invitations.")],
    key: Annotated[
        Path | None, typer.Option(help="The signing key.", show_default="operator.key in the folder")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print new single-use invitations, one per line; nothing is kept of them."""
    from sqsgd._internal import checks
    from sqsgd.federation.collect.study import INVITED, KEY, MOST, invitations, load_study, read_key

    study = load_study(folder)
    if study.admission != INVITED:
        raise ValueError(f"study {study.name} is open to anybody: it takes no invitations")
    private = read_key(key or folder / KEY, study.key)
    made = invitations(private, study.id, checks.integer("n", count, 1, MOST))
    if as_json:
        print_json({"study": study.id, "invitations": list(made)})
    else:
        for each in made:
            typer.echo(each)


@app.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """Show how far a study is, what was refused and why, and which central guarantee holds so far."""
    from sqsgd.federation.collect.rounds import full_status, opened

    with opened(folder) as (study, database):
        found = full_status(database, study)
    if as_json:
        print_json(found)
        return
    left = f", {found['seconds_left']:,.0f} s left" if found["state"] == "open" else ""
    typer.echo(
        "study      {name} ({study}): {state}\n"
        "round      {round} of {rounds}: {reports:,} of {slots:,} reports{left}\n"
        "reports    {all_reports:,} of {message_bytes} bytes, epsilon {epsilon:g} each\n"
        "admission  {admission}; {invitations_used:,} invitations used\n"
        "order      {order_note}\n"
        "central    {central_note}".format(**found, left=left)
    )
    if found["clock"]:
        typer.echo(f"clock      {found['clock']}")
    if found["unscrubbed"]:
        typer.echo("traces     of the last round are still on the disk: serve or close the study once more")
    if found["refusals"]:
        print_table(("refused", "requests"), [[code, f"{n:,}"] for code, n in found["refusals"].items()])


@app.command()
def close(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run.", show_default="run in the study's folder")
    ] = None,
    as_json: Json = False,
) -> None:
    """End a study, whatever round it is in, and write its run; workers may go on running."""
    from sqsgd.federation.collect.rounds import end_study, opened, write_outcome
    from sqsgd.federation.collect.study import RUN

    place = out or folder / RUN
    with opened(folder) as (study, database):
        left_out = end_study(database, study)
        summary = write_outcome(place, database, study)
    less = f"; {left_out:,} reports of an unfinished round were left out" if left_out else ""
    print_result(
        as_json,
        {**summary, "left_out": left_out, "folder": str(place.absolute())},
        f"ended      after {summary['rounds']} rounds and {summary['users']:,} reports{less}",
        f"central    {summary['central_note']}",
        f"written    {place}: see it with: sqsgd report {place}",
    )
