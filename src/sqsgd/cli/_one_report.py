"""What ``sqsgd plan --once`` shows: one report per user, and both of its guarantees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from sqsgd.cli._tables import print_json, wrapped

_ONLY_ONCE = ("users", "delta", "central")
_NEVER_ONCE = ("clients", "rounds", "probability", "prior")


def check_once(once: bool, typed: Mapping[str, Any]) -> None:
    """Refuse options that belong to plans of the other kind."""
    for name in _NEVER_ONCE if once else _ONLY_ONCE:
        if name in typed:
            why = "has no meaning with --once" if once else "needs --once"
            raise ValueError(f"{name} = {typed[name]!r} {why}")
    if once and not {"epsilon", "central"} & typed.keys():
        raise ValueError("--once needs --epsilon (local) or --central")


def show_once(*, as_json: bool, **budget: Any) -> None:
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
