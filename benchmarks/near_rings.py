"""What weights by rank would gain: sparse match codes whose near set has an inner ring that counts double.

python benchmarks/near_rings.py

A code has the higher density if 2 l₁ + l₂ >= τ, where l₁ and l₂ count matches in the inner and the outer
ring. Prints (NMSE + 1) of the best code with one ring and of the best with two, over the same grid, at
N = 131,072; floats suffice for a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

SIZE = 131_072
GRIDS = {  # ε: numbers of coordinates sent, sizes of the near set
    400.0: (range(44, 68, 2), range(100, 400, 20)),
    100.0: (range(8, 16), range(20, 160, 10)),
    20.0: (range(1, 5), range(4, 80, 4)),
}
MOST_WRONG = 6  # wrong signs; more hardly ever occur


def log_comb(n, k):
    """ln C(n, k), minus infinity where there is none."""
    n, k = np.asarray(n, float), np.asarray(k, float)
    return np.where((k < 0) | (k > n), -np.inf, gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def mean_magnitude(first: int, last: int) -> float:
    """Mean magnitude of the coordinates of a uniform unit vector with ranks ``first`` to ``last``."""

    def above(rank: int) -> float:
        return 2 * norm.pdf(norm.isf(rank / (2 * SIZE))) if rank else 0.0

    return math.sqrt(SIZE) * (above(last) - above(first)) / (last - first) if last > first else 0.0


def energies(epsilon: float, count: int, inner: int, outer: int, thresholds: Sequence[int]) -> list[float]:
    """t / m² for each threshold, where m is the mean length along the vector."""
    near, hits = inner + outer, np.arange(count + 1)[:, None]
    wrong = np.arange(min(count, MOST_WRONG) + 1)
    rest = count - hits - wrong
    ways = log_comb(near - hits, wrong) + log_comb(SIZE - near, rest) + rest * math.log(2)
    others = logsumexp(ways, axis=1)
    mean_wrong = (np.exp(ways - others[:, None]) * wrong).sum(axis=1)
    first = np.arange(min(count, inner) + 1)[:, None]
    second = np.arange(min(count, outer) + 1)[None, :]
    both = np.minimum(first + second, count)
    possible = first + second <= count
    masses = np.where(possible, log_comb(inner, first) + log_comb(outer, second) + others[both], -np.inf)
    high, low = mean_magnitude(0, inner), mean_magnitude(inner, near)
    gain = first * high + second * low - mean_wrong[both] * (inner * high + outer * low) / near
    found = []
    for threshold in thresholds:
        weights = masses + np.where(2 * first + second >= threshold, epsilon, 0.0)
        mean = float((np.exp(weights - logsumexp(weights)) * gain).sum())
        found.append(count / mean**2 if mean > 0 else math.inf)
    return found


def best(epsilon: float, shares: Sequence[float]) -> tuple[float, int, int, int, int]:
    """The least energy, and the t, rings and τ that give it."""
    counts, sizes = GRIDS[epsilon]
    found = []
    for count in counts:
        for size in sizes:
            for inner in {round(share * size) for share in shares}:
                thresholds = range(max(1, int(0.6 * count)), (2 if inner else 1) * count + 1)
                tried = energies(epsilon, count, inner, size - inner, thresholds)
                found.append((*min(zip(tried, thresholds, strict=True)), count, inner, size - inner))
    energy, threshold, count, inner, outer = min(found)
    return energy, count, inner, outer, threshold


if __name__ == "__main__":
    for epsilon in GRIDS:
        one, two = best(epsilon, (0.0,)), best(epsilon, (0.1, 0.2, 0.3, 0.5))
        print(f"ε = {epsilon:g}: one ring {one}, two rings {two}, {1 - two[0] / one[0]:.1%} less")
