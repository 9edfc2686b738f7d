"""The record of one round: progress bars, metrics files and reports read these."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqsgd.core import Scheme
from sqsgd.federated.bounds import clip_rate
from sqsgd.files.json_numbers import worded
from sqsgd.numerics.epsilon_sums import total
from sqsgd.training.state import State


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one round did. Sizes are those of one client's messages."""

    round: int
    loss: float  # mean over the round's clients; NaN outside simulations, where it stays with the clients
    epsilon: float
    epsilon_total: float  # of the client that has sent the most reports
    bytes_up: int = 0  # payload, measured
    bytes_down: int = 0
    clients: int = 0  # whose reports were averaged
    clip_rate: float | None = None  # share of privatised magnitudes at or near the bound; None: none reported
    bound: float
    seconds: float = 0.0
    seconds_gradient: float | None = 0.0  # None: unknown, as for remote clients
    seconds_encode: float | None = 0.0
    seconds_aggregate: float = 0.0
    refused: int = 0  # clients whose own ledgers refused
    bytes_up_serialised: int | None = None  # with the transport's wrapping, if there is a transport
    bytes_down_serialised: int | None = None
    accuracy: float | None = None  # on held-out data, after the round; None: not measured
    test_loss: float | None = None
    metric: str | None = None  # the name of the headline in ``metrics``; None: it is the accuracy
    better: str | None = None  # ``higher`` or ``lower``: what is better in that metric
    metrics: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The line of a metrics file: infinity and NaN as words, unknown values left out."""
        values = {name: worded(value) for name, value in dataclasses.asdict(self).items()}
        if self.metrics is not None:
            values["metrics"] = {name: worded(value) for name, value in self.metrics.items()}
        return {name: value for name, value in values.items() if value is not None or name == "clip_rate"}


def make_record(
    scheme: Scheme,
    state: State,
    *,
    most_reports: int,
    loss: float = math.nan,
    magnitudes: Sequence[float] = (),
    **measured: Any,
) -> Record:
    """The record of the round that began with ``state``.

    ``most_reports``: reports sent so far by the client that has sent the most. ``measured``: other fields of
    ``Record``.

    Guarantees
    ----------
    * The total is never below the exact product of reports and epsilon:
      tests/federated/test_record.py::test_totals_are_never_below_the_exact_product.
    """
    epsilon = scheme.privacy.epsilon
    return Record(
        round=state.round,
        loss=loss,
        epsilon=epsilon,
        epsilon_total=total(epsilon, most_reports),
        clip_rate=clip_rate(magnitudes, state.bound),
        bound=state.bound,
        **measured,
    )
