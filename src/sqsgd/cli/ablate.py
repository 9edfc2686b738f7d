"""``sqsgd ablate``: the paper's ablations."""

from __future__ import annotations

from typing import Annotated

import typer

from sqsgd.cli import _sweeps
from sqsgd.cli._options import DataDir, Jobs, Json, Out, Resume, Small, complete_ablation, given
from sqsgd.runs.config import FIELDS


def ablate(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="The ablation to run.",
            metavar="communication|privacy|subsampling|tradeoff",
            autocompletion=complete_ablation,
        ),
    ],
    data_dir: DataDir = None,
    dataset: Annotated[str | None, typer.Option(help="Use this dataset instead of the figure's.")] = None,
    model: Annotated[str | None, typer.Option(help="Use this model instead of the figure's.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Use this many rounds.")] = None,
    small: Small = False,
    jobs: Jobs = 0,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Run one of the paper's ablations (figures 1 to 4) with its settings."""
    from sqsgd.checks import meant
    from sqsgd.experiments.sweep import FIGURES, figure_file, load_sweep

    if name not in FIGURES:
        files = [f"{known} ({file.split('-')[0]})" for known, file in FIGURES.items()]
        raise ValueError(f"unknown ablation {name!r}{meant(name, FIGURES)} (there are {', '.join(files)})")
    values = given(context, FIELDS)
    if resume:
        sweep = _sweeps.sweep_to_resume(out, small or bool(values))
    else:
        sweep = _sweeps.with_values(load_sweep(figure_file(FIGURES[name]), small=small), values)
    _sweeps.run(sweep, name, out, resume=resume, jobs=jobs, as_json=as_json)
