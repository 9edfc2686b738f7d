"""``sqsgd compare``: several schemes under the same budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sqsgd.cli import _sweeps
from sqsgd.cli._options import (
    Bytes,
    Clients,
    DataDir,
    Dataset,
    Epsilon,
    Jobs,
    Json,
    Model,
    Out,
    Resume,
    Small,
    given,
    listed,
    numbers,
)
from sqsgd.runs.config import FIELDS, RunConfig


def compare(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="A file such as experiments/figure5-mnist.toml.")
    ] = None,
    schemes: Annotated[
        str, typer.Option(help="Comma-separated names.")
    ] = "sqsgd,sqsgd-paper,piecewise,fedsgd",
    dataset: Dataset = RunConfig.dataset,
    data_dir: DataDir = None,
    model: Model = RunConfig.model,
    clients: Clients = RunConfig.clients,
    epsilon: Epsilon = RunConfig.epsilon,
    bytes_: Bytes = RunConfig.bytes,
    rounds: Annotated[int, typer.Option(help="Rounds of each run.")] = RunConfig.rounds,
    seeds: Annotated[int, typer.Option(help="Runs per scheme at its best rate.")] = 3,
    rates: Annotated[
        str, typer.Option(help="Learning rates to try; 0: computed from the budget.")
    ] = "0,0.01,0.03,0.1,0.3",
    small: Small = False,
    jobs: Jobs = 0,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train several schemes under the same budgets of epsilon and bytes, each at its best learning rate."""
    from sqsgd.experiments.sweep import load_sweep, make_sweep

    typed, values = given(context), given(context, FIELDS)
    if resume:
        sweep = _sweeps.sweep_to_resume(out, bool(typed.keys() - {"out", "resume", "jobs", "as_json"}))
    elif config:
        if typed.keys() & {"schemes", "rates", "seeds"}:
            raise ValueError("schemes, rates and seeds are set in the --config file; leave them out here")
        sweep = _sweeps.with_values(load_sweep(config, small=small), values)
    else:
        if small:
            raise ValueError("--small needs --config: the small version is defined in that file")
        if not listed(schemes):
            raise ValueError("schemes is empty: give one or more, separated by commas, such as sqsgd,fedsgd")
        sweep = make_sweep(
            {
                "title": "Comparison on the same budgets of epsilon and bytes",
                "arms": [{"scheme": name} for name in listed(schemes)],
                "base": values,
                "rates": numbers("rates", rates),
                "seeds": list(range(1, 1 + seeds)),
            },
            "the command line",
        )
    _sweeps.run(sweep, "compare", out, resume=resume, jobs=jobs, as_json=as_json)
