"""``sqsgd compare`` and ``sqsgd ablate``: both run a sweep, print its table and write its page."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli import options
from sqsgd.cli.output import Ended, cell, explained, print_result, print_table, wrapped
from sqsgd.cli.train import final_page, typed_values
from sqsgd.training.settings import RunConfig, cores
from sqsgd.training.summary import Headline

if TYPE_CHECKING:
    from sqsgd.runs.sweep import Sweep, Values

PANEL = "Options of every run; --seed: the first of the seeds"


def sweep_to_resume(out: Path | None, typed: Mapping[str, Any]) -> Sweep:
    from sqsgd.runs.sweep import load_sweep
    from sqsgd.training.run_folder import SWEEP

    if out is None:
        raise ValueError("--resume needs --out: the folder of the sweep to resume")
    if typed.keys() - {"figure", "out", "resume", "jobs", "as_json"}:
        raise ValueError(f"--resume takes every setting from {out / SWEEP}; give it --out and --jobs only")
    if not (out / SWEEP).exists():
        raise ValueError(f"{out} has no {SWEEP}: nothing to resume")
    return load_sweep(out / SWEEP)


def with_values(sweep: Sweep, values: Mapping[str, Any], title: str | None = None) -> Sweep:
    """Return the sweep with these values in every run; panels that become equal are one panel.

    A learning rate replaces those to choose from, and a seed is the first of as many as there were.
    """
    from sqsgd.runs.sweep import merged

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
    from sqsgd.runs.sweep import merged

    own = {key: value for key, value in values.items() if key in arm and key != "options"}
    wanted = values.get("options", {}).items()
    chosen = {key: value for key, value in wanted if key in arm.get("options", {})}
    return merged(arm, own, {"options": chosen} if chosen else {})


def run(sweep: Sweep, name: str, out: Path | None, *, resume: bool, jobs: int, as_json: bool) -> None:
    """Train a sweep, print its table and write its page. Exits with 1 if an arm has no run."""
    from sqsgd.runs.sweep import Interrupted, begin_sweep, check_folder, check_runs, run_sweep
    from sqsgd.training.run_folder import new_folder

    if out is not None and not resume:
        check_folder(out)
    with options.Progress(quiet=as_json) as progress:
        progress.show("loading torch", now="torch" not in sys.modules)
        lines = check_runs(sweep)
    out = new_folder(name) if out is None else out
    if not resume:
        begin_sweep(sweep, out)
        typer.echo("".join(f"{line}\n" for line in lines), nl=False, err=True)
    try:
        with options.stopping_between_rounds() as signals, options.Progress(quiet=as_json) as progress:
            for done in run_sweep(sweep, out, jobs=jobs or cores(), stop=signals):
                progress.show(*done)
    except Interrupted:
        raise Ended(f"stopped; resume with --resume --out {out}", 128 + signals[0]) from None
    except OSError as error:
        raise Ended(f"{explained(error)[0]}; the runs in {out} are kept, --resume continues them") from error
    rows, page = json.loads((out / "table.json").read_text()), out / "report.html"
    if not as_json:  # printed even if the page cannot be written
        print_rows(rows, sweep.title)
        if any(row["half_width"] is not None for row in rows):
            typer.echo(wrapped("± is half the width of the 95 % confidence interval (Student's t)."))
        if any(row["lr_at_edge"] for row in rows):
            typer.echo(wrapped("edge: no rate beyond was worse, so a better one may not have been tried."))
    if all(row["runs"] == 0 for row in rows):
        reasons = [reason for row in rows for reason in row["failed"]]
        raise Ended(f"no run finished, so no page was written: {reasons[0] if reasons else f'see {out}'}")
    edge = ", ".join(f"{row['panel']} {row['arm']}".strip() for row in rows if row["lr_at_edge"])
    note = f" (a better learning rate may not have been tried: {edge})" if edge else ""
    final_page(out / "runs", page, sweep.title + note, quiet=as_json)
    print_result(as_json, {"folder": str(out), "page": str(page), "rows": rows}, f"written to {page}")
    if any(row["runs"] == 0 for row in rows):
        sys.exit(1)


def print_rows(rows: Sequence[dict[str, Any]], title: str) -> None:
    """Print the table without columns that are empty in every row, such as the panel if there is one only."""
    metrics = {row["metric"] for row in rows}
    measured = metrics.pop() if len(metrics) == 1 else "result"
    table = []
    for row in rows:
        headline, half = Headline(name=row["metric"]), row["half_width"]
        result = "" if row["value"] is None else headline.shown(row["value"])
        if half is not None:
            result += f" ± {100 * half:.2f}" if headline.is_share else f" ± {half:.2g}"
        rate = "" if row["lr"] is None else f"{row['lr']:.3g}" + (" (rule)" if row["lr_by_rule"] else "")
        rate += " (edge)" if row["lr_at_edge"] else ""
        table.append({
            "panel": row["panel"], "arm": row["arm"], measured: result, "runs": str(row["runs"]), "lr": rate,
            "epsilon": cell(row["epsilon"]), "notion": cell(row["notion"]),
            "bytes up": cell(row["bytes_up"]), "seconds": f"{row['seconds']:.0f}",
            "failed": row["failed"][0] if row["failed"] else "",
        })  # fmt: skip
    used = [name for name in table[0] if any(cells[name] for cells in table)]
    print_table(used, [[cells[name] for name in used] for cells in table], title=title)


@options.takes(RunConfig, without=("scheme", "name"), panel=PANEL)
def compare(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file, or the name of an included file such as figure5-mnist.")
    ] = None,
    schemes: Annotated[str, typer.Option(help="Names, one arm each.")] = "sqsgd,sqsgd-paper,piecewise,fedsgd",
    seeds: Annotated[int, typer.Option(help="Final runs per scheme.", min=1, max=10_000)] = 3,
    rates: Annotated[str, typer.Option(help="Learning rates; 0: from the budget.")] = "0,0.01,0.03,0.1,0.3",
    option: options.SchemeOption = None,
    small: options.Small = False,
    title: options.Title = None,
    jobs: options.Jobs = 0,
    out: options.Out = None,
    resume: options.Resume = False,
    as_json: options.Json = False,
    **_settings: Any,
) -> None:
    """Train several schemes under the same budgets of epsilon and bytes, each at its best learning rate."""
    from sqsgd.runs.sweep import experiment_file, load_sweep, make_sweep

    typed, values = options.given(context), typed_values(context, option)
    if "lr" in values and "rates" in typed:
        raise ValueError("lr and rates exclude each other: give --rates to choose from, or one --lr")
    if resume:
        sweep = sweep_to_resume(out, typed)
    elif config:
        if twice := [name for name in ("schemes", "rates", "seeds") if name in typed]:
            raise ValueError(f"{' and '.join(twice)}: set in the --config file; leave it out here")
        sweep = with_values(load_sweep(experiment_file(config), small=small), values, title)
    else:
        if small:
            raise ValueError("--small needs --config: the small version is defined in that file")
        if not (arms := [{"scheme": name} for name in options.listed(schemes)]):
            raise ValueError("schemes is empty: give one or more, separated by commas, such as sqsgd,fedsgd")
        order: dict[str, Any] = {name: values.pop(name) for name in ("lr", "seed") if name in values}
        tried = {"rates": options.numbers("rates", rates), "seeds": list(range(1, 1 + seeds))}
        heading = "Comparison on the same budgets of epsilon and bytes"
        plan = {"title": heading, "base": values, "arms": arms, "panels": [{}], **tried}
        sweep = with_values(make_sweep(plan, "the command line"), order, title)
    run(sweep, "compare", out, resume=resume, jobs=jobs, as_json=as_json)


@options.takes(RunConfig, without=("name",), panel=PANEL)
def ablate(
    context: typer.Context,
    figure: Annotated[
        str,
        typer.Argument(
            help="communication (figure1), subsampling (figure2), tradeoff (figure3) or privacy (figure4).",
            autocompletion=options.names_of("sqsgd.runs.sweep", "FIGURES"),
        ),
    ],
    option: options.SchemeOption = None,
    small: options.Small = False,
    title: options.Title = None,
    jobs: options.Jobs = 0,
    out: options.Out = None,
    resume: options.Resume = False,
    as_json: options.Json = False,
    **_settings: Any,
) -> None:
    """Run one of the paper's ablations (figures 1 to 4) with its settings, or with others."""
    from sqsgd.runs.sweep import FIGURES, experiment_file, load_sweep

    names = {file.partition("-")[0]: name for name, file in FIGURES.items()}
    if (name := names.get(figure, figure)) not in FIGURES:
        raise ValueError(f"unknown ablation {figure!r} (there are {', '.join([*FIGURES, *names])})")
    if resume:
        sweep = sweep_to_resume(out, options.given(context))
    else:
        file = experiment_file(Path("experiments") / FIGURES[name])
        sweep = with_values(load_sweep(file, small=small), typed_values(context, option), title)
    run(sweep, name, out, resume=resume, jobs=jobs, as_json=as_json)
