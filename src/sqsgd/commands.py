"""What the longer commands do; cli.py says how they are called."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import typer


def train(
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
        import dataclasses

        run = runner.prepare(
            make_config({**dataclasses.asdict(base), **values}, where="the command line"),
            out or Path("runs") / f"{base.dataset}-{time.strftime('%Y%m%d-%H%M%S')}",
        )
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
    if as_json:
        typer.echo(json.dumps({**summary, "folder": str(run.folder)}, indent=2))
    else:
        typer.echo(describe(summary, run.folder))


@contextlib.contextmanager
def stopping_between_rounds() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in the list that it gives; a second one has its usual effect.

    Python would raise KeyboardInterrupt wherever it stands: in a destructor, where it is lost, or in a
    callback from torch's C++, which then aborts. Both were seen.
    """
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        for each, usual in before.items():
            signal.signal(each, usual)
        os.write(2, b"stopping after this round; once more stops at once\n")  # print may be under way

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for each, usual in before.items():
            signal.signal(each, usual)


def _shown(steps: Iterator[Any], rounds: int, done: int, *, quiet: bool) -> Iterator[Any]:
    """Pass the steps on, with a progress bar on a terminal."""
    if quiet or not sys.stdout.isatty():
        yield from steps
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Bar(*columns) as bar:
        task, accuracy, sent = bar.add_task("starting", total=rounds, completed=done), "", 0
        for step in steps:
            sent += step.record.bytes_up
            if step.accuracy is not None:
                accuracy = f"accuracy {step.accuracy:.2%}  "
            text = f"{accuracy}epsilon {step.record.epsilon_total:,.0f}  {sent:,} bytes up a client"
            bar.update(task, advance=1, description=text)
            yield step


def describe(summary: dict[str, Any], folder: Path) -> str:
    """The summary in words."""
    shares = ", ".join(
        f"{part} {summary[f'share_{part}']:.0%}" for part in ("gradient", "encode", "aggregate")
    )
    epsilon = f"{summary['epsilon']:g}" if summary["notion"] != "none" else "infinite: not private"
    total = f"{summary['epsilon_total']:,g}" if summary["notion"] != "none" else "infinite"
    return "\n".join(
        [
            f"accuracy       {summary['accuracy']:.2%} on {summary['held_out']}",
            f"epsilon        {epsilon} a round; {total} for a client that took part in all of its rounds",
            f"noise          {summary['noise']}",
            f"payload        {summary['bytes_up']} bytes a client and round, "
            f"1/{summary['bytes_up_ratio']:.0f} of float32",
            f"time           {summary['seconds']:.0f} s: {shares}",
            f"written to     {folder}",
        ]
    )


def list_data(data_dir: Path | None, as_json: bool) -> None:
    """What data sets are here, what is missing, how to get it."""
    from sqsgd.learning.inventory import dataset_status

    rows = dataset_status(data_dir)
    if as_json:
        values = [
            {
                "name": row.name,
                "available": row.available,
                "where": str(row.where or ""),
                "missing": row.missing,
                "how": row.how,
            }
            for row in rows
        ]
        typer.echo(json.dumps(values, indent=2))
        return
    for row in rows:
        where = f"here: {row.where}" if row.available else f"missing {', '.join(row.missing)}; {row.how}"
        typer.echo(f"{row.name:14} {where}")


def fetch_data(name: str, data_dir: Path | None) -> None:
    """Download a data set from the public mirrors, verified."""
    from sqsgd.learning.fetch import fetch

    typer.echo(f"{name}: {fetch(name, data_dir)}")
