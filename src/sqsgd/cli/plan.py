"""``sqsgd plan``: what a privacy and communication budget buys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd._internal.exact import four_digits
from sqsgd.cli.options import Bytes, Epsilon, Json, given
from sqsgd.cli.output import print_fields, print_json, print_table, wrapped

if TYPE_CHECKING:
    from sqsgd.privacy.planner import Plan, Point


def plan(
    context: typer.Context,
    dim: Annotated[int, typer.Option(help="Number of model parameters.")] = 119850,
    epsilon: Epsilon = 400.0,
    bytes_: Bytes = 256,
    clients: Annotated[int, typer.Option(help="Clients per round.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds that a client takes part in.")] = 1,
    probability: Annotated[float, typer.Option(help="Failure probability of the bounds.")] = 1e-6,
    prior: Annotated[float, typer.Option(help="Prior knowledge, as a log density ratio.")] = 0.0,
    once: Annotated[bool, typer.Option("--once", help="Each user reports once, in a secret order.")] = False,
    users: Annotated[int, typer.Option(help="With --once: users in the secret order.")] = 60000,
    delta: Annotated[float, typer.Option(help="With --once: delta of the central guarantee.")] = 1e-6,
    central: Annotated[
        float | None, typer.Option(help="With --once: choose the largest local epsilon that keeps this.")
    ] = None,
    records: Annotated[int, typer.Option(help="Per record: all records of all silos.")] = 0,
    silos: Annotated[int, typer.Option(help="With --records: silos, which all report in each round.")] = 10,
    details: Annotated[
        bool, typer.Option("--details", help="Also show parameters, other schemes, sizes and bounds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Recommend a scheme for a budget, with its error, its total epsilon and warnings.

    With --once, each user sends one report; the plan then has the local and the central guarantee. With
    --records, it is what a budget per record buys in a federation of silos.
    """
    from sqsgd.privacy.planner import frontier
    from sqsgd.privacy.planner import plan as make_plan

    typed = given(context)
    if records:
        _show_records(as_json, {"dim": 3920, "epsilon": 1.0, "delta": 1e-5, "rounds": 200, **typed})
        return
    for name in typed:
        if name == "silos":
            raise ValueError(f"silos = {silos!r} needs --records")
        if name in (("clients", "rounds", "probability", "prior") if once else ("users", "delta", "central")):
            why = "has no meaning with --once" if once else "needs --once"
            raise ValueError(f"{name} = {typed[name]!r} {why}")
    if once:
        if not {"epsilon", "central"} & typed.keys():
            raise ValueError("--once needs --epsilon (local) or --central")
        local = typed.get("epsilon")
        _show_once(
            as_json, details, dim=dim, bytes=bytes_, users=users, delta=delta, epsilon=local, central=central
        )
        return
    chosen = make_plan(
        dim=dim, epsilon=epsilon, bytes=bytes_, clients=clients, rounds=rounds,
        probability=probability, prior=prior,
    )  # fmt: skip
    if as_json:
        points = frontier(dim=dim, epsilon=epsilon)
        print_json({**chosen.to_dict(), "frontier": [asdict(point) for point in points]})
        return
    _show_verdict(chosen, epsilon)
    if details:
        _show_details(chosen, frontier(dim=dim, epsilon=epsilon), epsilon)
    else:
        typer.echo(_MORE)


_MORE = "\n--details shows parameters, other schemes, sizes and bounds."


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
    guesses = [f"{four_digits(each.cosine)} after {each.rounds:,}" for each in blocks]
    fields.append(
        ("Best guess", f"cosine {', '.join(guesses)} with the direction of the gradient that was sent")
    )
    print_fields([*fields, *(("Warning", text) for text in chosen.warnings)], 13)


def _show_details(chosen: Plan, points: Sequence[Point], epsilon: float) -> None:
    """Everything that the plan is made of, as tables."""
    from sqsgd.privacy.planner import ratio

    def errors(nmse: float) -> list[str]:
        return [f"{nmse:,.4g}", f"{ratio(nmse, chosen.optimum):.3g}"]

    if chosen.recommendation is not None:
        typer.echo(wrapped(f"\nWhy {chosen.recommendation.scheme}: {chosen.recommendation.reason}"))
    typer.echo()
    print_fields(_fields(chosen), 19)
    typer.echo()
    same = [*chosen.alternatives, *([chosen.paper] if chosen.paper else [])]
    print_table(
        ("the same budget with", "coordinates", "NMSE", "/ optimum"),
        [[way.name, f"{way.coordinates:,}", *errors(way.nmse)] for way in same],
    )
    typer.echo()
    print_table(
        ("one stateless report", "arithmetic", "bytes", "NMSE", "/ optimum"),
        [[way.name, way.arithmetic, f"{way.message_bytes:,}", *errors(way.nmse)] for way in chosen.stateless],
    )
    typer.echo(f"\nThe least error at epsilon {epsilon:g} for each size of message")
    print_table(
        ("bytes", "code", "NMSE", "/ optimum"),
        [[f"{point.message_bytes:,}", point.code, *errors(point.nmse)] for point in points],
    )
    _print_list("What an attacker can reconstruct", [each.sentence for each in chosen.reconstruction])


