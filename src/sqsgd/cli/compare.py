"""``sqsgd compare``: several schemes under the same budgets; and what it shares with ``sqsgd ablate``.

Both take every option of ``sqsgd train``, run a sweep, print its table and write its page.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import shlex
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import click
import typer

from sqsgd._internal import checks
from sqsgd.cli._failures import Ended, explained
from sqsgd.cli._tables import cell, print_note, print_result, print_table, wrapped
from sqsgd.cli.options import (
    Jobs,
    Json,
    Out,
    Resume,
    Small,
    Title,
    given,
    listed,
    numbers,
    scheme_options,
    show_progress,
    stopping_between_rounds,
)
from sqsgd.cli.report import final_page
from sqsgd.cli.train import train
from sqsgd.training.settings import FIELDS, cores
from sqsgd.training.summary import Headline

if TYPE_CHECKING:
    from sqsgd.training.sweep import Sweep, Tick, Values

# ---------------------------------------------------------------- options of every run, arms and panels

PANEL = "Options of every run"
OTHERWISE = {
    "lr": "One learning rate for all runs; 0: computed from the budget.",
    "seed": "The first seed; the others follow it.",
}
"""Options that mean something else where there are many runs."""

Command = Callable[..., None]


def run_options() -> dict[str, inspect.Parameter]:
    """The parameters of ``sqsgd train`` that are keys of a configuration, and ``option``."""
    parameters = inspect.signature(train, eval_str=True).parameters
    return {
        name: parameter
        for name, parameter in parameters.items()
        if name.removesuffix("_") in FIELDS or name == "option"
    }


def takes_run_options(*, defaults: bool, without: Container[str] = ()) -> Callable[[Command], Command]:
    """Add every option of ``sqsgd train`` to a command, in a panel of its help of their own.

    ``defaults``: whether the help shows their defaults; without, they change what a file says. The command
    takes them as ``**_run``, and reads those that were typed with ``typed_values``.
    """

    def extended(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        kept = {name: each for name, each in own.parameters.items() if each.kind is not each.VAR_KEYWORD}
        added = list[inspect.Parameter]()
        for name, parameter in run_options().items():
            if name in kept or name in without:
                continue
            kind: Any
            kind, option = get_args(parameter.annotation)
            option, default = copy.copy(option), parameter.default
            option.rich_help_panel, option.help = PANEL, OTHERWISE.get(name, option.help)
            if kind is not bool and (not defaults or name in OTHERWISE):
                kind, default = kind | None, None
            annotation: Any = Annotated[kind, option]
            added.append(
                parameter.replace(annotation=annotation, default=default, kind=parameter.KEYWORD_ONLY)
            )
        command.__signature__ = own.replace(parameters=[*kept.values(), *added])  # type: ignore[attr-defined]
        return command

    return extended


def typed_values(context: click.Context) -> dict[str, Any]:
    """The configuration that was typed; the scheme's options under ``options``."""
    values = given(context, FIELDS)
    pairs = given(context, ("option",)).get("option")
    return {**values, "options": scheme_options(pairs)} if pairs else values


def worded(kind: str, text: str) -> dict[str, Any]:
    """An arm as ``NAME: SCHEME key=value ...`` or a panel as ``NAME: key=value ...``; names are optional.

    >>> worded("arm", "K = 16: sqsgd-paper levels=16 epsilon=100")
    {'name': 'K = 16', 'scheme': 'sqsgd-paper', 'epsilon': 100, 'options': {'levels': 16}}
    >>> worded("panel", "Few clients: clients=10 partition=dirichlet:0.1")
    {'name': 'Few clients', 'clients': 10, 'partition': 'dirichlet:0.1'}
    """
    name, colon, rest = f"{text} ".partition(": ")  # a colon within a value has no space after it
    try:
        words = shlex.split(rest if colon else text)
    except ValueError:
        raise ValueError(f"{kind} = {text!r} has a quotation mark that is not closed") from None
    pairs = words[1:] if kind == "arm" else words
    if not words or (kind == "arm" and "=" in words[0]) or not all("=" in pair for pair in pairs):
        form = "NAME: SCHEME key=value ..." if kind == "arm" else "NAME: key=value ..."
        raise ValueError(f"{kind} = {text!r} must look like {form!r}")
    found: dict[str, Any] = {"name": name.strip()} if colon else {}
    if kind == "arm":
        found["scheme"] = words[0]
    plain = {key.strip(): value for key, _, value in (pair.partition("=") for pair in pairs)}
    options = scheme_options(pairs)
    for key in [key for key in options if key in FIELDS]:
        value = options.pop(key)
        found[key] = plain[key] if isinstance(FIELDS[key].default, str) else value
    return {**found, "options": options} if options else found


