"""No two inputs can be distinguished better than ε allows: by their densities, and by counts of reports."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from sqsgd._internal.checks import Vector
from sqsgd.audit.findings import Finding, by_test, judged, skipped
from sqsgd.audit.goodness_of_fit import g_test
from sqsgd.audit.subject import Floats, Input, Small, Subject, forward, has_density, preimage, task_for
from sqsgd.core import Scheme
from sqsgd.core.codec import AnyColumn, Array
from sqsgd.core.random import Rng
from sqsgd.core.task import Task
from sqsgd.mechanisms.cap_direction import CapDirection
from sqsgd.schemes.privunit import OnGrid

CONFIDENCE = 0.999  # that no lower bound of an audit exceeds the true ε of its pair of inputs
FALSE_ALARM = 1e-3  # the probability that any confidence limit of an audit's tallies is wrong
_SURE = f"all these bounds hold together with {CONFIDENCE:.1%} confidence"
_SLACK = 1e-9
_PAIRS, _REPORTS = 6, 2
_CAUTION = 4.0  # standard errors subtracted when a threshold is chosen
_FEWEST = 400  # reports per input of the tally
_MOST_CODES, _BUCKETS = 64, 16
_LISTED, _SAMPLED = "likelihood ratio, all outputs", "likelihood ratio, real budget"
_OF_SUMS = "likelihood ratio of the sum, all outputs"
_BYTES, _MOST_SUMS = (1, 2), 20_000  # for one coordinate
Places = npt.NDArray[np.int64]


def share_limits(successes: npt.ArrayLike, trials: int, level: float) -> tuple[Floats, Floats]:
    """Clopper and Pearson's limits: the true share is beyond each with probability at most ``level``."""
    counts, places = np.unique(np.asarray(successes, np.int64), return_inverse=True)
    low = np.where(counts > 0, stats.beta.ppf(level, np.maximum(counts, 1), trials - counts + 1), 0.0)
    high = np.where(counts < trials, stats.beta.isf(level, counts + 1, np.maximum(trials - counts, 1)), 1.0)
    return low[places], high[places]


@lru_cache(maxsize=32)
def worst_of(subject: Subject, small: Small) -> tuple[Vector, Vector, float, float]:
    """The worst pair, its log-likelihood ratio, and how far the probabilities are from summing to one."""
    inputs = [each.image for each in small.every_length(subject.numbers("worst pair"))]
    table = np.stack([small.log_densities(y) for y in inputs], axis=1)
    ratios = np.max(table[:, :, None] - table[:, None, :], axis=0)
    i, j = divmod(int(np.argmax(ratios)), len(inputs))
    return inputs[i], inputs[j], float(ratios[i, j]), float(np.max(np.abs(np.exp(table).sum(axis=0) - 1)))


def listed_ratio(subject: Subject) -> Iterator[Finding]:
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
    sentence = f"Over all outputs and pairs of inputs at {len(found)} budgets, of which {budget:g} is worst."
    yield judged("ratio", _LISTED, sentence, ratio, ratio - excess, slack=_SLACK)
    off = max(each[3] for each in found)
    sentence = f"The probabilities of all outputs sum to one within {off:.1e}."
    yield judged("ratio", "densities add up to one", sentence, off, _SLACK)


def sampled_ratio(subject: Subject) -> Iterator[Finding]:
    scheme, mechanism, what = subject.scheme, subject.scheme.mechanism, "reports"
    if isinstance(mechanism, OnGrid):  # rounding to a grid is post-processing: what is rounded is audited
        mechanism, what = CapDirection(cap=mechanism.cap, norm=mechanism.norm), "reports, before rounding,"
    if not has_density(mechanism):
        yield skipped("ratio", _SAMPLED, "Its density has no closed form.")
        return
    numbers, rng, worst = subject.numbers("sampled"), subject.noise(), 0.0
    for client in range(_PAIRS):
        task = task_for(scheme, subject.seed, client=client)
        pair = _neighbours(scheme, task, client, numbers)
        images = [forward(scheme, x, task) for x in pair]
        for x, y in [*zip(pair, images, strict=True)] * _REPORTS:
            columns = mechanism.randomize(y, task.bound, rng)
            if mechanism is scheme.mechanism:
                columns = scheme.open(scheme.encode(x, task, rng), task)
            first, second = (mechanism.log_density(columns, image, task.bound) for image in images)
            worst = max(worst, abs(first - second))
    sentence = f"The largest of {2 * _PAIRS * _REPORTS} {what} of {_PAIRS} extreme pairs of inputs."
    yield judged("ratio", _SAMPLED, sentence, worst, scheme.privacy.epsilon, slack=_SLACK)


def _neighbours(scheme: Scheme, task: Task, which: int, numbers: np.random.Generator) -> list[Vector]:
    """Two vectors that differ a lot."""
    x = numbers.standard_normal(scheme.dim).astype(np.float32)
    x /= np.float32(np.linalg.norm(x))
    spike = np.eye(1, scheme.dim, which % scheme.dim, dtype=np.float32)[0]
    sizes = (1.0, 1e3, 1e-4, 0.5, 1.0, 1e3)
    others = (-x, -1e-4 * x, -30 * x, np.zeros_like(x), spike, -spike)
    return [np.float32(sizes[which]) * x, others[which].astype(np.float32)]


