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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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
    Pace,
    Resume,
    Small,
    Title,
    given,
    listed,
    numbers,
    progress_bar,
    scheme_options,
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
        kept = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        names = {each.name for each in kept}
        added = [
            _as_option(parameter, shows_default=defaults)
            for name, parameter in run_options().items()
            if name not in names and name not in without
        ]
        command.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        return command

    return extended


def _as_option(parameter: inspect.Parameter, *, shows_default: bool) -> inspect.Parameter:
    kind: Any
    kind, option = get_args(parameter.annotation)
    option = copy.copy(option)
    option.rich_help_panel = PANEL
    option.help = OTHERWISE.get(parameter.name, option.help)
    default = parameter.default
    if not (shows_default and parameter.name not in OTHERWISE) and kind is not bool:
        kind, default = kind | None, None
    annotation: Any = Annotated[kind, option]
    return parameter.replace(annotation=annotation, default=default, kind=inspect.Parameter.KEYWORD_ONLY)


def typed_values(context: click.Context) -> dict[str, Any]:
    """The configuration that was typed; the scheme's options under ``options``."""
    values = given(context, FIELDS)
    pairs = given(context, ("option",)).get("option")
    return {**values, "options": scheme_options(list(pairs))} if pairs else values


def worded_arm(text: str) -> dict[str, Any]:
    """An arm as ``NAME: SCHEME key=value ...``; the name may be left out.

    >>> worded_arm("K = 16: sqsgd-paper levels=16 epsilon=100")
    {'name': 'K = 16', 'scheme': 'sqsgd-paper', 'epsilon': 100, 'options': {'levels': 16}}
    """
    name, words = _parts("arm", text)
    if not words or "=" in words[0] or not all("=" in word for word in words[1:]):
        raise ValueError(f"arm = {text!r} must look like 'NAME: SCHEME key=value ...'")
    return {**name, "scheme": words[0], **_keys(words[1:])}


def worded_panel(text: str) -> dict[str, Any]:
    """A panel as ``NAME: key=value ...``; the name may be left out.

    >>> worded_panel("Few clients: clients=10 partition=dirichlet:0.1")
    {'name': 'Few clients', 'clients': 10, 'partition': 'dirichlet:0.1'}
    """
    name, words = _parts("panel", text)
    if not words or not all("=" in word for word in words):
        raise ValueError(f"panel = {text!r} must look like 'NAME: key=value ...'")
    return {**name, **_keys(words)}


def _parts(option: str, text: str) -> tuple[dict[str, str], list[str]]:
    """The name before the first colon that a space or nothing follows, and the words after it."""
    name, colon, rest = f"{text} ".partition(": ")
    try:
        words = shlex.split(rest if colon else text)
    except ValueError:
        raise ValueError(f"{option} = {text!r} has a quotation mark that is not closed") from None
    return ({"name": name.strip()} if colon else {}), words


def _keys(pairs: list[str]) -> dict[str, Any]:
    """Keys of a run as such, all others as options of its scheme."""
    read = scheme_options(pairs)
    plain = {pair.partition("=")[0].strip(): pair.partition("=")[2] for pair in pairs}
    keys = {
        name: plain[name] if isinstance(FIELDS[name].default, str) else value
        for name, value in read.items()
        if name in FIELDS and name != "options"
    }
    options = {name: value for name, value in read.items() if name not in FIELDS}
    return {**keys, **({"options": options} if options else {})}


# ---------------------------------------------------------------- sweeps

COLUMNS = ("panel", "arm", "accuracy", "runs", "lr", "epsilon", "notion", "bytes up", "seconds", "failed")
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
            _show(run_sweep(sweep, out, jobs=jobs, stop=signals), quiet=as_json)
    except Interrupted:
        raise Ended(f"stopped; resume with --resume --out {out}", 128 + signals[0]) from None
    except OSError as error:
        raise Ended(f"{explained(error)[0]}; the runs in {out} are kept, --resume continues them") from error
    rows, page = json.loads((out / "table.json").read_text()), out / "report.html"
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
    names = {row["metric"] for row in rows}
    return names.pop() if len(names) == 1 else "result"


def _cells(row: dict[str, Any]) -> list[str]:
    headline, value = Headline(name=row["metric"]), row["value"]
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
        arms = [worded_arm(each) for each in arm or []] or [{"scheme": name} for name in listed(schemes)]
        if not arms:
            raise ValueError("schemes is empty: give one or more, separated by commas, such as sqsgd,fedsgd")
        order: dict[str, Any] = {name: values.pop(name) for name in ("lr", "seed") if name in values}
        sweep = make_sweep(
            {
                "title": "Comparison on the same budgets of epsilon and bytes",
                "base": values,  # what an arm or a panel says precedes it
                "arms": arms,
                "panels": [worded_panel(each) for each in panel or []] or [{}],
                "rates": numbers("rates", rates),
                "seeds": list(range(1, 1 + seeds)),
            },
            "the command line",
        )
        sweep = with_values(sweep, order, title)
    run(sweep, "compare", out, resume=resume, jobs=jobs, as_json=as_json)