# ---------------------------------------------------------------- sweeps

LINES = 60
"""Seconds between two lines of progress where there is no terminal."""


def sweep_to_resume(out: Path | None, more_given: bool) -> Sweep:
    """The sweep in ``out``; ValueError if there is none, or if more than --out and --jobs was given."""
    from sqsgd.training.run_folder import SWEEP
    from sqsgd.training.sweep import load_sweep

    if out is None:
        raise ValueError("--resume needs --out: the folder of the sweep to resume")
    if more_given:
        raise ValueError(f"--resume takes every setting from {out / SWEEP}; give it --out and --jobs only")
    if not (out / SWEEP).exists():
        raise ValueError(f"{out} has no {SWEEP}: there is nothing to resume")
    return load_sweep(out / SWEEP)


def with_values(sweep: Sweep, values: Mapping[str, Any], title: str | None = None) -> Sweep:
    """The sweep with these values from the command line in every run, whatever its panels and arms say.

    A learning rate replaces those to choose from, and a seed is the first of as many as there were. Panels
    that become equal are one panel; arms that become equal are an error.
    """
    from sqsgd.training.sweep import merged

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
    from sqsgd.training.sweep import merged

    own = {key: value for key, value in values.items() if key in arm and key != "options"}
    wanted = values.get("options", {}).items()
    options = {key: value for key, value in wanted if key in arm.get("options", {})}
    return merged(arm, own, {"options": options} if options else {})


def run(sweep: Sweep, name: str, out: Path | None, *, resume: bool, jobs: int, as_json: bool) -> None:
    """Train a sweep, print its table and write its page; exits with 1 if an arm has no run."""
    from sqsgd.training.run_folder import new_folder
    from sqsgd.training.sweep import Interrupted, check_folder, check_runs, open_folder, run_sweep

    jobs = checks.integer("jobs", jobs, 0, 1024) or cores()
    if out is not None:
        check_folder(sweep, out, resume=resume)
    lines = check_runs(sweep)
    out = new_folder(name) if out is None else out
    open_folder(sweep, out, resume=resume)
    for line in () if resume else lines:
        print_note(line)
    try:
        with stopping_between_rounds() as signals:
            ticks = run_sweep(sweep, out, jobs=jobs, stop=signals)
            show_progress(ticks, _progress, quiet=as_json, seconds=LINES)
    except Interrupted:
        raise Ended(f"stopped; resume with --resume --out {out}", 128 + signals[0]) from None
    except OSError as error:
        raise Ended(f"{explained(error)[0]}; the runs in {out} are kept, --resume continues them") from error
    rows, page = json.loads((out / "table.json").read_text()), out / "report.html"
    if not as_json:  # printed even if the page cannot be written
        print_rows(rows, sweep.title)
        if any(row["half_width"] is not None for row in rows):
            typer.echo(
                wrapped("± is half the width of the 95 % confidence interval (Student's t) over the runs.")
            )
    if all(row["runs"] == 0 for row in rows):
        reasons = [reason for row in rows for reason in row["failed"]]
        raise Ended(f"no run finished, so there is no page: {reasons[0] if reasons else f'see {out}'}")
    final_page(out / "runs", page, sweep.title)
    print_result(as_json, {"folder": str(out), "page": str(page), "rows": rows}, f"written to {page}")
    if any(row["runs"] == 0 for row in rows):
        sys.exit(1)


