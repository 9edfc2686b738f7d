"""``sqsgd train``: train one model, with a progress bar and a summary at the end."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand

from sqsgd.cli._failures import Ended
from sqsgd.cli._new_folders import new_folder
from sqsgd.cli._options import (
    Bytes,
    Clients,
    DataDir,
    Dataset,
    Epsilon,
    Json,
    Model,
    Rate,
    Rounds,
    SchemeOption,
    complete_scheme,
    given,
    scheme_options,
)
from sqsgd.cli._stopping import stopping_between_rounds
from sqsgd.cli._tables import print_result
from sqsgd.cli.report import try_write_report
from sqsgd.runs.config import FIELDS, RunConfig


class Command(TyperCommand):
    """Explains that a configuration key without an option belongs in the file given with ``--config``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = error.option_name.lstrip("-").replace("-", "_")
            if key in FIELDS and f"--{key.replace('_', '-')}" not in {each.opts[0] for each in self.params}:
                reason = f"{error.format_message()} {key} is a key of the --config file."
                raise click.UsageError(reason, ctx) from None
            raise


def train(
    context: typer.Context,
    scheme: Annotated[
        str,
        typer.Option(
            help="See `sqsgd schemes`; auto: the best stateless one.", autocompletion=complete_scheme
        ),
    ] = RunConfig.scheme,
    dataset: Dataset = RunConfig.dataset,
    data_dir: DataDir = None,
    model: Model = RunConfig.model,
    features: Annotated[
        str | None,
        typer.Option(
            help="Public features: hog, soft-hog, font-digits, efficientnet-lite0 or "
            "package.module:factory; several with weights: soft-hog:0.7+font-digits:0.7."
        ),
    ] = None,
    clients: Clients = RunConfig.clients,
    participation: Annotated[
        str, typer.Option(help="all, a number of clients per round, or once: one round per client.")
    ] = RunConfig.participation,
    partition: Annotated[
        str, typer.Option(help="iid, dirichlet:BETA, shards:N or drawn (any number of clients).")
    ] = RunConfig.partition,
    batch: Annotated[int, typer.Option(help="Batch size of a client.")] = RunConfig.batch,
    epsilon: Epsilon = RunConfig.epsilon,
    bytes_: Bytes = RunConfig.bytes,
    rounds: Rounds = RunConfig.rounds,
    lr: Rate = RunConfig.lr,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum or adam.")] = RunConfig.optimizer,
    decay: Annotated[str, typer.Option(help="Decay of the rate: auto, none or linear.")] = RunConfig.decay,
    ledgers: Annotated[Path | None, typer.Option(help="Folder of the clients' own ledgers.")] = None,
    bound: Annotated[float, typer.Option(help="Initial bound; 0: the scheme's own.")] = RunConfig.bound,
    seed: Annotated[int, typer.Option(help="Seed of everything but secure noise.")] = RunConfig.seed,
    option: SchemeOption = None,
    engine: Annotated[
        str, typer.Option(help="local, or flower: the same run over Flower.")
    ] = RunConfig.engine,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events.")] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Noise from the operating system; the run cannot be repeated.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="A TOML file with any of these keys.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model over simulated clients; writes a run folder and prints a summary."""
    values = given(context, FIELDS)
    if option:
        values["options"] = scheme_options(option)
    _train(values, config, out, resume, as_json)


def _train(
    values: dict[str, Any], config_file: Path | None, out: Path | None, resume: bool, as_json: bool
) -> None:
    """Start a run from a file and values that override it, or resume a run."""
    from sqsgd.experiments import runner
    from sqsgd.runs.config import load_config, make_config

    if resume:
        if out is None:
            raise ValueError("--resume needs --out: the folder of the run to resume")
        if values or config_file:
            named = ", ".join(sorted(values) or ["config"])
            raise ValueError(f"--resume takes every setting from {out / 'config.toml'}; leave out {named}")
        if not (out / "config.toml").exists():
            raise ValueError(f"{out} has no config.toml: there is nothing to resume")
        run = runner.prepare(load_config(out / "config.toml"), out)
        state = runner.resume(run)
    else:
        base = load_config(config_file) if config_file else make_config({})
        merged = {**dataclasses.asdict(base), **values}
        merged["options"] = {**base.options, **values.get("options", {})}
        config = make_config(merged, where="the command line")
        run = runner.prepare(config, out or Path("runs"))
        if out is None:  # created only now that the run is known to be valid
            run = dataclasses.replace(run, folder=new_folder(config.dataset))
        state = runner.start(run)
    try:
        with stopping_between_rounds() as signals:
            steps = runner.train(run, state, stop=lambda: bool(signals))
            for _ in _shown(steps, run.config.rounds, state.round, quiet=as_json):
                pass
        if not (run.folder / "summary.json").exists():
            raise Ended(f"stopped; resume with: sqsgd train --resume --out {run.folder}", 128 + signals[0])
    except OSError as error:
        raise Ended(f"{error}; the last checkpoint in {run.folder} is intact") from error
    summary = json.loads((run.folder / "summary.json").read_text())
    try_write_report([run.folder], run.folder / "report.html")
    print_result(as_json, {**summary, "folder": str(run.folder)}, describe(summary, run.folder))


def _shown(steps: Iterator[Any], rounds: int, done: int, *, quiet: bool) -> Iterator[Any]:
    """Yield the steps, with a progress bar on a terminal."""
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
            text = f"{accuracy}epsilon {record.epsilon_total:,g}  {record.bytes_up:,} bytes per report"
            bar.update(task, advance=1, description=text)
            yield record


def describe(summary: dict[str, Any], folder: Path) -> str:
    """The summary of a run as text."""
    shares = ", ".join(
        f"{part} {summary[f'share_{part}']:.0%}" for part in ("gradient", "encode", "aggregate")
    )
    epsilon = f"{summary['epsilon']:g}" if summary["notion"] != "none" else "infinite (not private)"
    total = f"{summary['epsilon_all_rounds']:,g}" if summary["notion"] != "none" else "infinite"
    if summary["participation"] == "once" and summary["notion"] == "local":
        spent = f"{epsilon} per report, which is the total: no user sends two"
    else:
        spent = f"{epsilon} per round; {total} for a client that takes part in all rounds"
        if summary["epsilon_total"] != summary["epsilon_all_rounds"]:
            spent += f"; {summary['epsilon_total']:,g} for the client that took part most often"
    refused = [f"refused        {summary['refused']:,} reports, by their clients' own ledgers"]
    return "\n".join(
        [
            f"accuracy       {summary['accuracy']:.2%} on {summary['held_out']}",
            f"epsilon        {spent}",
            *(refused if summary["refused"] else []),
            f"noise          {summary['noise']}",
            *(
                f"{name:14} {summary[f'{name}_note']}"
                for name in ("order", "central")
                if f"{name}_note" in summary
            ),
            f"payload        {summary['bytes_up']} bytes per client and round, "
            f"1/{summary['bytes_up_ratio']:.0f} of float32",
            f"time           {summary['seconds']:.0f} s: {shares}",
            f"written to     {folder}",
        ]
    )
