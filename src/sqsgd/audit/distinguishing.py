"""No two inputs can be distinguished better than ε allows: by their densities, and by real reports.

A tally compares all pairs of many inputs by counts alone: it consults no density, so it finds a sampler that
departs from its density.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from sqsgd._internal.checks import Vector
from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.subject import Floats, Input, Small, Subject, forward, has_density, preimage, task_for
from sqsgd.core import Scheme
from sqsgd.core.codec import AnyColumn, Array
from sqsgd.core.random import Rng
from sqsgd.core.task import Task

CONFIDENCE = 0.999
"""The probability that no lower bound of an audit exceeds the true ε of its pair of inputs."""
FALSE_ALARM = 1e-3
"""The probability that any confidence limit of an audit's tallies is wrong."""
_SLACK = 1e-9
_PAIRS, _REPORTS = 6, 2
_CAUTION = 4.0  # standard errors subtracted when a threshold is chosen
_FEWEST = 400  # reports per input of the tally
_MOST_CODES, _BUCKETS = 64, 16
_LISTED, _SAMPLED = "likelihood ratio, all outputs", "likelihood ratio, real budget"
Places = npt.NDArray[np.int64]


def share_limits(successes: npt.ArrayLike, trials: int, level: float) -> tuple[Floats, Floats]:
    """Clopper and Pearson's limits: the true share is beyond each with probability at most ``level``.

    >>> low, high = share_limits([0, 5, 100], 100, 0.025)
    >>> low.round(4).tolist(), high.round(4).tolist()
    ([0.0, 0.0164, 0.9638], [0.0362, 0.1128, 1.0])
    """
    counts, places = np.unique(np.asarray(successes, np.int64), return_inverse=True)
    low = np.where(counts > 0, stats.beta.ppf(level, np.maximum(counts, 1), trials - counts + 1), 0.0)
    high = np.where(counts < trials, stats.beta.isf(level, counts + 1, np.maximum(trials - counts, 1)), 1.0)
    return low[places], high[places]


# ---------------------------------------------------------------- likelihood ratios


