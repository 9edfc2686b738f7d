"""``sqsgd plan``: what a privacy and communication budget buys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd._internal.exact import three_digits
from sqsgd.cli.options import Bytes, Epsilon, Json, given
from sqsgd.cli.output import print_fields, print_json, print_table, wrapped
from sqsgd.training.settings import usual_rounds

if TYPE_CHECKING:
    from sqsgd.privacy.planner import Plan
    from sqsgd.privacy.record_plan import RecordPlan
    from sqsgd.privacy.several import SeveralPlan, Split

_ALWAYS = {"dim", "bytes", "epsilon", "as_json"}
_TAKEN = {
    "once": {"once", "users", "delta", "central"},
    "central": {"users", "delta", "central", "local", "visits", "svg"},
    "records": {"records", "silos", "delta", "rounds"},
    "": {"clients", "rounds", "probability", "prior"},
}
"""The options that each kind of plan takes."""


def plan(
    context: typer.Context,
    dim: Annotated[int, typer.Option(help="Number of model parameters.")] = 119850,
    epsilon: Epsilon = 400.0,
    bytes_: Bytes = 256,
    clients: Annotated[int, typer.Option(help="Clients per round.")] = 10,
    rounds: Annotated[int, typer.Option(help="Number of rounds in which a client takes part.")] = 1,
    probability: Annotated[float, typer.Option(help="Failure probability of the bounds.")] = 1e-6,
    prior: Annotated[float, typer.Option(help="Prior knowledge, as a log density ratio.")] = 0.0,
    once: Annotated[bool, typer.Option("--once", help="Each user reports once, in a secret order.")] = False,
    users: Annotated[int, typer.Option(help="With --once or --central: users of the run.")] = 60000,
    delta: Annotated[
        float, typer.Option(help="With --once or --central: delta of the central guarantee.")
    ] = 1e-6,
    central: Annotated[
        float | None,
        typer.Option(help="Limit of the central epsilon: choose reports per user, or epsilon with --once."),
    ] = None,
    local: Annotated[
        float, typer.Option(help="With --central: limit of the epsilon of all reports of a user.")
    ] = math.inf,
    visits: Annotated[
        int, typer.Option(help="With --central: 1: all reports in one round of --clients users.", max=1)
    ] = 0,
    svg: Annotated[Path | None, typer.Option(help="With --central: file to write a chart to.")] = None,
    records: Annotated[int, typer.Option(help="Per record: total number of records over all silos.")] = 0,
    silos: Annotated[int, typer.Option(help="With --records: silos, each reporting in every round.")] = 10,
    as_json: Json = False,
) -> None:
    """Recommend a scheme for a budget, with its error, its total epsilon and warnings.

    With --once, each user sends one report. The plan then has the local and the central guarantee. With
    --central alone, it finds the number of reports per user, and their epsilon, with the least error. With
    --records, it is what a budget per record buys in a federation of silos.
    """
    from sqsgd.privacy.planner import plan as make_plan
    from sqsgd.privacy.record_plan import record_plan
    from sqsgd.privacy.several import plan_once, plan_several

    typed = given(context)
    kind = "records" if records else "once" if once else "" if central is None else "central"
    taken = _ALWAYS | _TAKEN[kind] | ({"clients"} if visits else set())
    for name in (name for name in typed if name not in taken):
        needs = " or ".join(f"--{each}" for each in sorted(_TAKEN) if each and name in _TAKEN[each])
        wrong = f"has no meaning with --{kind}" if kind else f"needs {needs}"
        raise ValueError(f"{name} = {typed[name]!r} {wrong}")
    if kind == "records":
        defaults = {"dim": 3920, "epsilon": 1.0, "delta": 1e-5, "rounds": 200, "silos": silos}
        show: Callable[[Any], None] = _show_records
        typed.pop("as_json", None)
        chosen: Any = record_plan(**{**defaults, **typed})
    elif kind == "central":
        if "epsilon" in typed:
            raise ValueError(
                f"epsilon = {epsilon:g}: --central chooses it; give --local for a limit of the total"
            )
        visit = (clients if "clients" in typed else users // usual_rounds(users)) if visits else 0
        limits: dict[str, Any] = {"delta": delta, "central": central, "local": local, "visit": visit}
        show = partial(_show_several, size=bytes_, visit=visit)
        chosen = plan_several(dim=dim, bytes=bytes_, users=users, **limits)
        if svg is not None:
            _draw(chosen, svg, limits["central"])
    elif once:
        if not {"epsilon", "central"} & typed.keys():
            raise ValueError("--once needs --epsilon (local) or --central")
        one: dict[str, Any] = {"epsilon": typed.get("epsilon"), "central": central}
        show = partial(_show_once, size=bytes_)
        chosen = plan_once(dim=dim, bytes=bytes_, users=users, delta=delta, **one)
    else:
        show = partial(_show_verdict, epsilon=epsilon)
        chosen = make_plan(
            dim=dim, epsilon=epsilon, bytes=bytes_, clients=clients, rounds=rounds,
            probability=probability, prior=prior,
        )  # fmt: skip
    if as_json:
        print_json(chosen.to_dict())
    else:
        show(chosen)


def _show_verdict(chosen: Plan, epsilon: float) -> None:
    """The recommendation, its error, the total, and warnings."""
    take, many = chosen.recommendation, f"{chosen.clients:,} client{'s' if chosen.clients > 1 else ''}"
    fields = []
    if take is not None:
        known = take.optimum_ratio < math.inf and take.scheme != "sqsgd"
        why = f"{take.optimum_ratio:.3g} x optimal error" if known else take.reason
        fields.append(("Recommended", f"{take.options} ({take.message_bytes:,} bytes, {why})"))
    fields.append(("Error", f"{chosen.nmse:.4g} of one report, {chosen.nmse_mean:.4g} of the mean of {many}"))
    total = f", {epsilon * chosen.rounds:,.6g} after {chosen.rounds:,}" if chosen.rounds > 1 else ""
    fields.append(("Epsilon", f"{epsilon:,.6g} for one report{total}"))
    blocks = [each for each in chosen.reconstruction if each.scope == "block"]
    guesses = [f"{three_digits(each.cosine)} after {each.rounds:,}" for each in blocks]
    fields.append(
        ("Best guess", f"cosine {', '.join(guesses)} with the direction of the gradient that was sent")
    )
    print_fields([*fields, *(("Warning", text) for text in chosen.warnings)], 13)
    typer.echo("\n--json shows parameters, other schemes and bounds.")


def _print_list(heading: str, sentences: Sequence[str]) -> None:
    if sentences:
        typer.echo(wrapped(f"\n{heading}"))
    for sentence in sentences:
        typer.echo(wrapped(f"  * {sentence}", 4))


def _show_several(chosen: SeveralPlan, size: int, visit: int) -> None:
    best = chosen.best
    options = f"{best.scheme} --option nearest={best.nearest}" if best.nearest else "auto"
    options += f" --reports {best.reports} --epsilon {best.epsilon:.6g} --clients {chosen.users}"
    options += f" --visits 1 --rounds {chosen.users // visit}" if visit else ""
    options += f" --bytes {size}"
    least = f"the mean of all reports has an error of {best.nmse_mean:.4g}, the least within the limits"
    typer.echo(wrapped(f"Recommended  --scheme {options}: {least}\n", 13))
    heading = ("epsilon", "reports", "local", "central", "error of the mean", "bytes", "scheme")
    rows = [
        [f"{each.epsilon:.4g}", f"{each.reports:,}", f"{each.local:.4g}", three_digits(each.central.epsilon),
         f"{each.nmse_mean:.4g}" + " <" * (each == best), f"{each.message_bytes}",
         each.scheme + f", nearest={each.nearest}" * bool(each.nearest)]
        for each in chosen.splits
    ]  # fmt: skip
    print_table(heading, rows, title="The most reports of each user for each epsilon of a report")
    if best.warning:
        typer.echo(wrapped(f"\n{best.warning}"))
    central = best.central
    _print_list(f"{central.sentence}\n\nThe central guarantee holds if", central.assumptions)


def _draw(chosen: SeveralPlan, svg: Path, central: float) -> None:
    from sqsgd.report.charts import Chart, write_charts

    if svg.suffix != ".svg":
        raise ValueError(f"svg = {str(svg)!r} must end in .svg; an existing file is overwritten")
    group = f"central ε at most {central:g}"
    points = [
        {"group": group, "x": each.local, "mean": each.nmse_mean, "half": math.nan}
        for each in sorted(chosen.splits, key=lambda each: each.local)
    ]
    chart = Chart(
        name=svg.stem, title="Reports per user", x_title="local ε of all reports of a user",
        y_title="error of the mean", caption="", points=points, groups=[group], log_x=True, log_y=True,
    )  # fmt: skip
    write_charts([chart], svg.parent, "svg")


def _show_records(chosen: RecordPlan) -> None:
    options = f"--scheme sqsgd-record --epsilon {chosen.epsilon:g} --delta {chosen.delta:g}"
    best = chosen.batchings[0]
    sampling = f"--rounds {chosen.rounds} --sampling {best.share:g}"
    guarantee = f"the whole run is ({chosen.epsilon:g}, {chosen.delta:g}) for each record, against the server"
    typer.echo(wrapped(f"Recommended  {options} {sampling}: {guarantee}\n", 13))
    each = f"{chosen.records:,} records in {chosen.silos:,} silos, {chosen.rounds:,} rounds"
    size = f"{chosen.message_bytes:,} per silo and round, {chosen.bits:.3g} bits for each of {chosen.dim:,}"
    print_fields([("federation", each), ("bytes", size)], 19)
    typer.echo("\nNoise of a coordinate, over the norm that records are clipped to")
    print_table(
        ("batches", "share", "of a silo's sum", "of the mean", "trusted server", "secure aggregation"),
        [
            [way.name, f"{way.share:.3g}", f"{way.deviation:.4g}"]
            + [f"{number:.3g}" for number in (way.error, way.trusted, way.trusted)]
            for way in chosen.batchings
        ],
    )
    _print_list("Warnings", chosen.warnings)


def _show_once(chosen: Split, size: int) -> None:
    central, many = chosen.central, f"{chosen.users:,} users"
    options = f"--epsilon {chosen.epsilon:.6g} --clients {chosen.users} --bytes {size}"
    who = f"the models, if the order of {many} over the run and their reports stay secret"
    message = f"{chosen.scheme}, {chosen.message_bytes:,} bytes per user"
    fields = [
        ("Recommended", f"--participation once --scheme auto {options} ({message})"),
        ("Error", f"{chosen.nmse:.4g} of one report, {chosen.nmse_mean:.4g} of the mean of {many}"),
        ("Local", f"epsilon {chosen.epsilon:.6g}, the total of a user, against everyone"),
        (
            "Central",
            f"epsilon {three_digits(central.epsilon)} at delta {central.delta:g}, against readers of {who}",
        ),
        *([("Warning", chosen.warning)] if chosen.warning else []),
    ]
    print_fields(fields, 13)
    _print_list(f"{central.sentence}\n\nThe central guarantee holds if", central.assumptions)
