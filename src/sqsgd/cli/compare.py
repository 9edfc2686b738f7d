"""Comparisons and ablations: many runs, one table, one page."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli._failures import Ended
from sqsgd.cli._new_folders import new_folder
from sqsgd.cli._options import (
    DataDir,
    Jobs,
    Json,
    Out,
    Resume,
    Small,
    complete_ablation,
    given,
    listed,
    numbers,
)
from sqsgd.cli._stopping import stopping_between_rounds
from sqsgd.cli._tables import cell, print_json, print_table
from sqsgd.cli.report import page_beside

if TYPE_CHECKING:
    from sqsgd.experiments.sweep import Sweep
    from sqsgd.experiments.sweep_runner import Tick

RATES = [0.01, 0.03, 0.1, 0.3]
SCHEMES = ("sqsgd", "sqsgd-paper", "piecewise", "fedsgd")


def compare(
    config: Annotated[
        Path | None, typer.Option(help="A file such as experiments/figure5-mnist.toml.")
    ] = None,
    schemes: Annotated[
        str | None, typer.Option(help=f"Names with commas between (default: {','.join(SCHEMES)}).")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="As for train.")] = None,
    data_dir: DataDir = None,
    model: Annotated[str | None, typer.Option(help="As for train.")] = None,
    clients: Annotated[int | None, typer.Option(help="As for train.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of one report, for all.")] = None,
    bytes_: Annotated[int | None, typer.Option("--bytes", help="Bytes for the codes, for all.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of each run.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each scheme that count (default: 3).")] = None,
    rates: Annotated[
        str | None,
        typer.Option(help="Learning rates to try (default: 0.01,0.03,0.1,0.3); 0: the rule's."),
    ] = None,
    small: Small = False,
    jobs: Jobs = 0,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train several schemes on the same budgets of epsilon and bytes, each at the best of the same rates."""
    values = given(
        dataset=dataset, data_dir=None if data_dir is None else str(data_dir), model=model, clients=clients,
        epsilon=epsilon, bytes=bytes_, rounds=rounds,
    )  # fmt: skip
    _compare(
        config, None if schemes is None else listed(schemes), values, seeds=seeds,
        rates=None if rates is None else numbers("rates", rates), small=small,
        out=out, resume=resume, jobs=jobs, as_json=as_json,
    )  # fmt: skip


