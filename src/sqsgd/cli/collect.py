"""``sqsgd collect``: a service for devices that report over HTTP, through an oblivious relay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd._internal import checks
from sqsgd.cli.options import Json, given, group, takes
from sqsgd.cli.output import print_json, print_result, print_table
from sqsgd.federation.collect.study import Study

if TYPE_CHECKING:
    from sqsgd.federation.node.structure import Arrays

app = group("Collect reports from devices over HTTP through an oblivious relay.")
Folder = Annotated[Path, typer.Argument(metavar="STUDY", help="The study's folder.")]


@app.command()
@takes(Study, without=("name", "seed", "key", "token_key", "gateway_key"))
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="STUDY", help="A new folder.")],
    dim: Annotated[int | None, typer.Option(help="Number of weights, which start at zero.")] = None,
    initial: Annotated[
        Path | None, typer.Option(help="The model to start with, instead of --dim: a safetensors file.")
    ] = None,
    name: Annotated[str, typer.Option(help="Of the study.", show_default="the folder's name")] = "",
    database: Annotated[
        str, typer.Option(help="URL of an empty PostgreSQL database.", show_default="SQLite, in the folder")
    ] = "",
    page: Annotated[
        str, typer.Option(help="digits: a web page on which people draw a digit.", show_default="none")
    ] = "",
    as_json: Json = False,
    **_settings: Any,
) -> None:
    """Create a study: its settings, its keys and its database."""
    from sqsgd.federation.collect.rounds import create_study

    values = given(context, set(Study.__dataclass_fields__) - {"name", "dim"})
    values["name"] = name or folder.absolute().name
    study = create_study(folder, _start(dim, initial), values, database, page)
    made = study.made_scheme
    print_result(
        as_json,
        {"folder": str(folder.absolute()), "study": study.id, **study.public(), "lr": study.lr},
        f"created    {folder}: {study.rounds} rounds of about {study.expected:,} reports",
        f"study      {study.id}",
        f"a report   {made.bits // 8} bytes, epsilon {made.privacy.epsilon:g} ({study.scheme})",
        f"next       sqsgd collect serve {folder}, and sqsgd collect invite {folder} {study.users}",
    )


def _start(dim: int | None, initial: Path | None) -> Arrays:
    import numpy as np

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
    port: Annotated[int, typer.Option(help="0: the system chooses one.", min=0, max=65535)] = 8080,
) -> None:
    """Serve a study until it is stopped (SIGTERM, Ctrl-C); several workers can serve the same study."""
    from sqsgd.federation.collect.service import serve as run

    run(folder, host, port, lambda address: typer.echo(f"listening  {address}"))


@app.command()
def invite(
    folder: Folder,
    count: Annotated[int, typer.Argument(metavar="N", help="How many.", min=1, max=10**7)],
    key: Annotated[
        Path | None, typer.Option(help="The signing key.", show_default="operator.key in the folder")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print new single-use invitations, one per line. They are not stored."""
    from sqsgd.federation.collect.study import INVITED, KEY, invitations, load_study, read_key

    study = load_study(folder)
    if study.admission != INVITED:
        raise ValueError(f"study {study.name} is open to anybody: it takes no invitations")
    private = read_key(key or folder / KEY, study.key)
    found = list(invitations(private, study.id, count))
    print_result(as_json, {"study": study.id, "invitations": found}, *found)


@app.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """Show the progress of a study, the refused requests, and the current central guarantee."""
    from sqsgd.federation.collect.rounds import full_status, opened

    with opened(folder) as (study, database):
        found = full_status(database, study)
    if as_json:
        print_json(found)
        return
    until = {"open": "left", "waiting": "until it begins"}.get(found["state"])
    left = f", {found['seconds_left']:,.0f} s {until}" if until else ""
    typer.echo(
        "study      {name} ({study}): {state}\n"
        "round      {round} of {rounds}: {reports:,} of about {expected:,} reports{left}\n"
        "reports    {all_reports:,} of {message_bytes} bytes, epsilon {epsilon:g} each\n"
        "admission  {admission}; {invitations_used:,} used, {missed:,} reports missed their round\n"
        "order      {order_note}\n"
        "keys       {keys}\n"
        "central    {central_note}".format(**found, left=left)
    )
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
    """End a study in any round and write its run; workers can keep running."""
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