def print_rows(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Print the table without columns that are empty in every row, such as the panel if there is one only."""
    metrics = {row["metric"] for row in rows}
    measured = metrics.pop() if len(metrics) == 1 else "result"
    table = [_cells(row, measured) for row in rows]
    used = [name for name in table[0] if any(cells[name] for cells in table)]
    print_table(used, [[cells[name] for name in used] for cells in table], title=title)


def _cells(row: dict[str, Any], measured: str) -> dict[str, str]:
    headline, value, half = Headline(name=row["metric"]), row["value"], row["half_width"]
    result = "" if value is None else headline.shown(value)
    if half is not None:
        text = f" ± {100 * half:.2f}" if headline.is_share else f" ± {half:.2g}"
        result += text.replace(" ", "\N{NO-BREAK SPACE}")  # one word
    return {
        "panel": row["panel"],
        "arm": row["arm"],
        measured: result,
        "runs": str(row["runs"]),
        "lr": "" if row["lr"] is None else f"{row['lr']:.3g}" + (" (rule)" if row["lr_by_rule"] else ""),
        "epsilon": cell(row["epsilon"]),
        "notion": cell(row["notion"]),
        "bytes up": cell(row["bytes_up"]),
        "seconds": f"{row['seconds']:.0f}",
        "failed": row["failed"][0] if row["failed"] else "",
    }


def _progress(tick: Tick) -> tuple[int, int, str]:
    failed = f", {tick.failed} failed" if tick.failed else ""
    rounds = f"round {tick.rounds:,} of {tick.of_rounds:,}"
    text = f"{tick.stage}: {tick.runs} of {tick.of_runs} runs{failed}, {rounds}"
    return tick.rounds, tick.of_rounds, text


# ---------------------------------------------------------------- the command

OF_THE_FILE = ("schemes", "arm", "panel", "rates", "seeds")


@takes_run_options(defaults=True, without=("scheme", "name"))
def compare(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file, or one of the package, such as figure5-mnist.")
    ] = None,
    schemes: Annotated[
        str, typer.Option(help="Comma-separated names of schemes: one arm each.")
    ] = "sqsgd,sqsgd-paper,piecewise,fedsgd",
    arm: Annotated[
        list[str] | None,
        typer.Option(help="An arm as 'NAME: SCHEME key=value ...'; repeatable, replaces --schemes."),
    ] = None,
    panel: Annotated[
        list[str] | None,
        typer.Option(help="A panel as 'NAME: key=value ...', with every arm in it; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per scheme at its best rate.")] = 3,
    rates: Annotated[
        str, typer.Option(help="Learning rates to try; 0: computed from the budget.")
    ] = "0,0.01,0.03,0.1,0.3",
    small: Small = False,
    title: Title = None,
    jobs: Jobs = 0,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    **_run: Any,
) -> None:
    """Train several schemes under the same budgets of epsilon and bytes, each at its best learning rate."""
    from sqsgd.training.sweep import experiment_file, load_sweep, make_sweep

    typed, values = given(context), typed_values(context)
    if "lr" in values and "rates" in typed:
        raise ValueError("lr and rates exclude each other: give --rates to choose from, or one --lr")
    if resume:
        sweep = sweep_to_resume(out, bool(typed.keys() - {"out", "resume", "jobs", "as_json"}))
    elif config:
        if twice := [name for name in OF_THE_FILE if name in typed]:
            raise ValueError(f"{' and '.join(twice)}: set in the --config file; leave it out here")
        sweep = with_values(load_sweep(experiment_file(config), small=small), values, title)
    else:
        checks.integer("seeds", seeds, 1, 10_000)
        if small:
            raise ValueError("--small needs --config: the small version is defined in that file")
        if arm and "schemes" in typed:
            raise ValueError("schemes and arm exclude each other: write each scheme as an --arm")
        arms = [worded("arm", each) for each in arm or []] or [{"scheme": name} for name in listed(schemes)]
        if not arms:
            raise ValueError("schemes is empty: give one or more, separated by commas, such as sqsgd,fedsgd")
        order: dict[str, Any] = {name: values.pop(name) for name in ("lr", "seed") if name in values}
        sweep = make_sweep(
            {
                "title": "Comparison on the same budgets of epsilon and bytes",
                "base": values,  # what an arm or a panel says precedes it
                "arms": arms,
                "panels": [worded("panel", each) for each in panel or []] or [{}],
                "rates": numbers("rates", rates),
                "seeds": list(range(1, 1 + seeds)),
            },
            "the command line",
        )
        sweep = with_values(sweep, order, title)
    run(sweep, "compare", out, resume=resume, jobs=jobs, as_json=as_json)
