"""Options of Flower's ``FedAvg`` that an app may give to ``SqsgdStrategy`` as they stand."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from sqsgd import checks

_LOG = logging.getLogger("flwr")
_IGNORED = {
    "min_evaluate_nodes": "what nodes measure never leaves them",
    "weighted_by_key": "all reports weigh the same, for numbers of examples never leave a node",
    "train_metrics_aggr_fn": "nodes' metrics never leave them; measure with evaluate_fn",
    "evaluate_metrics_aggr_fn": "nodes' metrics never leave them; measure with evaluate_fn",
}
_FIXED = {"arrayrecord_key": "arrays", "configrecord_key": "config"}


def least_nodes(given: Mapping[str, Any], ours: Iterable[str]) -> tuple[int, int]:
    """How many nodes must be connected, and how many are asked, at least; both 0 where it is not said.

    Warns of what has no meaning here; raises TypeError for what nobody knows, as Python does.
    """
    for name, value in given.items():
        if name in _IGNORED:
            _LOG.warning("sqsgd: %s is ignored: %s", name, _IGNORED[name])
        elif name in _FIXED:
            if value != _FIXED[name]:
                raise ValueError(f"{name} = {value!r} must be {_FIXED[name]!r}: nodes look nowhere else")
        elif name not in ("min_available_nodes", "min_train_nodes"):
            near = difflib.get_close_matches(name, ours, n=1)
            meant = f": did you mean {near[0]}?" if near else ""
            raise TypeError(f"SqsgdStrategy has no option {name!r}{meant}")
    connected = checks.integer("min_available_nodes", given.get("min_available_nodes", 0), 0, 2**31)
    asked = checks.integer("min_train_nodes", given.get("min_train_nodes", 0), 0, 2**31)
    return max(connected, asked), asked
