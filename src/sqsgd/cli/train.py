"""Training one model, with a bar to watch and a summary at the end."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sqsgd.cli._failures import Ended
from sqsgd.cli._new_folders import new_folder
from sqsgd.cli._options import (
    DataDir,
    Json,
    complete_dataset,
    complete_scheme,
    given,
    scheme_options,
)
from sqsgd.cli._stopping import stopping_between_rounds
from sqsgd.cli._tables import print_json
from sqsgd.cli.report import page_beside


def train(
    scheme: Annotated[
        str | None,
        typer.Option(help="See `sqsgd schemes`; auto: the best stateless.", autocompletion=complete_scheme),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="mnist5k, mnist, ... or package.module:factory.", autocompletion=complete_dataset),
    ] = None,
    data_dir: DataDir = None,
    model: Annotated[
        str | None, typer.Option(help="lenet5, resnet110, ... or package.module:factory.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Public features: hog, soft-hog or package.module:factory.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in all.")] = None,
    participation: Annotated[
        str | None, typer.Option(help="all, clients a round, or once: no client twice.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="iid, dirichlet:BETA, shards:N or drawn (any number of clients).")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Images of a client's batch.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of one report.")] = None,
    bytes_: Annotated[int | None, typer.Option("--bytes", help="Bytes for the packed codes.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in all.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; 0: by the rule for all budgets.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum or adam.")] = None,
    decay: Annotated[str | None, typer.Option(help="none, or linear: the learning rate falls.")] = None,
    ledgers: Annotated[Path | None, typer.Option(help="Folder of the clients' own ledgers.")] = None,
    bound: Annotated[float | None, typer.Option(help="Initial bound; 0: the scheme's own.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides everything but secure noise.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the scheme, such as levels=8; repeatable.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="local, or flower: the same over Flower.")] = None,
    tensorboard: Annotated[bool | None, typer.Option("--tensorboard", help="Write its events too.")] = None,
    secure: Annotated[
        bool | None, typer.Option("--secure", help="Noise from the system; it cannot be repeated.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with any of these keys.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model over simulated clients; ends with a summary and a folder on disk."""
    values = given(
        scheme=scheme, dataset=dataset, data_dir=None if data_dir is None else str(data_dir),
        model=model, features=features, decay=decay, ledgers=None if ledgers is None else str(ledgers),
        clients=clients, participation=participation, partition=partition, batch=batch,
        epsilon=epsilon, bytes=bytes_, rounds=rounds, lr=lr, optimizer=optimizer, bound=bound, seed=seed,
        engine=engine, tensorboard=tensorboard, secure=secure,
        options=scheme_options(option) if option else None,
    )  # fmt: skip
    _train(values, config, out, resume, as_json)


def _train(
    values: dict[str, Any], config_file: Path | None, out: Path | None, resume: bool, as_json: bool
) -> None:
    """Train from a file and overriding values, or go on with a run."""
    from sqsgd.experiments import runner
    from sqsgd.runs.config import load_config, make_config

    if resume:
        if out is None:
            raise ValueError("--resume needs --out: the folder of the run to go on with")
        if values or config_file:
            given = ", ".join(sorted(values) or ["config"])
            raise ValueError(f"--resume takes all from {out / 'config.toml'}; leave out {given}")
        if not (out / "config.toml").exists():
            raise ValueError(f"{out} holds no config.toml: there is nothing to resume")
        run = runner.prepare(load_config(out / "config.toml"), out)
        state = runner.resume(run)
    else:
        base = load_config(config_file) if config_file else make_config({})
        merged = {**dataclasses.asdict(base), **values}
        merged["options"] = {**base.options, **values.get("options", {})}
        config = make_config(merged, where="the command line")
        run = runner.prepare(config, out or Path("runs"))
        if out is None:  # only now, when nothing is wrong with the run, does it get a folder
            run = dataclasses.replace(run, folder=new_folder(config.dataset))
        state = runner.start(run)
    try:
        with stopping_between_rounds() as signals:
            steps = runner.train(run, state, stop=lambda: bool(signals))
            for _ in _shown(steps, run.config.rounds, state.round, quiet=as_json):
                pass
        if not (run.folder / "summary.json").exists():
            raise Ended(f"stopped; go on with: sqsgd train --resume --out {run.folder}", 128 + signals[0])
    except OSError as error:
        raise Ended(f"{error}; the last checkpoint in {run.folder} is intact") from error
    summary = json.loads((run.folder / "summary.json").read_text())
    page_beside([run.folder], run.folder / "report.html")
    if as_json:
        print_json({**summary, "folder": str(run.folder)})
    else:
        typer.echo(describe(summary, run.folder))


def _shown(steps: Iterator[Any], rounds: int, done: int, *, quiet: bool) -> Iterator[Any]:
    """Pass the steps on, with a progress bar on a terminal."""
    if quiet or not sys.stdout.isatty():
        yield from steps
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns) as bar:
        task, accuracy = bar.add_task("starting", total=rounds, completed=done), ""
        for record in steps:
            if record.accuracy is not None:
                accuracy = f"accuracy {record.accuracy:.2%}  "
            text = f"{accuracy}epsilon {record.epsilon_total:,g}  {record.bytes_up:,} bytes a report"
            bar.update(task, advance=1, description=text)
            yield record


def describe(summary: dict[str, Any], folder: Path) -> str:
    """The summary in words."""
    shares = ", ".join(
        f"{part} {summary[f'share_{part}']:.0%}" for part in ("gradient", "encode", "aggregate")
    )
    epsilon = f"{summary['epsilon']:g}" if summary["notion"] != "none" else "infinite: not private"
    total = f"{summary['epsilon_all_rounds']:,g}" if summary["notion"] != "none" else "infinite"
    if summary["participation"] == "once" and summary["notion"] == "local":
        spent = f"{epsilon} a report, which is the total: no user sends two"
    else:
        spent = f"{epsilon} a round; {total} for a client that takes part in all rounds"
        if summary["epsilon_total"] != summary["epsilon_all_rounds"]:
            spent += f"; {summary['epsilon_total']:,g} for the one that took part most"
    refused = [f"refused        {summary['refused']:,} reports, by their clients' own ledgers"]
    return "\n".join(
        [
            f"accuracy       {summary['accuracy']:.2%} on {summary['held_out']}",
            f"epsilon        {spent}",
            *(refused if summary["refused"] else []),
            f"noise          {summary['noise']}",
            f"payload        {summary['bytes_up']} bytes a client and round, "
            f"1/{summary['bytes_up_ratio']:.0f} of float32",
            f"time           {summary['seconds']:.0f} s: {shares}",
            f"written to     {folder}",
        ]
    )
