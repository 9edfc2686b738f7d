"""The bound that follows the privatised magnitudes of a round's reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NEAR = 0.95  # of the bound


def first_bound(scheme: str, others: float = 1.0) -> float:
    """U_0 where none was given: the paper's 10 for its own profile, ``others`` for all other schemes."""
    return 10.0 if scheme == "sqsgd-paper" else others


def next_bound(bound: float, magnitudes: Sequence[float], floor: float) -> float:
    """U_{t+1}: half again the upper quartile of the privatised magnitudes, at most twice or half of U_t.

    Moves both ways (the paper's maximum never falls, and one client's report can hold it up), sees only
    what was privatised, and stays above a floor. The quartile is a report that was made, the lower one
    of two, so that of two or more clients none can raise it alone.
    """
    seen = float(np.quantile(np.clip(magnitudes, 0.0, 2 * bound), 0.75, method="lower"))
    return max(floor, min(max(1.5 * seen, bound / 2), 2 * bound))


def clip_rate(magnitudes: Sequence[float], bound: float) -> float | None:
    """The share of a round's privatised magnitudes at or near the bound; None where none was told."""
    return float(np.mean(np.array(magnitudes) > _NEAR * bound)) if magnitudes else None