def ablate(
    name: Annotated[
        str,
        typer.Argument(
            help="communication, privacy, subsampling or tradeoff.", autocompletion=complete_ablation
        ),
    ],
    data_dir: DataDir = None,
    dataset: Annotated[str | None, typer.Option(help="Another data set than the figure's.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model than the figure's.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Another number of rounds.")] = None,
    small: Small = False,
    jobs: Jobs = 0,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Run one of the paper's ablations (figures 1 to 4) with its settings."""
    values = given(
        data_dir=None if data_dir is None else str(data_dir), dataset=dataset, model=model, rounds=rounds
    )
    _ablate(name, values, small=small, out=out, resume=resume, jobs=jobs, as_json=as_json)


def _compare(
    config: Path | None,
    schemes: list[str] | None,
    values: dict[str, Any],
    *,
    seeds: int | None,
    rates: list[float] | None,
    small: bool,
    out: Path | None,
    resume: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """Compare schemes: from a file, or the named ones with the values of the command line."""
    from sqsgd.experiments.sweep import load_sweep, make_sweep

    if resume:
        more = (config, schemes, values or None, seeds, rates, small or None)
        sweep = _sweep_to_resume(out, any(each is not None for each in more))
    elif config:
        if (schemes, rates, seeds) != (None, None, None):
            raise ValueError("schemes, rates and seeds stand in the file of --config; leave them out here")
        sweep = _with(load_sweep(config, small=small), values)
    else:
        if small:
            raise ValueError("--small needs --config: the file says what its small version is")
        if schemes == []:
            raise ValueError("schemes is empty: name one or more, with commas between, such as sqsgd,fedsgd")
        sweep = make_sweep(
            {
                "title": "Comparison on the same budgets of epsilon and bytes",
                "arms": [{"scheme": name} for name in (SCHEMES if schemes is None else schemes)],
                "base": values,
                "rates": RATES if rates is None else rates,
                "seeds": list(range(1, 1 + (3 if seeds is None else seeds))),
            },
            "the command line",
        )
    _run(sweep, "compare", out, resume=resume, jobs=jobs, as_json=as_json)


def _ablate(
    name: str,
    values: dict[str, Any],
    *,
    small: bool,
    out: Path | None,
    resume: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """One of the paper's figures 1 to 4."""
    from sqsgd.checks import meant
    from sqsgd.experiments.sweep import FIGURES, figure_file, load_sweep

    if name not in FIGURES:
        files = [f"{known} ({file.split('-')[0]})" for known, file in FIGURES.items()]
        raise ValueError(f"{name!r} is no ablation{meant(name, FIGURES)} (there are {', '.join(files)})")
    if resume:
        sweep = _sweep_to_resume(out, small or bool(values))
    else:
        sweep = _with(load_sweep(figure_file(FIGURES[name]), small=small), values)
    _run(sweep, name, out, resume=resume, jobs=jobs, as_json=as_json)


def _sweep_to_resume(out: Path | None, more_given: bool) -> Sweep:
    from sqsgd.experiments.sweep import load_sweep
    from sqsgd.experiments.sweep_runner import FILE

    if out is None:
        raise ValueError("--resume needs --out: the folder of the sweep to go on with")
    if more_given:
        raise ValueError(f"--resume takes all from {out / FILE}; give it --out and --jobs only")
    if not (out / FILE).exists():
        raise ValueError(f"{out} holds no {FILE}: there is nothing to resume")
    return load_sweep(out / FILE)


def _with(sweep: Sweep, values: dict[str, Any]) -> Sweep:
    """The sweep with values of the command line in every run."""
    import dataclasses

    panels = tuple({**panel, **values} for panel in sweep.panels)
    return dataclasses.replace(sweep, panels=panels)


def _run(sweep: Sweep, name: str, out: Path | None, *, resume: bool, jobs: int, as_json: bool) -> None:
    from sqsgd import checks
    from sqsgd.experiments.sweep_runner import Interrupted, check_data, open_folder, run_sweep
    from sqsgd.runs.config import cores

    jobs = checks.integer("jobs", jobs, 0, 1024) or cores()
    check_data(sweep)
    out = new_folder(name) if out is None else out
    open_folder(sweep, out, resume=resume)
    try:
        with stopping_between_rounds() as signals:
            _shown(run_sweep(sweep, out, jobs=jobs, stop=signals), quiet=as_json)
    except Interrupted:
        raise Ended(f"stopped; go on with --resume --out {out}", 128 + signals[0]) from None
    rows = json.loads((out / "table.json").read_text())
    page = page_beside([out / "runs"], out / "report.html", sweep.title)
    if as_json:
        print_json({"folder": str(out), "page": str(page or ""), "rows": rows})
    else:
        print_table(
            ("panel", "arm", "accuracy", "runs", "lr", "epsilon", "notion", "bytes up", "seconds", "failed"),
            [_cells(row) for row in rows],
            title=sweep.title,
        )
        typer.echo(f"written to {page or out}")
    if any(row["runs"] == 0 for row in rows):
        sys.exit(1)


def _cells(row: dict[str, Any]) -> list[str]:
    accuracy = "" if row["accuracy"] is None else f"{row['accuracy']:.2%}"
    if row["half_width"] is not None:
        accuracy += f" ± {100 * row['half_width']:.2f}"
    middle = [cell(row[name]) for name in ("runs", "lr", "epsilon", "notion", "bytes_up")]
    failed = row["failed"][0] if row["failed"] else ""
    return [row["panel"], row["arm"], accuracy, *middle, f"{row['seconds']:.0f}", failed]


def _shown(ticks: Iterable[Tick], *, quiet: bool) -> None:
    """A progress bar on a terminal; a line now and then elsewhere, on standard error."""
    if quiet or not sys.stdout.isatty():
        last = 0.0
        for tick in ticks:
            if not quiet and time.monotonic() > last + 60:
                last = time.monotonic()
                typer.echo(_words(tick), err=True)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}")) as bar:
        task = bar.add_task("starting", total=1)
        for tick in ticks:
            bar.update(task, total=tick.of_rounds, completed=tick.rounds, description=_words(tick))


def _words(tick: Tick) -> str:
    failed = f", {tick.failed} failed" if tick.failed else ""
    rounds = f"round {tick.rounds:,} of {tick.of_rounds:,}"
    return f"{tick.stage}: {tick.runs} of {tick.of_runs} runs{failed}, {rounds}"
