"""Run a sweep, print its table and write its page: what ``compare`` and ``ablate`` share."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sqsgd.cli._failures import Ended
from sqsgd.cli._stopping import stopping_between_rounds
from sqsgd.cli._tables import cell, print_json, print_table
from sqsgd.cli.report import try_write_report
from sqsgd.runs.headline import Headline
from sqsgd.runs.new_folders import new_folder

if TYPE_CHECKING:
    from sqsgd.experiments.sweep import Sweep
    from sqsgd.experiments.sweep_runner import Tick


def sweep_to_resume(out: Path | None, more_given: bool) -> Sweep:
    """The sweep in ``out``; ValueError if there is none, or if more than --out and --jobs was given."""
    from sqsgd.experiments.sweep import load_sweep
    from sqsgd.experiments.sweep_runner import FILE

    if out is None:
        raise ValueError("--resume needs --out: the folder of the sweep to resume")
    if more_given:
        raise ValueError(f"--resume takes every setting from {out / FILE}; give it --out and --jobs only")
    if not (out / FILE).exists():
        raise ValueError(f"{out} has no {FILE}: there is nothing to resume")
    return load_sweep(out / FILE)


def with_values(sweep: Sweep, values: dict[str, Any]) -> Sweep:
    """The sweep with these values from the command line in every run."""
    panels = tuple({**panel, **values} for panel in sweep.panels)
    return dataclasses.replace(sweep, panels=panels)


def run(sweep: Sweep, name: str, out: Path | None, *, resume: bool, jobs: int, as_json: bool) -> None:
    """Train a sweep, print its table and write its page; exits with 1 if an arm has no run."""
    from sqsgd import checks
    from sqsgd.experiments.sweep_runner import Interrupted, check_data, open_folder, run_sweep
    from sqsgd.runs.config import cores

    jobs = checks.integer("jobs", jobs, 0, 1024) or cores()
    check_data(sweep)
    out = new_folder(name) if out is None else out
    open_folder(sweep, out, resume=resume)
    try:
        with stopping_between_rounds() as signals:
            _show(run_sweep(sweep, out, jobs=jobs, stop=signals), quiet=as_json)
    except Interrupted:
        raise Ended(f"stopped; resume with --resume --out {out}", 128 + signals[0]) from None
    rows = json.loads((out / "table.json").read_text())
    page = try_write_report([out / "runs"], out / "report.html", sweep.title)
    if as_json:
        print_json({"folder": str(out), "page": str(page or ""), "rows": rows})
    else:
        print_table(
            (
                "panel",
                "arm",
                _measured(rows),
                "runs",
                "lr",
                "epsilon",
                "notion",
                "bytes up",
                "seconds",
                "failed",
            ),
            [_cells(row) for row in rows],
            title=sweep.title,
        )
        typer.echo(f"written to {page or out}")
    if any(row["runs"] == 0 for row in rows):
        sys.exit(1)


def _measured(rows: Iterable[dict[str, Any]]) -> str:
    """The heading of what was measured."""
    names = {row.get("metric", "accuracy") for row in rows}
    return names.pop() if len(names) == 1 else "result"


def _cells(row: dict[str, Any]) -> list[str]:
    headline, value = Headline(name=row.get("metric", "accuracy")), row.get("value", row["accuracy"])
    accuracy = "" if value is None else headline.shown(value)
    if row["half_width"] is not None:
        half = row["half_width"]
        accuracy += f" ± {100 * half:.2f}" if headline.is_share else f" ± {half:.2g}"
    middle = [cell(row[name]) for name in ("runs", "lr", "epsilon", "notion", "bytes_up")]
    failed = row["failed"][0] if row["failed"] else ""
    return [row["panel"], row["arm"], accuracy, *middle, f"{row['seconds']:.0f}", failed]


def _show(ticks: Iterable[Tick], *, quiet: bool) -> None:
    """Show progress: a bar on a terminal, elsewhere one line per minute on standard error."""
    if quiet or not sys.stdout.isatty():
        last = 0.0
        for tick in ticks:
            if not quiet and time.monotonic() > last + 60:
                last = time.monotonic()
                typer.echo(_progress(tick), err=True)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}")) as bar:
        task = bar.add_task("starting", total=1)
        for tick in ticks:
            bar.update(task, total=tick.of_rounds, completed=tick.rounds, description=_progress(tick))


def _progress(tick: Tick) -> str:
    failed = f", {tick.failed} failed" if tick.failed else ""
    rounds = f"round {tick.rounds:,} of {tick.of_rounds:,}"
    return f"{tick.stage}: {tick.runs} of {tick.of_runs} runs{failed}, {rounds}"
