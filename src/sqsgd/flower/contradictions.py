"""Settings of the strategy that cannot be, alone or together; each message says what to write instead."""

from __future__ import annotations

from sqsgd.core import Scheme


def check_together(
    *, sends: str, downlink: str, optimizer: str, once: bool, clients_per_round: int, min_answers: int
) -> None:
    """Raise ValueError for the first contradiction."""
    if clients_per_round and min_answers > clients_per_round:
        raise ValueError(
            f"min-answers = {min_answers} is more than clients-per-round = {clients_per_round}: "
            "no round could have so many"
        )
    if sends not in ("delta", "gradient"):
        raise ValueError(f"sends = {sends!r} must be 'delta' or 'gradient'")
    if downlink not in ("full", "delta"):
        raise ValueError(f"downlink = {downlink!r} must be 'full' or 'delta'")
    if downlink == "delta" and optimizer != "sgd":
        raise ValueError(
            f"downlink = 'delta' with optimizer = {optimizer!r}: nodes would need the optimiser's state; "
            "use optimizer = 'sgd' or downlink = 'full'"
        )
    if once and not clients_per_round:
        raise ValueError("once = true needs clients-per-round: else the first round would ask everyone")
    if once and downlink == "delta":
        raise ValueError(
            "once = true with downlink = 'delta': nobody comes back to use what changed; "
            "use downlink = 'full'"
        )


def check_needs_no_residual(scheme: Scheme) -> None:
    """Raise ValueError where a scheme makes up in later rounds for what it leaves out in this one."""
    if scheme.residual:
        raise ValueError(
            f"scheme = {scheme.name!r} keeps a residual for a node's next report, and with once = true "
            "there is none: use scheme = 'privunit-index' or 'sqsgd-stateless'"
        )
