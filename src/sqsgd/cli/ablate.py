"""``sqsgd ablate``: the paper's ablations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli import compare
from sqsgd.cli.compare import takes_run_options, typed_values
from sqsgd.cli.options import Jobs, Json, Out, Resume, Small, Title, given, names_of

if TYPE_CHECKING:
    from sqsgd.training.sweep import Sweep


@takes_run_options(defaults=False, without=("name",))
def ablate(
    context: typer.Context,
    figure: Annotated[
        str,
        typer.Argument(
            help="communication (figure1), subsampling (figure2), tradeoff (figure3) or privacy (figure4).",
            autocompletion=names_of("sqsgd.training.sweep", "FIGURES"),
        ),
    ],
    small: Small = False,
    title: Title = None,
    jobs: Jobs = 0,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    **_run: Any,
) -> None:
    """Run one of the paper's ablations (figures 1 to 4) with its settings, or with others."""
    from sqsgd.training.sweep import figure_file, figure_named, load_sweep

    name, file = figure_named(figure)
    typed, values = given(context), typed_values(context)
    if resume:
        more = typed.keys() - {"figure", "out", "resume", "jobs", "as_json"}
        sweep = compare.sweep_to_resume(out, bool(more))
        if _varied(sweep) != _varied(load_sweep(figure_file(file))):
            raise ValueError(f"{out} holds another sweep than {name}: resume it by its own name")
    else:
        sweep = compare.with_values(load_sweep(figure_file(file), small=small), values, title)
    compare.run(sweep, name, out, resume=resume, jobs=jobs, as_json=as_json)


def _varied(sweep: Sweep) -> list[list[str]]:
    """The keys of each arm of the first panel, which distinguish the figures whatever values were changed."""
    arms = sweep.panels[0].get("arms", sweep.arms)
    return [sorted({**arm, **arm.get("options", {})}) for arm in arms]
