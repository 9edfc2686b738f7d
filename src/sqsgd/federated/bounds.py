"""The bound U_t, adapted to the privatised magnitudes of a round's reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NEAR = 0.95  # of the bound


def next_bound(bound: float, magnitudes: Sequence[float], floor: float) -> float:
    """U_{t+1}: 1.5 times the upper quartile of the privatised magnitudes, within [U_t / 2, 2 U_t].

    It moves both ways (the paper's maximum never falls, and one client's report can hold it up), depends
    on privatised values only, and stays above a floor. The quartile is one of the reported values, the
    lower of two, so no client can raise the bound alone if there are at least two.
    """
    seen = float(np.quantile(np.clip(magnitudes, 0.0, 2 * bound), 0.75, method="lower"))
    return max(floor, min(max(1.5 * seen, bound / 2), 2 * bound))


def clip_rate(magnitudes: Sequence[float], bound: float) -> float | None:
    """The share of a round's privatised magnitudes at or near the bound; None if none was reported."""
    return float(np.mean(np.array(magnitudes) > _NEAR * bound)) if magnitudes else None
