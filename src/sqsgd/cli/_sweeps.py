"""Run a sweep, print its table and write its page: what ``compare`` and ``ablate`` share."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sqsgd.cli._failures import Ended, explained
from sqsgd.cli._tables import cell, print_note, print_result, print_table, wrapped
from sqsgd.cli.options import Pace, progress_bar, stopping_between_rounds
from sqsgd.cli.report import final_page
from sqsgd.runs.headline import Headline
from sqsgd.training.run_folder import new_folder

if TYPE_CHECKING:
    from sqsgd.experiments.sweep import Sweep, Values
    from sqsgd.experiments.sweep_runner import Tick


COLUMNS = ("panel", "arm", "accuracy", "runs", "lr", "epsilon", "notion", "bytes up", "seconds", "failed")
LINES = 60
"""Seconds between two lines of progress where there is no terminal."""


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


def with_values(sweep: Sweep, values: Mapping[str, Any], title: str | None = None) -> Sweep:
    """The sweep with these values from the command line in every run, whatever its panels and arms say.

    A learning rate replaces those to choose from, and a seed is the first of as many as there were. Panels
    that become equal are one panel; arms that become equal are an error.
    """
    from sqsgd.experiments.sweep import merged

    common = dict(values)
    changes: dict[str, Any] = {"title": title or sweep.title}
    if "lr" in common:
        changes["rates"] = (common.pop("lr"),)
    if "seed" in common:
        first = common.pop("seed")
        changes["seeds"] = tuple(range(first, first + len(sweep.seeds)))
    panels: list[Values] = []
    for panel in sweep.panels:
        arms = {"arms": [_replaced(arm, common) for arm in panel["arms"]]} if "arms" in panel else {}
        if (changed := merged(panel, arms, common)) not in panels:
            panels.append(changed)
    changes |= {"panels": tuple(panels), "arms": tuple(_replaced(arm, common) for arm in sweep.arms)}
    try:
        return dataclasses.replace(sweep, **changes)
    except ValueError as error:
        named = ", ".join(f"--{'option' if key == 'options' else key.replace('_', '-')}" for key in values)
        raise ValueError(f"{error} (with {named})" if named else str(error)) from None


def _replaced(arm: Values, values: Mapping[str, Any]) -> dict[str, Any]:
    """The arm with the values of the keys that it sets itself."""
    from sqsgd.experiments.sweep import merged

    own = {key: value for key, value in values.items() if key in arm and key != "options"}
    wanted = values.get("options", {}).items()
    options = {key: value for key, value in wanted if key in arm.get("options", {})}
    return merged(arm, own, {"options": options} if options else {})


def run(sweep: Sweep, name: str, out: Path | None, *, resume: bool, jobs: int, as_json: bool) -> None:
    """Train a sweep, print its table and write its page; exits with 1 if an arm has no run."""
    from sqsgd import checks
    from sqsgd.experiments.sweep_runner import (
        Interrupted,
        check_data,
        check_folder,
        check_runs,
        open_folder,
        run_sweep,
    )
    from sqsgd.training.settings import cores

    jobs = checks.integer("jobs", jobs, 0, 1024) or cores()
    if out is not None:
        check_folder(sweep, out, resume=resume)
    check_data(sweep)
    lines = [] if resume else check_runs(sweep)
    out = new_folder(name) if out is None else out
    open_folder(sweep, out, resume=resume)
    page = out / "report.html"

    for line in lines:
        print_note(line)
    try:
        with stopping_between_rounds() as signals:
            _show(run_sweep(sweep, out, jobs=jobs, stop=signals), quiet=as_json)
    except Interrupted:
        raise Ended(f"stopped; resume with --resume --out {out}", 128 + signals[0]) from None
    except OSError as error:
        raise Ended(f"{explained(error)[0]}; the runs in {out} are kept, --resume continues them") from error
    rows = json.loads((out / "table.json").read_text())
    if not as_json:  # printed even if the page cannot be written
        _print_rows(rows, sweep.title)
        if any(row["half_width"] is not None for row in rows):
            meaning = "± is half the width of the 95 % confidence interval (Student's t) over the runs."
            typer.echo(wrapped(meaning))
    if all(row["runs"] == 0 for row in rows):
        reasons = [reason for row in rows for reason in row["failed"]]
        raise Ended(f"no run finished, so there is no page: {reasons[0] if reasons else f'see {out}'}")
    final_page(out / "runs", page, sweep.title)
    print_result(as_json, {"folder": str(out), "page": str(page), "rows": rows}, f"written to {page}")
    if any(row["runs"] == 0 for row in rows):
        sys.exit(1)


def _print_rows(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Print the table without columns that are empty in every row, such as the panel if there is one only."""
    table = [_cells(row) for row in rows]
    used = [index for index in range(len(COLUMNS)) if any(cells[index] for cells in table)]
    shown = [[cells[index] for index in used] for cells in table]
    headings = [_measured(rows) if heading == "accuracy" else heading for heading in COLUMNS]
    print_table([headings[index] for index in used], shown, title=title)


def _measured(rows: Iterable[dict[str, Any]]) -> str:
    """The heading of what was measured."""
    names = {row.get("metric", "accuracy") for row in rows}
    return names.pop() if len(names) == 1 else "result"


def _cells(row: dict[str, Any]) -> list[str]:
    headline, value = Headline(name=row.get("metric", "accuracy")), row.get("value", row["accuracy"])
    accuracy = "" if value is None else headline.shown(value)
    if row["half_width"] is not None:
        half = row["half_width"]
        text = f" ± {100 * half:.2f}" if headline.is_share else f" ± {half:.2g}"
        accuracy += text.replace(" ", "\N{NO-BREAK SPACE}")  # one word
    rate = "" if row["lr"] is None else f"{row['lr']:.3g}" + (" (rule)" if row["lr_by_rule"] else "")
    middle = [cell(row[name]) for name in ("epsilon", "notion", "bytes_up")]
    failed = row["failed"][0] if row["failed"] else ""
    return [
        row["panel"],
        row["arm"],
        accuracy,
        str(row["runs"]),
        rate,
        *middle,
        f"{row['seconds']:.0f}",
        failed,
    ]


def _show(ticks: Iterable[Tick], *, quiet: bool) -> None:
    """Show progress: a bar on a terminal, elsewhere lines on standard error."""
    if quiet or not sys.stdout.isatty():
        paces: dict[str, Pace] = {}
        for tick in ticks:
            if not quiet and paces.setdefault(tick.stage, Pace(LINES)).due():
                typer.echo(_progress(tick), err=True)
        return
    with progress_bar() as bar:
        task = bar.add_task("starting", total=1)
        for tick in ticks:
            bar.update(task, total=tick.of_rounds, completed=tick.rounds, description=_progress(tick))


def _progress(tick: Tick) -> str:
    failed = f", {tick.failed} failed" if tick.failed else ""
    rounds = f"round {tick.rounds:,} of {tick.of_rounds:,}"
    return f"{tick.stage}: {tick.runs} of {tick.of_runs} runs{failed}, {rounds}"
