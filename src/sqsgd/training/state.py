"""What one round passes to the next, and the record that it leaves for progress bars, files and reports."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sqsgd._internal.checks import Vector
from sqsgd._internal.files import worded
from sqsgd.core import Scheme
from sqsgd.mechanisms.gaussian_account import spent
from sqsgd.training.settings import Settings

Gradient = npt.NDArray[np.float64]
OptimizerState = Mapping[str, Gradient]
_NEAR = 0.95  # of the bound


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a training between two rounds."""

    round: int
    weights: Vector
    bound: float
    optimizer: OptimizerState
    residuals: Mapping[int, Vector] = field(default_factory=dict)
    spent: Mapping[int, int] = field(default_factory=dict)
    """The number of reports paid for by each client. Empty if clients report only once."""
    lost: int = -1
    """The round that was interrupted by a crash, which is counted as spent and not repeated."""

    def after(self, paid: Iterable[int] = ()) -> Self:
        """Return the state before the next round, where only the spending of these clients is updated."""
        spent = {**self.spent, **{client: self.spent.get(client, 0) + 1 for client in paid}}
        return dataclasses.replace(self, round=self.round + 1, spent=spent)


def initial_state(weights: Vector, settings: Settings) -> State:
    """Create the state before the first round.

    Args:
        weights: The initial weights of the model.
        settings: The settings, in which ``bound`` and ``lr`` must be set.

    Returns:
        The state for round 0.

    Raises:
        ValueError: If the bound or the learning rate is zero.
    """
    if not (settings.bound and settings.lr):
        raise ValueError(
            f"bound = {settings.bound:g}, lr = {settings.lr:g}: choose both, see Settings.fitted"
        )
    return State(round=0, weights=weights, bound=settings.bound, optimizer={})


@dataclass(frozen=True, kw_only=True)
class Record:
    """The measurements of a single round, where message sizes are given per client."""

    round: int
    loss: float = math.nan  # mean over the round's clients; NaN where it stays with the clients
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
    accuracy: float | None = None  # on held-out data, after the round; None: not measured
    test_loss: float | None = None
    metric: str | None = None  # the name of the headline in ``metrics``; None: it is the accuracy
    better: str | None = None  # ``higher`` or ``lower``: what is better in that metric
    metrics: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to an entry of the metrics file, using strings for infinity and NaN and omitting None."""
        values = {name: worded(value) for name, value in dataclasses.asdict(self).items()}
        if self.metrics is not None:
            values["metrics"] = {name: worded(value) for name, value in self.metrics.items()}
        return {name: value for name, value in values.items() if value is not None or name == "clip_rate"}


def make_record(
    scheme: Scheme, before: State, after: State, *, magnitudes: Sequence[float] = (), **measured: Any
) -> Record:
    """Return the record of the round between two states. If ``after`` counts no reports, no client sent two.

    tests/training/test_algorithm.py::test_totals_are_never_below_the_exact_product.
    """
    reports, near = max(after.spent.values(), default=1), np.array(magnitudes) > _NEAR * before.bound
    return Record(
        round=before.round,
        epsilon=spent(scheme.privacy, 1),
        epsilon_total=spent(scheme.privacy, reports),
        clip_rate=float(np.mean(near)) if near.size else None,
        bound=before.bound,
        **measured,
    )
