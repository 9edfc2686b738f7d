"""``sqsgd plan``: what a privacy and communication budget buys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqsgd.cli._tables import print_json, print_table, wrapped
from sqsgd.cli.options import Bytes, Epsilon, Json, given

if TYPE_CHECKING:
    from sqsgd.privacy.planner import Plan

RESIDUAL = (
    "or --scheme sqsgd, if the same clients answer in most rounds: it keeps a residual at the client and "
    "sends later what a report leaves out"
)

_ONLY_ONCE = ("users", "delta", "central")
_NEVER_ONCE = ("clients", "rounds", "probability", "prior")


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
    as_json: Json = False,
) -> None:
    """Recommend a scheme for a budget; show its parameters, errors, reconstruction bounds and warnings.

    With --once, show instead what a report per user buys, and what it guarantees locally and centrally.
    """
    from sqsgd._internal import checks
    from sqsgd.privacy.planner import frontier, ratio
    from sqsgd.privacy.planner import plan as make_plan

    checks.integer("bytes", bytes_, 1, 2**37)
    typed = given(context)
    _check_once(once, typed)
    if once:
        _show_once(
            dim=dim, bytes=bytes_, users=users, delta=delta, epsilon=typed.get("epsilon"), central=central,
            as_json=as_json,
        )  # fmt: skip
        return
    chosen = make_plan(
        dim=dim, epsilon=epsilon, bytes=bytes_, clients=clients, rounds=rounds,
        probability=probability, prior=prior,
    )  # fmt: skip
    points = frontier(dim=dim, epsilon=epsilon)
    if as_json:
        print_json({**chosen.to_dict(), "frontier": [asdict(point) for point in points]})
        return
    if chosen.recommendation is not None:
        typer.echo(wrapped(f"take {chosen.recommendation.options}: {chosen.recommendation.reason}", 5))
        if rounds > 1:
            typer.echo(wrapped(RESIDUAL, 5))
        typer.echo()
    for name, text in _lines(chosen):
        typer.echo(wrapped(f"{name:18} {text}", 19))
    typer.echo()
    rows = [*chosen.alternatives, *([chosen.paper] if chosen.paper else [])]
    print_table(
        ("the same budget with", "coordinates", "NMSE", "/ optimum"),
        [
            [row.name, f"{row.coordinates:,}", f"{row.nmse:,.4g}", f"{ratio(row.nmse, chosen.optimum):.3g}"]
            for row in rows
        ],
    )
    typer.echo()
    print_table(
        ("one stateless report", "arithmetic", "bytes", "NMSE", "/ optimum"),
        [
            [
                way.name,
                way.arithmetic,
                f"{way.message_bytes:,}",
                f"{way.nmse:,.4g}",
                f"{ratio(way.nmse, chosen.optimum):.3g}",
            ]
            for way in chosen.stateless
        ],
    )
    typer.echo(f"\nThe least error at epsilon {epsilon:g} for each size of message")
    print_table(
        ("bytes", "code", "NMSE", "/ optimum"),
        [
            [f"{at.message_bytes:,}", at.code, f"{at.nmse:,.4g}", f"{ratio(at.nmse, chosen.optimum):.3g}"]
            for at in points
        ],
    )
    typer.echo("\nWhat an attacker can reconstruct")
    for statement in chosen.reconstruction:
        typer.echo(wrapped(f"  * {statement.sentence}", 4))
    if chosen.warnings:
        typer.echo("\nWarnings")
        for warning in chosen.warnings:
            typer.echo(wrapped(f"  * {warning}", 4))


def _lines(chosen: Plan) -> list[tuple[str, str]]:
    whole = f"{chosen.dim:,}" if chosen.coordinates <= chosen.dim else f"{chosen.coordinates:,} rotated ones"
    sent, law = f"{chosen.coordinates:,} of {whole}, as signs", "matches"
    if chosen.code == "levels":
        sent = sent.replace("signs", f"{chosen.levels} levels over ± {chosen.reach:g} deviations")
    elif chosen.code == "sparse":
        sent, law = (
            f"{chosen.count:,} of {chosen.coordinates:,} rotated ones, with their signs",
            "or more matches",
        )
        sent += f", drawn around the {chosen.near:,} largest"
    law = f"{chosen.threshold:,} {law} with probability {chosen.keep:.10g}; scale {chosen.scale:.6g}"
    rest = "envelope and norm" if chosen.epsilon_norm else "envelope"
    shares = f"{chosen.epsilon_direction:g} direction + {chosen.epsilon_norm:g} norm"
    plural = "s" if chosen.clients > 1 else ""
    mean = f"; of the mean over {chosen.clients:,} client{plural} {chosen.nmse_mean:.4g}"
    best = f"{chosen.optimum:.4g}, so this is {_times(chosen.optimum_ratio)} the best possible"
    limit = f"{_times(chosen.information_ratio)} the information limit {chosen.information_limit:.4g}"
    return [
        ("scheme", "sqsgd-stateless"),
        ("coordinates", sent),
        ("threshold, keep", law),
        ("epsilon", f"{chosen.epsilon:g} = {shares}"),
        ("bytes", f"{chosen.message_bytes:,} per message: {chosen.bits:,} bits of codes, and {rest}"),
        ("NMSE", f"{chosen.nmse:.4g} of one report on the whole vector{mean}"),
        ("optimum (PrivUnit)", best),
        ("on its block", f"{chosen.nmse_block:.4g}, {limit}"),
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times" if ratio < math.inf else "beyond any multiple of"


def _check_once(once: bool, typed: Mapping[str, Any]) -> None:
    """Refuse options that belong to plans of the other kind."""
    for name in _NEVER_ONCE if once else _ONLY_ONCE:
        if name in typed:
            why = "has no meaning with --once" if once else "needs --once"
            raise ValueError(f"{name} = {typed[name]!r} {why}")
    if once and not {"epsilon", "central"} & typed.keys():
        raise ValueError("--once needs --epsilon (local) or --central")


def _show_once(*, as_json: bool, **budget: Any) -> None:
    """Print the plan for a budget, see ``sqsgd.privacy.certificate.plan_once``."""
    from sqsgd.privacy.certificate import plan_once

    chosen = plan_once(**budget)
    if as_json:
        print_json(chosen.to_dict())
        return
    central = chosen.central
    users, size = chosen.users, budget["bytes"]
    options = f"--scheme auto --epsilon {chosen.epsilon:.6g} --clients {users} --bytes {size}"
    reason = f"{chosen.scheme}, which has the least error of the exact schemes"
    typer.echo(wrapped(f"take --participation once {options}: {reason}\n", 5))
    error = f"{chosen.nmse:.4g} of one report; of the mean over {chosen.users:,} users {chosen.nmse_mean:.4g}"
    for name, text in (
        ("scheme", chosen.scheme),
        ("bytes", f"{chosen.message_bytes:,} per user, once"),
        ("NMSE", error),
        ("local epsilon", f"{chosen.epsilon:.6g}"),
        ("central epsilon", f"{central.epsilon:.6g} at delta = {central.delta:g} ({central.bound} bound)"),
    ):
        typer.echo(wrapped(f"{name:18} {text}", 19))
    if chosen.warning:
        typer.echo(wrapped(f"\n{chosen.warning}"))
    typer.echo(wrapped(f"\n{central.sentence}\n\nThe central guarantee holds if"))
    for assumption in central.assumptions:
        typer.echo(wrapped(f"  * {assumption}", 4))
