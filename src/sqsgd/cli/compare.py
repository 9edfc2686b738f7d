"""``sqsgd compare``: several schemes under the same budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sqsgd import checks
from sqsgd.cli import _sweeps
from sqsgd.cli._options import Jobs, Json, Out, Resume, Small, Title, given, listed, numbers
from sqsgd.cli._run_options import takes_run_options, typed_values, worded_arm, worded_panel

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
    from sqsgd.experiments.sweep import experiment_file, load_sweep, make_sweep

    typed, values = given(context), typed_values(context)
    if "lr" in values and "rates" in typed:
        raise ValueError("lr and rates exclude each other: give --rates to choose from, or one --lr")
    if resume:
        sweep = _sweeps.sweep_to_resume(out, bool(typed.keys() - {"out", "resume", "jobs", "as_json"}))
    elif config:
        if twice := [name for name in OF_THE_FILE if name in typed]:
            raise ValueError(f"{' and '.join(twice)}: set in the --config file; leave it out here")
        sweep = _sweeps.with_values(load_sweep(experiment_file(config), small=small), values, title)
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
        sweep = _sweeps.with_values(sweep, order, title)
    _sweeps.run(sweep, "compare", out, resume=resume, jobs=jobs, as_json=as_json)