def _print_list(heading: str, sentences: Sequence[str]) -> None:
    if sentences:
        typer.echo(wrapped(f"\n{heading}"))
    for sentence in sentences:
        typer.echo(wrapped(f"  * {sentence}", 4))


def _fields(chosen: Plan) -> list[tuple[str, str]]:
    whole = f"{chosen.dim:,}" if chosen.coordinates <= chosen.dim else f"{chosen.coordinates:,} rotated ones"
    sent, law = f"{chosen.coordinates:,} of {whole}, as signs", "matches"
    if chosen.code == "levels":
        sent = sent.replace("signs", f"{chosen.levels} levels over ± {chosen.reach:g} deviations")
    elif chosen.code == "sparse":
        sent = f"{chosen.count:,} of {chosen.coordinates:,} rotated ones, with their signs"
        sent, law = f"{sent}, drawn around the {chosen.near:,} largest", "or more matches"
    law = f"{chosen.threshold:,} {law} with probability {chosen.keep:.10g}; scale {chosen.scale:.6g}"
    rest = "envelope and norm" if chosen.epsilon_norm else "envelope"
    shares = f"{chosen.epsilon_direction:g} direction + {chosen.epsilon_norm:g} norm"
    clients = f"{chosen.clients:,} client{'s' if chosen.clients > 1 else ''}"
    best, limit = (
        f"{ratio:.3g} times" if ratio < math.inf else "beyond any multiple of"
        for ratio in (chosen.optimum_ratio, chosen.information_ratio)
    )
    error, block = f"{chosen.nmse:.4g} of one report", f"{chosen.nmse_block:.4g}, {limit}"
    return [
        ("scheme", "sqsgd-stateless"),
        ("coordinates", sent),
        ("threshold, keep", law),
        ("epsilon", f"{chosen.epsilon:g} = {shares}"),
        ("bytes", f"{chosen.message_bytes:,} per message: {chosen.bits:,} bits of codes, and {rest}"),
        ("NMSE", f"{error} on the whole vector; of the mean over {clients} {chosen.nmse_mean:.4g}"),
        ("optimum (PrivUnit)", f"{chosen.optimum:.4g}, so this is {best} the best possible"),
        ("on its block", f"{block} the information limit {chosen.information_limit:.4g}"),
    ]


def _show_records(as_json: bool, typed: dict[str, Any]) -> None:
    from sqsgd.privacy.record_plan import record_plan

    known = {"dim", "records", "silos", "epsilon", "delta", "rounds", "bytes"}
    if wrong := sorted(typed.keys() - known - {"as_json"}):
        raise ValueError(f"{wrong[0]} = {typed[wrong[0]]!r} has no meaning with --records")
    chosen = record_plan(**{"silos": 10, **{name: typed[name] for name in known & typed.keys()}})
    if as_json:
        print_json(chosen.to_dict())
        return
    options = f"--scheme sqsgd-record --epsilon {chosen.epsilon:g} --delta {chosen.delta:g}"
    best = chosen.batchings[0]
    sampling = f"--rounds {chosen.rounds} --sampling {best.share:g}"
    guarantee = f"the whole run is ({chosen.epsilon:g}, {chosen.delta:g}) for each record, against the server"
    typer.echo(wrapped(f"take {options} {sampling}: {guarantee}\n", 5))
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


def _show_once(as_json: bool, details: bool, **budget: Any) -> None:
    from sqsgd.privacy.certificate import plan_once

    chosen = plan_once(**budget)
    if as_json:
        print_json(chosen.to_dict())
        return
    central, many = chosen.central, f"{chosen.users:,} users"
    options = f"--epsilon {chosen.epsilon:.6g} --clients {chosen.users} --bytes {budget['bytes']}"
    who = f"the models, if the order of {many} over the run and their reports stay secret"
    message = f"{chosen.scheme}, {chosen.message_bytes:,} bytes per user"
    fields = [
        ("Recommended", f"--participation once --scheme auto {options} ({message})"),
        ("Error", f"{chosen.nmse:.4g} of one report, {chosen.nmse_mean:.4g} of the mean of {many}"),
        ("Local", f"epsilon {chosen.epsilon:.6g}, the total of a user, against everyone"),
        (
            "Central",
            f"epsilon {four_digits(central.epsilon)} at delta {central.delta:g}, against readers of {who}",
        ),
        *([("Warning", chosen.warning)] if chosen.warning else []),
    ]
    print_fields(fields, 13)
    if details:
        bound = f"{central.epsilon:.6g}, by the {central.bound} bound"
        _print_list(f"{central.sentence}\n\nThe central epsilon {bound}, holds if", central.assumptions)
    else:
        typer.echo("\n--details shows the assumptions of the central guarantee.")