@lru_cache(maxsize=32)
def worst_of(subject: Subject, small: Small) -> tuple[Vector, Vector, float, float]:
    """The worst pair, its log-likelihood ratio, and how far the probabilities are from summing to one."""
    numbers, bound = subject.numbers("worst pair"), small.task.bound
    one_coordinate = small.scheme.privacy.notion == "per-weight"
    inputs = small.extreme_inputs(numbers)
    if one_coordinate:  # the inputs with one coordinate moved to either end
        some = inputs[:: max(1, len(inputs) // 12)]
        ends = [np.array([end * bound], np.float32) for end in (-30.0, 30.0)]
        inputs += [np.concatenate([end, y[1:]]) for y in some for end in ends]
    else:
        inputs += [each.image for each in small.every_length(numbers)]
    table = np.stack([small.log_densities(y) for y in inputs], axis=1)
    ratios = np.max(table[:, :, None] - table[:, None, :], axis=0)
    if one_coordinate:
        ratios[[[np.count_nonzero(x != y) > 1 for y in inputs] for x in inputs]] = -math.inf
    i, j = divmod(int(np.argmax(ratios)), len(inputs))
    return inputs[i], inputs[j], float(ratios[i, j]), float(np.max(np.abs(np.exp(table).sum(axis=0) - 1)))


def listed_ratio(subject: Subject) -> Iterator[Finding]:
    """At small budgets, over all outputs."""
    found = []
    for budget in subject.exact_budgets:
        small = subject.small(budget)
        if small is not None and small.listed and small.dense:
            _, _, ratio, off = worst_of(subject, small)
            found.append((ratio - small.scheme.privacy.epsilon, ratio, budget, off))
    if not found:
        yield skipped("ratio", _LISTED, "Its outputs cannot be enumerated at any small budget.")
        return
    excess, ratio, budget, _ = max(found)
    promised = ratio - excess
    sentence = (
        f"Over all outputs at {len(found)} budgets and all pairs of inputs, the log-likelihood ratio comes "
        f"closest to its limit at a budget of {budget:g}: {ratio:.6g}; {promised:.6g} is guaranteed."
    )
    yield judged("ratio", _LISTED, sentence, ratio, promised, slack=_SLACK)
    off = max(each[3] for each in found)
    sentence = f"The probabilities of all outputs sum to one within {off:.1e}."
    yield judged("ratio", "densities add up to one", sentence, off, _SLACK)


def sampled_ratio(subject: Subject) -> Iterator[Finding]:
    """At the requested budget, over real reports."""
    scheme, mechanism, what = subject.scheme, subject.scheme.mechanism, "reports"
    if not has_density(mechanism):  # rounding to a grid is post-processing: what is rounded is audited
        mechanism, what = getattr(mechanism, "inner", mechanism), "reports, before rounding to the grid,"
    if not has_density(mechanism):
        yield skipped("ratio", _SAMPLED, "Its density has no closed form.")
        return
    numbers, rng, worst = subject.numbers("sampled"), subject.noise(), 0.0
    for client in range(_PAIRS):
        task = task_for(scheme, subject.seed, client=client)
        pair = _neighbours(scheme, task, client, numbers)
        images = [forward(scheme, x, task) for x in pair]
        for x, y in [*zip(pair, images, strict=True)] * _REPORTS:
            if mechanism is scheme.mechanism:
                columns = scheme.open(scheme.encode(x, task, rng), task)
            else:
                columns = mechanism.randomize(y, task.bound, rng)
            first, second = (mechanism.log_density(columns, image, task.bound) for image in images)
            worst = max(worst, abs(first - second))
    promised = scheme.privacy.epsilon
    sentence = (
        f"Over {2 * _PAIRS * _REPORTS} {what} of {_PAIRS} extreme pairs of inputs, the log-likelihood ratio "
        f"is at most {worst:.10g}; {promised:.10g} is guaranteed."
    )
    yield judged("ratio", _SAMPLED, sentence, worst, promised, slack=_SLACK)


def _neighbours(scheme: Scheme, task: Task, which: int, numbers: np.random.Generator) -> list[Vector]:
    """Two vectors that differ as much as the guarantee's notion of neighbours allows."""
    x = numbers.standard_normal(scheme.dim).astype(np.float32)
    x /= np.float32(np.linalg.norm(x))
    if scheme.privacy.notion == "per-weight":
        other, place = x.copy(), int(scheme.sent_coordinates((), task)[which % scheme.mechanism.dim])
        x[place], other[place] = 1e3, -1e3
        return [x, other]
    spike = np.zeros_like(x)
    spike[which % scheme.dim] = 1.0
    sizes = (1.0, 1e3, 1e-4, 0.5, 1.0, 1e3)
    others = (-x, -1e-4 * x, -30 * x, np.zeros_like(x), spike, -spike)
    return [np.float32(sizes[which]) * x, others[which].astype(np.float32)]


# ---------------------------------------------------------------- lower bounds from the worst pair


class Scores(NamedTuple):
    """How often reports of each of two inputs had each score."""

    values: Floats
    first: Floats
    second: Floats


def lower_bound(chosen_on: Scores, measured_on: Scores, level: float, delta: float = 0.0) -> float:
    """A bound that exceeds the true ε with probability at most 2 ``level``.

    The event E is a score at or above a threshold, or below it, chosen on one set of reports and measured
    on another. Under (ε, δ)-DP, P(E | x) <= e^ε P(E | x') + δ.
    """
    values, places = np.unique(chosen_on.values, return_inverse=True)
    first, second = (
        np.bincount(places, counts, values.size)[::-1].cumsum()[::-1] / counts.sum()
        for counts in chosen_on[1:]
    )
    sizes = float(chosen_on.first.sum()), float(chosen_on.second.sum())
    over = _cautious(first, sizes[0], second, sizes[1], delta)
    under = _cautious(1 - second, sizes[1], 1 - first, sizes[0], delta)
    if under.max() > over.max():
        event = measured_on.values < values[int(np.argmax(under))]
        likely, unlikely = measured_on.second, measured_on.first
    else:
        event = measured_on.values >= values[int(np.argmax(over))]
        likely, unlikely = measured_on.first, measured_on.second
    low, _ = share_limits(likely[event].sum(), int(likely.sum()), level)
    _, high = share_limits(unlikely[event].sum(), int(unlikely.sum()), level)
    return math.log((float(low) - delta) / float(high)) if low > delta else -math.inf


def _cautious(likely: Floats, count: float, unlikely: Floats, other: float, delta: float) -> Floats:
    """Roughly what ``lower_bound`` would give on as many fresh reports."""
    low = likely - _CAUTION * np.sqrt(likely / count) - delta
    high = unlikely + _CAUTION * np.sqrt((unlikely + _CAUTION / other) / other) + _CAUTION / other
    return np.where(low > 0, np.log(np.maximum(low, 1e-300) / high), -np.inf)


def level_of(subject: Subject) -> float:
    """The level of each confidence limit: two scores per budget, two limits per bound."""
    return (1 - CONFIDENCE) / (4 * len(subject.budgets))


def lower_bounds(subject: Subject) -> Iterator[Finding]:
    """One finding for each small budget."""
    for budget in subject.budgets:
        name, small = f"distinguishing reports, budget {budget:g}", subject.small(budget)
        if small is None:
            yield skipped("distinguish", name, "The scheme has no parameters for a budget this small.")
            continue
        found, promised = _distinguished(subject, small), small.scheme.privacy.epsilon
        sentence = (
            f"{subject.trials:,} reports of each of two inputs show that epsilon is at least "
            f"{max(found, 0.0):.3f}; {promised:.3f} is guaranteed (all these bounds hold together with "
            f"{CONFIDENCE:.1%} confidence)."
        )
        yield judged("distinguish", name, sentence, found, promised)


def _distinguished(subject: Subject, small: Small) -> float:
    """The better of two scores: the likelihood ratio, and one learned from reports where they repeat."""
    scheme, task, rng, scores = small.scheme, small.task, subject.noise(), list[Floats]()
    if small.listed and small.dense:
        pair = worst_of(subject, small)[:2]
    else:  # opposite corners, far beyond the bound and near zero: direction and norm differ
        corner = np.full(scheme.mechanism.dim, 30 * task.bound, np.float32)
        pair = corner, (-1e-4 * corner).astype(np.float32)
    vectors = [preimage(scheme, y, task) for y in pair]
    tallies = [[Counter(small.reports(x, subject.trials // 2, rng)) for x in vectors] for _ in range(2)]
    messages = sorted(set().union(*(tally for both in tallies for tally in both)))
    learning, measuring = (
        [np.array([tally[message] for message in messages], np.float64) for tally in both] for both in tallies
    )
    if small.listed:
        scores.append(np.log((learning[0] + 0.5) / (learning[1] + 0.5)))
    if small.dense:
        opened, density = [scheme.open(message, task) for message in messages], scheme.mechanism.log_density
        y, z = (forward(scheme, x, task) for x in vectors)
        ratios = [density(each, y, task.bound) - density(each, z, task.bound) for each in opened]
        scores.append(np.round(ratios, 9))
    level = level_of(subject)
    return max(lower_bound(Scores(score, *learning), Scores(score, *measuring), level) for score in scores)


# ---------------------------------------------------------------- the tally of all pairs


def tallies(subject: Subject) -> Iterator[Finding]:
    """One finding for the least and one for the largest small budget that the scheme has parameters for."""
    found = subject.smalls()
    if not found:
        yield skipped("tally", "tally of all pairs", "The scheme has no parameters for small budgets.")
    for budget, small in dict(found[:1] + found[-1:]).items():
        yield _tally(subject, small, f"tally of all pairs, budget {budget:g}")


def _tally(subject: Subject, small: Small, name: str) -> Finding:
    inputs, count = small.every_length(subject.numbers("tally")), max(_FEWEST, subject.trials // 10)
    events = Events(small)
    counts = counted(small, inputs, events, count, subject.noise(), subject.numbers("lengths"))
    limits = np.full((len(inputs), len(inputs)), small.scheme.privacy.epsilon)
    if small.scheme.privacy.notion == "per-weight":
        limits *= [[one.differs_from(other) for other in inputs] for one in inputs]
    level = FALSE_ALARM / (2 * 2 * counts.size)  # two limits of each share, at two budgets
    closest = closest_pair(counts, count, level, limits)
    likely, unlikely = inputs[closest.likely].name, inputs[closest.unlikely].name
    sentence = (
        f"{count:,} reports of each of {len(inputs)} inputs, all pairs compared on {events.size:,} events. "
        f'The closest to the limit are "{likely}" and "{unlikely}", on {events.label(closest.event)} '
        f"({closest.counts[0]:,} against {closest.counts[1]:,} times): epsilon is at least "
        f"{max(closest.bound, 0.0):.3f}, {closest.limit:.3f} is guaranteed."
    )
    return judged("tally", name, sentence, closest.bound, closest.limit, likely=likely, unlikely=unlikely)


def counted(
    small: Small, inputs: Sequence[Input], events: Events, count: int, rng: Rng, numbers: np.random.Generator
) -> Places:
    """How often each event (column) occurred in ``count`` reports of each input (row)."""
    rows = []
    for each in inputs:
        vectors = each.vectors(count, numbers)
        messages = Counter(small.scheme.encode(x, small.task, rng) for x in vectors)
        places = events.of([*messages])
        times = np.repeat([*messages.values()], places.shape[1])
        rows.append(np.bincount(places.ravel(), times, events.size))
    return np.array(rows).astype(np.int64)


class Events:
    """What is counted: whole outputs where they can be listed, and the code at each position of each column.

    They are fixed before any report is seen.
    """

    def __init__(self, small: Small) -> None:
        self._small, self._columns = small, small.scheme.mechanism.layout
        self._names = ["output {}"] if small.listed else []
        sizes = [len(small.outputs) + 1] if small.listed else []  # and one for any other message
        if small.listed and sum(column.count for column in self._columns) == 1:
            self._columns = ()  # the output is its only code
        for number, column in enumerate(self._columns):
            kind = "code" if _kinds(column) == column.alphabet else "bucket"
            sizes += [_kinds(column)] * column.count
            self._names += [f"{kind} {{}} at position {i} of column {number}" for i in range(column.count)]
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self.size = int(self.starts[-1])

    def of(self, messages: Sequence[bytes]) -> Places:
        """The events of each message: its output, and its codes."""
        small, places = self._small, list[Places]()
        if small.listed:
            places.append(np.array([small.places.get(each, len(small.outputs)) for each in messages]))
        opened = zip(*(small.scheme.open(message, small.task) for message in messages), strict=True)
        for column, codes in zip(self._columns, opened, strict=False):
            places += [*_kind_of(column, np.stack(codes)).T]
        return np.asarray(np.stack(places, axis=1) + self.starts[:-1], np.int64)

    def label(self, event: int) -> str:
        """An event in words; those from ``size`` on are the complements."""
        if event >= self.size:
            return f"anything but {self.label(event - self.size)}"
        which = int(np.searchsorted(self.starts, event, side="right")) - 1
        return self._names[which].format(event - int(self.starts[which]))


def _kinds(column: AnyColumn) -> int:
    """The number of events of one position: its codes, or buckets of many."""
    return column.alphabet if column.alphabet and column.alphabet <= _MOST_CODES else _BUCKETS


def _kind_of(column: AnyColumn, codes: Array) -> Places:
    if column.alphabet is None:  # numbers around one over √count, in steps of a quarter of it
        steps = np.floor(codes.astype(np.float64) * (4 * math.sqrt(column.count)))
        return np.asarray(np.clip(steps + _BUCKETS // 2, 0, _BUCKETS - 1), np.int64)
    return np.asarray(codes.astype(np.int64) * _kinds(column) // column.alphabet)


class Closest(NamedTuple):
    """The pair of inputs and the event whose lower bound on ε comes closest to its limit."""

    likely: int
    unlikely: int
    event: int
    counts: tuple[int, int]
    bound: float
    limit: float


def closest_pair(counts: Places, trials: int, level: float, limits: Floats) -> Closest:
    """Over all pairs of rows, all events (columns) and their complements.

    Each share has a lower and an upper confidence limit at ``level``. All hold together except with
    probability 2 ``level`` times the size of ``counts``, and then no bound exceeds the true ε of its pair.
    """
    low, high = share_limits(counts, trials, level)
    both = np.hstack([counts, trials - counts])
    with np.errstate(divide="ignore"):
        most, least = np.log(np.hstack([low, 1 - high])), np.log(np.hstack([high, 1 - low]))
    best = (-math.inf, 0, 0, 0)
    for i in range(len(counts)):
        excess = most[i] - least - limits[i][:, None]
        excess[i] = -math.inf
        other, event = divmod(int(np.argmax(excess)), excess.shape[1])
        best = max(best, (float(excess[other, event]), i, other, event))
    _, i, j, event = best
    seen, bound = (int(both[i, event]), int(both[j, event])), float(most[i, event] - least[j, event])
    return Closest(i, j, event, seen, bound, float(limits[i, j]))
