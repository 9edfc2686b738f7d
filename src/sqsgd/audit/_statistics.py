"""Confidence limits, p-values and goodness-of-fit tests. The core does not depend on SciPy."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from flint import arb, fmpq

from sqsgd.numerics import exact

Floats = npt.NDArray[np.float64]
_LEAST_EXPECTED = 5.0
_ROUNDING = 1e-9  # relative; far above the floats' errors
_BITS, _CLOSE = 64, 1e-12  # working precision and relative width of a confidence limit


def least_share(successes: int, trials: int, level: float) -> float:
    """Clopper and Pearson's lower limit: the true share lies below it with probability at most ``level``.

    It is the root in p of P(Binomial(trials, p) >= successes) = level, rounded down.

    >>> least_share(0, 100, 0.025), round(least_share(5, 100, 0.025), 4)
    (0.0, 0.0164)
    """
    low, high = 0.0, successes / trials
    with exact.precision(_BITS):
        most = arb(level).log()
        while high - low > _CLOSE * high:
            middle = (low + high) / 2
            below = exact.log_tails(trials, 1 / fmpq(*middle.as_integer_ratio()), successes)[0] <= most
            low, high = (middle, high) if below else (low, middle)
    return low


def largest_share(successes: int, trials: int, level: float) -> float:
    """Clopper and Pearson's upper limit: the true share lies above it with probability at most ``level``.

    >>> round(largest_share(0, 100, 0.025), 4)
    0.0362
    """
    return min(1.0, math.nextafter(1 - least_share(trials - successes, trials, level), math.inf))


def share_limits(successes: npt.ArrayLike, trials: int, level: float) -> tuple[Floats, Floats]:
    """Lower and upper limits of many shares: the true one is beyond each with probability at most ``level``.

    Chernoff's bound P(Binomial(n, p) <= k) <= exp(-n D(k/n, p)) for p >= k/n, D the divergence, in place of
    the exact tail: a little wider than Clopper and Pearson's limits, equal to them at zero successes.

    >>> low, high = share_limits([0, 5], 100, 0.025)
    >>> low.round(4).tolist(), high.round(4).tolist()
    ([0.0, 0.0112], [0.0362, 0.1315])
    """
    counts = np.asarray(successes, np.int64)
    return 1 - _upper_limits(trials - counts, trials, level), _upper_limits(counts, trials, level)


def _upper_limits(counts: npt.NDArray[np.int64], trials: int, level: float) -> Floats:
    """The root p >= k/n of n D(k/n, p) = -ln level, rounded up."""
    distinct, places = np.unique(counts, return_inverse=True)
    share, most = distinct / trials, -math.log(level) / trials
    low, high = share.copy(), np.ones(share.size)
    for _ in range(60):
        p = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            above = np.where(share > 0, share * np.log(share / p), 0.0)
            below = np.where(share < 1, (1 - share) * (np.log1p(-share) - np.log1p(-p)), 0.0)
        inside = above + below <= most
        low, high = np.where(inside, p, low), np.where(inside, high, p)
    return np.asarray(np.minimum(1.0, high * (1 + _ROUNDING)))[places].reshape(counts.shape)


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(χ² >= statistic).

    >>> round(chi_square_tail(3.841459, 1), 4)
    0.05
    """
    if freedom < 1 or not statistic > 0:
        return 1.0
    if not statistic < math.inf:
        return 0.0

    def tail() -> arb:
        return arb(statistic / 2).gamma_upper(arb(freedom) / 2, regularized=1)

    return exact.nearest(tail)


def normal_tails(z: float) -> float:
    """P(|Z| >= |z|) of a standard normal Z."""
    return math.erfc(abs(z) / math.sqrt(2))


def chance_of_mean(mean: float, most: float, count: int) -> float:
    """An upper bound on the p-value of the mean of ``count`` numbers in [0, most] with expectation one.

    Chernoff's bound exp(-count D), D the divergence between Bernoulli(mean / most) and Bernoulli(1 / most).

    >>> chance_of_mean(1.0, 5.0, 100), chance_of_mean(1.5, 5.0, 1000) < 1e-6
    (1.0, True)
    """
    share, truth = mean / most, 1 / most
    if not 0 <= share <= 1 + 1e-9:
        return 0.0
    share = min(share, 1.0)  # rounding may have pushed it above one
    divergence = share * math.log(share / truth) if share > 0 else 0.0
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - truth))
    return min(1.0, 2 * math.exp(-count * max(divergence, 0.0)))


def g_test(observed: npt.ArrayLike, expected: npt.ArrayLike) -> tuple[float, int]:
    """The p-value of a G-test, and its degrees of freedom; the rarest outcomes are pooled.

    A nearly impossible outcome could hide in the pool, so the rarest observed one is also tested alone, by
    the probability that any outcome as rare occurs at all.

    >>> g_test([50, 50], [50, 50]), g_test([99, 1], [100, 0])
    ((1.0, 1), (0.0, 0))
    """
    order = np.argsort(np.asarray(expected, np.float64), kind="stable")
    seen, due = np.asarray(observed, np.float64)[order], np.asarray(expected, np.float64)[order]
    as_rare = np.cumsum(due)
    rarest = float(np.min(as_rare[seen > 0], initial=1.0))
    few = max(int(np.searchsorted(as_rare, _LEAST_EXPECTED)) + 1, int(np.searchsorted(due, _LEAST_EXPECTED)))
    seen = np.concatenate([[seen[:few].sum()], seen[few:]])
    due = np.concatenate([[due[:few].sum()], due[few:]])
    some = seen > 0
    statistic = 2 * float(
        np.sum(seen[some] * np.log(seen[some] / np.maximum(due[some], 1e-300))) + due.sum() - seen.sum()
    )
    p_value = chi_square_tail(statistic, seen.size - 1)
    return (2 * rarest if 2 * rarest < p_value else p_value), seen.size - 1


def independence_test(table: npt.ArrayLike) -> tuple[float, int]:
    """The p-value of a G-test for independence of the rows and columns of a contingency table.

    >>> independence_test([[50, 50], [50, 50]])
    (1.0, 1)
    """
    counts = np.asarray(table, np.float64)
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    # Rare columns are pooled: their expected counts are too small for the limiting distribution.
    rare = counts.sum(axis=0) < 10 * _LEAST_EXPECTED
    counts = np.column_stack([counts[:, ~rare], counts[:, rare].sum(axis=1)])
    counts = counts[:, counts.sum(axis=0) > 0]
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / max(counts.sum(), 1.0)
    some = counts > 0
    statistic = 2 * float(np.sum(counts[some] * np.log(counts[some] / expected[some])))
    freedom = (counts.shape[0] - 1) * (counts.shape[1] - 1)
    return chi_square_tail(statistic, freedom), freedom
