"""Unbiased stochastic rounding to integers. It precedes the private step, so floats are precise enough."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sqsgd.randomness import Rng

Positions = npt.NDArray[np.float64]


def round_unbiased(position: Positions, rng: Rng) -> npt.NDArray[np.int64]:
    """Round each number to a neighbouring integer, with the number itself as the mean (to 2^-53).

    The uniform numbers do not depend on the positions, and rounding is monotone in the position: under the
    same uniform number, two positions at distance Δ end at most ceil(Δ) apart.
    """
    below = np.floor(position)
    return below.astype(np.int64) + (rng.uniforms(position.size) < position - below)


def rounding_chance(position: Positions, codes: npt.ArrayLike) -> Positions:
    """P(round_unbiased(position) = codes) for each coordinate."""
    return np.maximum(0.0, 1.0 - np.abs(position - np.asarray(codes, np.float64)))


def log_rounding_chance(position: Positions, codes: npt.ArrayLike) -> float:
    """ln P(round_unbiased(position) = codes) of all coordinates together; minus infinity if impossible."""
    with np.errstate(divide="ignore"):
        return float(np.sum(np.log(rounding_chance(position, codes))))
