"""A lower bound on ε from how well real reports of two inputs can be distinguished."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sqsgd.audit._statistics import largest_share, least_share
from sqsgd.audit._worst_inputs import extreme_inputs
from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.likelihood_ratio import worst_of
from sqsgd.audit.subject import Floats, Small, Subject, forward, preimage
from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.randomness import Rng

CONFIDENCE = 0.999
"""The probability that no lower bound of an audit exceeds the true ε of its pair of inputs."""
_CAUTION = 4.0  # standard errors subtracted when a threshold is chosen


def level_of(subject: Subject) -> float:
    """The level of each confidence limit: two scores are tried per budget, and a bound uses two limits."""
    return (1 - CONFIDENCE) / (4 * len(subject.budgets))


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """How often reports of each input had each score."""

    values: Floats
    first: Floats
    second: Floats

    def above(self) -> tuple[Floats, Floats, Floats]:
        """The distinct scores, and how many reports of each input reach them."""
        values, places = np.unique(self.values, return_inverse=True)
        first, second = (
            np.bincount(places, counts, values.size)[::-1].cumsum()[::-1]
            for counts in (self.first, self.second)
        )
        return values, first, second


def lower_bound(chosen_on: Scores, measured_on: Scores, level: float, delta: float = 0.0) -> float:
    """A bound that exceeds the true ε with probability at most 2 ``level``.

    The event E is a score at or above a threshold, or below it, chosen on one set of reports and measured
    on another. Under (ε, δ)-DP, P(E | x) <= e^ε P(E | x') + δ.
    """
    values, first, second = chosen_on.above()
    wholes = chosen_on.first.sum(), chosen_on.second.sum()
    over = _cautious(first, wholes[0], second, wholes[1], delta)
    under = _cautious(wholes[1] - second, wholes[1], wholes[0] - first, wholes[0], delta)
    reversed_roles = bool(under.max() > over.max())
    threshold = values[int(np.argmax(under if reversed_roles else over))]
    event = measured_on.values < threshold if reversed_roles else measured_on.values >= threshold
    counts = [measured_on.first, measured_on.second]
    likely, unlikely = reversed(counts) if reversed_roles else counts
    low = least_share(int(likely[event].sum()), int(likely.sum()), level)
    high = largest_share(int(unlikely[event].sum()), int(unlikely.sum()), level)
    return math.log((low - delta) / high) if low > delta else -math.inf


def _cautious(hits: Floats, whole: float, misses: Floats, other: float, delta: float) -> Floats:
    """Roughly what ``lower_bound`` would give on as many fresh reports."""
    likely, unlikely = hits / whole, misses / other
    low = likely - _CAUTION * np.sqrt(likely / whole) - delta
    high = unlikely + _CAUTION * np.sqrt((unlikely + _CAUTION / other) / other) + _CAUTION / other
    return np.where(low > 0, np.log(np.maximum(low, 1e-300) / high), -np.inf)


def lower_bounds(subject: Subject) -> Iterator[Finding]:
    """One finding for each small budget."""
    for budget in subject.budgets:
        name = f"distinguishing reports, budget {budget:g}"
        small = subject.small(budget)
        if small is None:
            yield skipped("distinguish", name, "The scheme has no parameters for a budget this small.")
            continue
        found = _listed(subject, small) if small.listed else _continuous(subject, small)
        promised = small.scheme.privacy.epsilon
        yield judged(
            "distinguish",
            name,
            measured=found,
            limit=promised,
            sentence=f"{subject.trials:,} reports of each of two inputs show that epsilon is at least "
            f"{max(found, 0.0):.3f}; {promised:.3f} is guaranteed (all these bounds hold together with "
            f"{CONFIDENCE:.1%} confidence).",
            details={"share of the promise": found / promised, "outputs": _outputs(small)},
        )


def _outputs(small: Small) -> float:
    return float(len(small.outputs)) if small.listed else math.inf


def _images(scheme: Scheme, small: Small, pair: tuple[Vector, Vector]) -> tuple[list[Vector], list[Vector]]:
    """Two vectors that the transforms map to (nearly) the pair, and their actual images."""
    vectors = [preimage(scheme, y, small.task) for y in pair]
    return vectors, [forward(scheme, x, small.task) for x in vectors]


def _pair(subject: Subject, small: Small) -> tuple[Vector, Vector]:
    """The pair with the largest likelihood ratio; without one, opposite corners, far and near."""
    if small.listed and small.dense:
        pair, _ = worst_of(subject, small)
        return pair.first, pair.second
    corner = extreme_inputs(small.scheme.mechanism.dim, 30 * small.task.bound, subject.numbers("pair"))[0]
    return corner, (-1e-3 * corner).astype(np.float32)


def _listed(subject: Subject, small: Small) -> float:
    """The better of two scores: the likelihood ratio, and one learned from the reports."""
    vectors, images = _images(small.scheme, small, _pair(subject, small))
    rng, half = subject.noise(), subject.trials // 2
    tallies = [[small.tally(x, half, rng) for x in vectors] for _ in range(2)]
    bodies = sorted(set().union(*(tally for each in tallies for tally in each)))
    learning, measuring = (
        np.array([[tally[body] for body in bodies] for tally in each], np.float64) for each in tallies
    )
    scores = [np.log((learning[0] + 0.5) / (learning[1] + 0.5))]
    if small.dense:
        first, second = (small.log_densities(y) for y in images)
        known = np.array([small.places.get(body, -1) for body in bodies])
        scores.append(np.where(known < 0, np.inf, (first - second)[known]))
    return max(
        lower_bound(
            Scores(values=score, first=learning[0], second=learning[1]),
            Scores(values=score, first=measuring[0], second=measuring[1]),
            level_of(subject),
        )
        for score in scores
    )


def _continuous(subject: Subject, small: Small) -> float:
    """By the likelihood ratio, for reports that hardly ever repeat."""
    vectors, images = _images(small.scheme, small, _pair(subject, small))
    rng = subject.noise()
    scored = [_density_scores(small, x, images, subject.trials, rng) for x in vectors]
    half = subject.trials // 2
    learning, measuring = (
        _as_scores(scored[0][part], scored[1][part]) for part in (slice(half), slice(half, None))
    )
    return lower_bound(learning, measuring, level_of(subject))


def _density_scores(small: Small, x: Vector, images: list[Vector], count: int, rng: Rng) -> Floats:
    scheme, task, scores = small.scheme, small.task, np.empty(count)
    for i in range(count):
        columns = scheme.open(scheme.encode(x, task, rng), task)
        first, second = (scheme.mechanism.log_density(columns, y, task.bound) for y in images)
        scores[i] = first - second
    return scores


def _as_scores(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> Scores:
    ones, zeros = np.ones(first.size), np.zeros(second.size)
    return Scores(
        values=np.concatenate([first, second]).round(9),
        first=np.concatenate([ones, zeros]),
        second=np.concatenate([0 * ones, zeros + 1]),
    )
