"""Lower and upper bounds on the δ of binomial noise: its privacy loss, rounded down and up to a grid."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats


def delta_bracket(trials: int, shift: int, count: int, epsilon: float, step: float) -> tuple[float, float]:
    """Bounds on the δ(ε) of ``count`` numbers plus Bin(trials, 1/2) each, all moved by ``shift``.

    The loss of a number is ln(P(Z = z) / P(Z = z - shift)); those of all of them add up, and
    δ(ε) = E max(0, 1 - e^(ε - loss)). Outcomes of probability below 1e-40 are left out below, and count
    fully above, as do those that only one of the two inputs can cause.
    """
    z = np.arange(trials + 1)
    law = stats.binom.logpmf(z, trials, 0.5)
    kept = (z >= shift) & (law > math.log(1e-40))
    loss, chance = law[kept] - law[z[kept] - shift], np.exp(law[kept])
    left_out = count * np.exp(law[~kept]).sum()
    below, above = (_beyond(rounded(loss / step).astype(int), chance, count, epsilon / step, step)
                    for rounded in (np.floor, np.ceil))  # fmt: skip
    return below, above + left_out


def _beyond(cells, chance, count, epsilon, step):
    first = cells.min()
    one = np.bincount(cells - first, weights=chance)
    size = (one.size - 1) * count + 1
    padded = 1 << (size - 1).bit_length()
    total = np.maximum(np.fft.irfft(np.fft.rfft(one, padded) ** count, padded)[:size], 0.0)
    excess = (first * count + np.arange(size) - epsilon) * step
    return float(total[excess > 0] @ -np.expm1(-excess[excess > 0]))