class Scores(NamedTuple):
    """How often reports of each of two inputs had each score."""

    values: Floats
    first: Floats
    second: Floats


def lower_bound(chosen_on: Scores, measured_on: Scores, level: float, delta: float = 0.0) -> float:
    """Return a bound that exceeds the true ε with probability at most 2 ``level``.

    The event E, a score on one side of a threshold, is chosen on some reports and measured on others. Under
    (ε, δ)-DP, P(E | x) <= e^ε P(E | x') + δ.
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
    """Return the level of each confidence limit: two scores per budget, two limits per bound."""
    return (1 - CONFIDENCE) / (4 * len(subject.budgets))


def lower_bounds(subject: Subject) -> Iterator[Finding]:
    for budget in subject.budgets:
        name, small = f"distinguishing reports, budget {budget:g}", subject.small(budget)
        if small is None:
            yield skipped("distinguish", name, "The scheme has no parameters for a budget this small.")
            continue
        found = _distinguished(subject, small)
        sentence = f"Epsilon is at least this, by {subject.trials:,} reports of each of two inputs ({_SURE})."
        yield judged("distinguish", name, sentence, found, small.scheme.privacy.epsilon)


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


def tallies(subject: Subject) -> Iterator[Finding]:
    """One finding for the least and one for the largest small budget that the scheme has parameters for."""
    found = subject.smalls()
    if not found:
        yield skipped("tally", "tally of all pairs", "The scheme has no parameters for small budgets.")
    for budget, small in dict(found[:1] + found[-1:]).items():
        inputs, count = small.every_length(subject.numbers("tally")), max(_FEWEST, subject.trials // 10)
        events, limit = Events(small), small.scheme.privacy.epsilon
        counts = events.counted(inputs, count, subject.noise(), subject.numbers("lengths"))
        level = FALSE_ALARM / (2 * 2 * counts.size)  # two limits of each share, at two budgets
        i, j, event, bound = closest_pair(counts, count, level)
        likely, unlikely = inputs[i].name, inputs[j].name
        sentence = (
            f"{count:,} reports of each of {len(inputs)} inputs, all pairs compared on {events.size:,} "
            f'events. The furthest apart are "{likely}" and "{unlikely}", on {events.label(event)}.'
        )
        name = f"tally of all pairs, budget {budget:g}"
        yield judged("tally", name, sentence, bound, limit, likely=likely, unlikely=unlikely)


class Events:
    """Counted outcomes: whole outputs where they can be listed, and the code at each position of a column."""

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
        small, places = self._small, list[Places]()
        if small.listed:
            places.append(np.array([small.places.get(each, len(small.outputs)) for each in messages]))
        opened = zip(*(small.scheme.open(message, small.task) for message in messages), strict=True)
        for column, codes in zip(self._columns, opened, strict=False):
            places += [*_kind_of(column, np.stack(codes)).T]
        return np.asarray(np.stack(places, axis=1) + self.starts[:-1], np.int64)

    def counted(self, inputs: Sequence[Input], count: int, rng: Rng, numbers: np.random.Generator) -> Places:
        """How often each event (column) occurred in ``count`` reports of each input (row)."""
        scheme, task, rows = self._small.scheme, self._small.task, []
        for each in inputs:
            messages = Counter(scheme.encode(x, task, rng) for x in each.vectors(count, numbers))
            places = self.of([*messages])
            times = np.repeat([*messages.values()], places.shape[1])
            rows.append(np.bincount(places.ravel(), times, self.size))
        return np.array(rows).astype(np.int64)

    def label(self, event: int) -> str:
        """Return an event in words; those from ``size`` on are the complements."""
        if event >= self.size:
            return f"anything but {self.label(event - self.size)}"
        which = int(np.searchsorted(self.starts, event, side="right")) - 1
        return self._names[which].format(event - int(self.starts[which]))


def _kinds(column: AnyColumn) -> int:
    """Return the number of events of one position: its codes, or buckets of many."""
    return column.alphabet if column.alphabet and column.alphabet <= _MOST_CODES else _BUCKETS


def _kind_of(column: AnyColumn, codes: Array) -> Places:
    if column.alphabet is None:  # numbers around one over √count, in steps of a quarter of it
        steps = np.floor(codes.astype(np.float64) * (4 * math.sqrt(column.count)))
        return np.asarray(np.clip(steps + _BUCKETS // 2, 0, _BUCKETS - 1), np.int64)
    return np.asarray(codes.astype(np.int64) * _kinds(column) // column.alphabet)


def closest_pair(counts: Places, trials: int, level: float) -> tuple[int, int, int, float]:
    """Return the pair of rows and the event with the largest lower bound on ε, and this bound.

    Events are the columns and their complements. No bound exceeds the true ε of its pair, except with
    probability 2 ``level`` times the size of ``counts``.
    """
    low, high = share_limits(counts, trials, level)
    with np.errstate(divide="ignore"):
        most, least = np.log(np.hstack([low, 1 - high])), np.log(np.hstack([high, 1 - low]))
    best = (-math.inf, 0, 0, 0)
    for i in range(len(counts)):
        bounds = most[i] - least
        bounds[i] = -math.inf
        other, event = divmod(int(np.argmax(bounds)), bounds.shape[1])
        best = max(best, (float(bounds[other, event]), i, other, event))
    bound, i, j, event = best
    return i, j, event, bound


# ---------------------------------------------------------------- sums, for central guarantees
#
# One client's vector changes from x to x', and only the sum s of all codes is seen: then
# δ(ε) = Σ_s max(0, P(s | x) - e^ε P(s | x')) must not exceed δ.


def central_checks(subject: Subject) -> Iterator[Finding]:
    """At small budgets and for one coordinate, where the distribution of the sum can be computed."""
    tried = [(budget, s) for budget in subject.budgets if (s := _small(subject, budget)) is not None]
    if not tried:
        yield skipped("ratio", _OF_SUMS, "The scheme has no parameters for small budgets.")
        return
    rng, excesses, far = subject.noise(), [], np.full(1, 1e3, np.float32)
    for budget, scheme in tried:
        task, epsilon = task_for(scheme, subject.seed), scheme.privacy.epsilon
        laws = law_of_sum(scheme, task, far), law_of_sum(scheme, task, -far)
        excesses.append(max(delta_beyond(*laws, epsilon), delta_beyond(*laws[::-1], epsilon)))
        found = _distinguished_sums(subject, scheme, far, laws, rng)
        name = f"distinguishing sums, budget {budget:g}"
        sentence = f"Epsilon is at least this, by {subject.trials // 10:,} sums for each of two inputs."
        yield judged("distinguish", name, sentence, found, epsilon)
    budgets = ", ".join(f"{budget:g}" for budget, _ in tried)
    sentence = f"Delta of the sum, the largest at epsilon {budgets}. A single report has no guarantee."
    yield judged("ratio", _OF_SUMS, sentence, max(excesses), scheme.privacy.delta, slack=_SLACK)
    sentence = f"{subject.trials:,} reports at epsilon {budget:g} against their density"
    x = np.full(scheme.dim, 0.3 * task.bound, np.float32)
    law = _law(scheme, task, x)
    counts = np.bincount([_code(scheme, task, x, rng) for _ in range(subject.trials)], minlength=law.size)
    test = g_test(counts, subject.trials * law) if counts.size == law.size else (0.0, law.size)
    yield by_test("law of one report", sentence, test)


def _small(subject: Subject, budget: float) -> Scheme | None:
    for size in _BYTES:
        with contextlib.suppress(ValueError):
            scheme = subject.make(dim=1, epsilon=budget, bytes=size)
            if (scheme.mechanism.layout[0].alphabet or math.inf) <= _MOST_SUMS:
                return scheme
    return None


def _clients(scheme: Scheme) -> int:
    return int(getattr(scheme.mechanism, "clients", 1))


def _law(scheme: Scheme, task: Task, x: Vector) -> Floats:
    """P(code) of one report over its support, the lowest part of the alphabet: the rest is for the sum."""
    y, mechanism = forward(scheme, x, task), scheme.mechanism
    codes = range((mechanism.layout[0].alphabet or 0) // _clients(scheme) + 1)
    return np.exp([mechanism.log_density((np.array([code]),), y, task.bound) for code in codes])


def law_of_sum(scheme: Scheme, task: Task, x: Vector) -> Floats:
    """P(sum) of one client's report of x and the others' of zero."""
    others = [_law(scheme, task, np.zeros_like(x))] * (_clients(scheme) - 1)
    return reduce(np.convolve, others, _law(scheme, task, x))


def delta_beyond(first: Floats, second: Floats, epsilon: float) -> float:
    """δ(ε) of two laws: how much of the first lies beyond e^ε times the second."""
    return float(np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0)))


def _distinguished_sums(
    subject: Subject, scheme: Scheme, x: Vector, laws: tuple[Floats, Floats], rng: Rng
) -> float:
    tasks = [task_for(scheme, subject.seed, client=client) for client in range(_clients(scheme))]

    def sums(x: Vector) -> Floats:
        pairs = [(task, np.zeros_like(x) if task.client else x) for task in tasks]
        found = [sum(_code(scheme, *pair, rng) for pair in pairs) for _ in range(subject.trials // 20)]
        return np.bincount(found, minlength=laws[0].size).astype(np.float64)

    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.nan_to_num(np.log(laws[0]) - np.log(laws[1]), nan=0.0, posinf=1e9, neginf=-1e9)
    learning, measuring = (Scores(score, sums(x), sums(-x)) for _ in range(2))
    return lower_bound(learning, measuring, level_of(subject), scheme.privacy.delta)


def _code(scheme: Scheme, task: Task, x: Vector, rng: Rng) -> int:
    return int(scheme.open(scheme.encode(x, task, rng), task)[0][0])
