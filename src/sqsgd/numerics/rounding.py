"""Unbiased rounding to whole numbers, in bulk. It comes before privacy, so floats may decide it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sqsgd.randomness import Rng

Positions = npt.NDArray[np.float64]


def round_unbiased(position: Positions, rng: Rng) -> npt.NDArray[np.int64]:
    """Each number goes to one of its two whole neighbours, with itself as the mean (to 2^-53).

    The uniform numbers do not depend on the positions, and a larger position never goes lower: under the
    same uniform number, two positions that are Δ apart end at most ceil(Δ) apart.
    """
    below = np.floor(position)
    return below.astype(np.int64) + (rng.uniforms(position.size) < position - below)


def rounding_chance(position: Positions, codes: npt.ArrayLike) -> Positions:
    """P(round_unbiased(position) = codes), for each."""
    return np.maximum(0.0, 1.0 - np.abs(position - np.asarray(codes, np.float64)))


def log_rounding_chance(position: Positions, codes: npt.ArrayLike) -> float:
    """ln P(round_unbiased(position) = codes), of all together; minus infinity where it cannot be."""
    with np.errstate(divide="ignore"):
        return float(np.sum(np.log(rounding_chance(position, codes))))
