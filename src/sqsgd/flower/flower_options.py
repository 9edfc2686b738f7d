"""Options of ``SqsgdStrategy``: those of Flower's ``FedAvg``, and combinations that are invalid."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from sqsgd import checks
from sqsgd.training.optimizers import check_optimizer
from sqsgd.training.settings import DECAYS

_LOG = logging.getLogger("flwr")
_IGNORED = {
    "min_evaluate_nodes": "what nodes measure never leaves them",
    "weighted_by_key": "all reports weigh the same: numbers of examples never leave a node",
    "train_metrics_aggr_fn": "nodes' metrics never leave them; measure with evaluate_fn",
    "evaluate_metrics_aggr_fn": "nodes' metrics never leave them; measure with evaluate_fn",
}
_FIXED = {"arrayrecord_key": "arrays", "configrecord_key": "config"}


def least_nodes(given: Mapping[str, Any], ours: Iterable[str]) -> tuple[int, int]:
    """The least number of connected nodes, and of nodes to ask; 0 if not given.

    Warns of options that have no effect here; raises TypeError for unknown ones, as Python does.
    """
    for name, value in given.items():
        if name in _IGNORED:
            _LOG.warning("sqsgd: %s is ignored: %s", name, _IGNORED[name])
        elif name in _FIXED:
            if value != _FIXED[name]:
                raise ValueError(f"{name} = {value!r} must be {_FIXED[name]!r}: nodes expect that name")
        elif name not in ("min_available_nodes", "min_train_nodes"):
            raise TypeError(f"SqsgdStrategy has no option {name!r}{checks.meant(name, ours)}")
    connected = checks.integer("min_available_nodes", given.get("min_available_nodes", 0), 0, 2**31)
    asked = checks.integer("min_train_nodes", given.get("min_train_nodes", 0), 0, 2**31)
    return max(connected, asked), asked


def check_combination(
    *,
    optimizer: str,
    sends: str,
    decay: str,
    downlink: str,
    once: bool,
    clients_per_round: int,
    min_answers: int,
) -> None:
    """Raise ValueError for the first invalid option or combination of options."""
    check_optimizer(optimizer)
    if clients_per_round and min_answers > clients_per_round:
        raise ValueError(
            f"min-answers = {min_answers} is more than clients-per-round = {clients_per_round}: "
            "no round could have enough answers"
        )
    if sends not in ("delta", "gradient"):
        raise ValueError(f"sends = {sends!r} must be 'delta' or 'gradient'")
    if decay not in DECAYS:
        raise ValueError(f"decay = {decay!r} must be one of {', '.join(DECAYS)}")
    if downlink not in ("full", "delta"):
        raise ValueError(f"downlink = {downlink!r} must be 'full' or 'delta'")
    if downlink == "delta" and optimizer != "sgd":
        raise ValueError(
            f"downlink = 'delta' with optimizer = {optimizer!r}: nodes would need the optimizer's "
            "state; use optimizer = 'sgd' or downlink = 'full'"
        )
    if once and not clients_per_round:
        raise ValueError("once = true needs clients-per-round: else the first round would ask every node")
    if once and downlink == "delta":
        raise ValueError(
            "once = true with downlink = 'delta': no node takes part again to use what changed; "
            "use downlink = 'full'"
        )
