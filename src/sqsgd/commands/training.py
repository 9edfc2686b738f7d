"""Training one model, with a bar to watch and a summary at the end."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sqsgd.commands.options import DataDir, Json, given
from sqsgd.commands.reports import page_beside
from sqsgd.commands.stopping import stopping_between_rounds


def train(
    scheme: Annotated[str | None, typer.Option(help="How gradients travel; see `sqsgd schemes`.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="mnist5k, mnist, ... or package.module:factory.")
    ] = None,
    data_dir: DataDir = None,
    model: Annotated[
        str | None, typer.Option(help="lenet5, resnet110, ... or package.module:factory.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in all.")] = None,
    participation: Annotated[str | None, typer.Option(help="all, or clients a round.")] = None,
    partition: Annotated[str | None, typer.Option(help="iid, dirichlet:BETA or shards:N.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images of a client's batch.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of one report.")] = None,
    bytes_: Annotated[int | None, typer.Option("--bytes", help="Bytes for the packed codes.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in all.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; 0: by the rule for all budgets.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum or adam.")] = None,
    bound: Annotated[float | None, typer.Option(help="Initial bound.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides everything but secure noise.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the scheme, such as levels=8; repeatable.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="local, or flower: the same over Flower.")] = None,
    tensorboard: Annotated[bool | None, typer.Option("--tensorboard", help="Write events too.")] = None,
    secure: Annotated[bool | None, typer.Option("--secure", help="Noise that cannot be repeated.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with any of these keys.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model over simulated clients; ends with a summary and a folder on disk."""
    values = given(
        scheme=scheme, dataset=dataset, data_dir=None if data_dir is None else str(data_dir),
        model=model, clients=clients, participation=participation, partition=partition, batch=batch,
        epsilon=epsilon, bytes=bytes_, rounds=rounds, lr=lr, optimizer=optimizer, bound=bound, seed=seed,
        engine=engine, tensorboard=tensorboard, secure=secure, options=_options(option) if option else None,
    )  # fmt: skip
    _train(values, config, out, resume, as_json)


def _options(pairs: list[str]) -> dict[str, object]:
    """levels=8 adaptive=true reach=1.5 as TOML values, or else as text."""
    import tomllib

    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"option = {pair!r} must look like name=value")
        try:
            values |= tomllib.loads(f"{name} = {value}")
        except tomllib.TOMLDecodeError:
            values[name] = value
    return values


def _train(
    values: dict[str, Any], config_file: Path | None, out: Path | None, resume: bool, as_json: bool
) -> None:
    """Train from a file and overriding values, or go on with a run."""
    from sqsgd.experiments import runner
    from sqsgd.experiments.config import load_config, make_config

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
        name = f"{config.dataset.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
        run = runner.prepare(config, out or Path("runs") / name)
        state = runner.start(run)
    try:
        with stopping_between_rounds() as signals:
            steps = runner.train(run, state, stop=lambda: bool(signals))
            for _ in _shown(steps, run.config.rounds, state.round, quiet=as_json):
                pass
        if not (run.folder / "summary.json").exists():
            typer.echo(f"stopped; go on with: sqsgd train --resume --out {run.folder}", err=True)
            sys.exit(128 + signals[0])
    except OSError as error:
        typer.echo(f"sqsgd: {error}; the last checkpoint in {run.folder} is intact", err=True)
        sys.exit(1)
    summary = json.loads((run.folder / "summary.json").read_text())
    page_beside([run.folder], run.folder / "report.html")
    if as_json:
        typer.echo(json.dumps({**summary, "folder": str(run.folder)}, indent=2))
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
        for step in steps:
            if step.accuracy is not None:
                accuracy = f"accuracy {step.accuracy:.2%}  "
            record = step.record
            text = f"{accuracy}epsilon {record.epsilon_total:,.0f}  {record.bytes_up:,} bytes a report"
            bar.update(task, advance=1, description=text)
            yield step


def describe(summary: dict[str, Any], folder: Path) -> str:
    """The summary in words."""
    shares = ", ".join(
        f"{part} {summary[f'share_{part}']:.0%}" for part in ("gradient", "encode", "aggregate")
    )
    epsilon = f"{summary['epsilon']:g}" if summary["notion"] != "none" else "infinite: not private"
    total = f"{summary['epsilon_all_rounds']:,g}" if summary["notion"] != "none" else "infinite"
    most = (
        ""
        if summary["epsilon_total"] == summary["epsilon_all_rounds"]
        else (f"; {summary['epsilon_total']:,g} for the one that took part most")
    )
    return "\n".join(
        [
            f"accuracy       {summary['accuracy']:.2%} on {summary['held_out']}",
            f"epsilon        {epsilon} a round; {total} for a client that takes part in all rounds{most}",
            f"noise          {summary['noise']}",
            f"payload        {summary['bytes_up']} bytes a client and round, "
            f"1/{summary['bytes_up_ratio']:.0f} of float32",
            f"time           {summary['seconds']:.0f} s: {shares}",
            f"written to     {folder}",
        ]
    )
