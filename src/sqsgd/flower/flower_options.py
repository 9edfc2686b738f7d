"""Options of Flower's ``FedAvg`` that ``SqsgdStrategy`` accepts unchanged."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from sqsgd import checks

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
