"""Check (b), second half: every pair of many inputs, on every output, from counts of real messages alone.

No density is consulted, so a sampler that departs from its density at a few inputs is found here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sqsgd.audit._statistics import share_limits
from sqsgd.audit._tally_inputs import Input, differing, tally_inputs
from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.subject import Floats, Small, Subject, outputs_of
from sqsgd.checks import Vector
from sqsgd.codec import AnyColumn, Array, Column, Columns
from sqsgd.core import Scheme
from sqsgd.randomness import Rng

FALSE_ALARM = 1e-3
"""The probability that any confidence limit of an audit's tallies is wrong."""
_BUDGETS = 2  # the least and the largest of the small budgets
_FEWEST = 400
_MOST_CODES, _BUCKETS, _MOST_HALVES = 64, 16, 300
Places = npt.NDArray[np.int64]


def reports_each(subject: Subject) -> int:
    """Reports per input: 2,000 by default."""
    return max(_FEWEST, subject.trials // 10)


def tallies(subject: Subject) -> Iterator[Finding]:
    """One finding for the least and one for the largest small budget that the scheme has parameters for."""
    found = [(budget, small) for budget in subject.budgets if (small := subject.small(budget)) is not None]
    if not found:
        yield skipped("tally", "tally of all pairs", "The scheme has no parameters for small budgets.")
    for budget, small in dict([found[0], found[-1]] if found else []).items():
        yield _tally(subject, small, f"tally of all pairs, budget {budget:g}")


def _tally(subject: Subject, small: Small, name: str) -> Finding:
    inputs = tally_inputs(small, subject.numbers("tally"))
    events, count = Events(small), reports_each(subject)
    counts = counted(small, inputs, events, count, subject.noise(), subject.numbers("lengths"))
    promised = small.scheme.privacy.epsilon
    apart = np.ones((len(inputs), len(inputs)))
    if small.scheme.privacy.notion == "per-weight":
        apart = np.array([[differing(one, other) for other in inputs] for one in inputs])
    level = FALSE_ALARM / (2 * _BUDGETS * counts.size)
    closest = closest_pair(counts, count, level, promised * apart)
    likely, unlikely = inputs[closest.likely].name, inputs[closest.unlikely].name
    seen, event = closest.counts, events.label(closest.event)
    nearest = (
        f'The closest to the limit are "{likely}" and "{unlikely}", on {event} ({seen[0]:,} against '
        f"{seen[1]:,} times): epsilon is at least {closest.bound:.3f}, {closest.limit:.3f} is guaranteed."
        if closest.bound > 0
        else f"No pair differs beyond chance; {closest.limit:.3f} is guaranteed."
    )
    return judged(
        "tally",
        name,
        measured=closest.bound,
        limit=closest.limit,
        sentence=f"{count:,} reports of each of {len(inputs)} inputs, all pairs compared on {events.size:,} "
        f"events, none chosen by a density. {nearest}",
        details={
            "inputs": [each.name for each in inputs],
            "reports of each": count,
            "events": events.size,
            "likely under": likely,
            "unlikely under": unlikely,
            "event": event,
            "times": list(seen),
            "chance of a false alarm, at most": FALSE_ALARM,
        },
    )


# ---------------------------------------------------------------- counts


def counted(
    small: Small, inputs: Sequence[Input], events: Events, count: int, rng: Rng, numbers: np.random.Generator
) -> Places:
    """How often each event (column) occurred in ``count`` reports of each input (row)."""
    rows = []
    for each in inputs:
        messages = Counter(small.scheme.encode(x, small.task, rng) for x in _vectors(each, count, numbers))
        times = np.fromiter(messages.values(), np.int64, len(messages))
        places = events.of([*messages], small.scheme)
        rows.append(np.bincount(places.ravel(), np.repeat(times, places.shape[1]), events.size))
    return np.array(rows).astype(np.int64)


def _vectors(each: Input, count: int, numbers: np.random.Generator) -> Iterator[Vector]:
    if each.band is None:
        for _ in range(count):
            yield each.x
        return
    for factor in numbers.uniform(*each.band, count).astype(np.float32):
        yield factor * each.x


class Events:
    """What is counted: whole outputs where they can be listed, and projections of them.

    Projections are the code at each position of each column, and all columns together, each number
    replaced by the half of its range that it lies in. They are fixed before any report is seen.
    """

    def __init__(self, small: Small) -> None:
        self._small, self._layout = small, small.scheme.mechanism.layout
        self._starts = [0]
        if small.listed:
            self._starts.append(len(small.outputs) + 1)  # and one for any other message
        self._parted = not small.listed or sum(column.count for column in self._layout) > 1
        for column in self._layout if self._parted else ():
            for _ in range(column.count):
                self._starts.append(self._starts[-1] + _kinds(column))
        halves = outputs_of(tuple(Column(each.count, _halves(each)) for each in self._layout))
        self._halves = int(halves) if halves < min(outputs_of(self._layout), _MOST_HALVES) else 0
        if self._halves:
            self._starts.append(self._starts[-1] + self._halves)
        self.size = self._starts[-1]

    def of(self, messages: Sequence[bytes], scheme: Scheme) -> Places:
        """The events of each message, one per projection."""
        opened = [scheme.open(message, self._small.task) for message in messages]
        columns = [np.stack(parts) for parts in zip(*opened, strict=True)]
        places: list[Places] = []
        if self._small.listed:
            known, other = self._small.places, len(self._small.outputs)
            bodies = (self._small.scheme.body(message) for message in messages)
            places.append(np.array([known.get(body, other) for body in bodies]))
        for column, codes in zip(self._layout, columns, strict=True) if self._parted else ():
            places += [*_kind_of(column, codes).T]
        if self._halves:
            joint = np.zeros(len(messages), np.int64)
            for column, codes in zip(self._layout, columns, strict=True):
                for half in _half_of(column, codes).T:
                    joint = joint * _halves(column) + half
            places.append(joint)
        return np.stack([each + start for each, start in zip(places, self._starts, strict=False)], axis=1)

    def label(self, event: int) -> str:
        """An event in words; those from ``size`` on are the complements."""
        if event >= self.size:
            return f"anything but {self.label(event - self.size)}"
        which = int(np.searchsorted(self._starts, event, side="right")) - 1
        place = event - self._starts[which]
        if self._small.listed:
            if which == 0:
                outputs = self._small.outputs
                return f"the output {_shown(outputs[place])}" if place < len(outputs) else "invalid messages"
            which -= 1
        for number, column in enumerate(self._layout if self._parted else ()):
            if which < column.count:
                kind = "code" if _kinds(column) == column.alphabet else "bucket"
                return f"{kind} {place} at position {which} of column {number}"
            which -= column.count
        return f"combination {place} of halves"


def _shown(columns: Columns) -> str:
    return " / ".join(" ".join(str(code) for code in column.tolist()) for column in columns)


def _kinds(column: AnyColumn) -> int:
    """The number of events of one position: its codes, or buckets of them."""
    return column.alphabet if column.alphabet and column.alphabet <= _MOST_CODES else _BUCKETS


def _kind_of(column: AnyColumn, codes: Array) -> Places:
    if column.alphabet is None:  # numbers around one over √count, in steps of a quarter of it
        steps = np.floor(codes.astype(np.float64) * (4 * math.sqrt(column.count)))
        return np.asarray(np.clip(steps + _BUCKETS // 2, 0, _BUCKETS - 1), np.int64)
    whole: Places = codes.astype(np.int64)
    return whole if column.alphabet <= _MOST_CODES else whole * _BUCKETS // column.alphabet


def _halves(column: AnyColumn) -> int:
    return column.alphabet if column.alphabet and column.alphabet <= 3 else 2


def _half_of(column: AnyColumn, codes: Array) -> Places:
    if column.alphabet is None:
        return (codes < 0).astype(np.int64)
    whole: Places = codes.astype(np.int64)
    return whole if column.alphabet <= 3 else 2 * whole // column.alphabet


# ---------------------------------------------------------------- all pairs


@dataclass(frozen=True, kw_only=True)
class Closest:
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
    low, high = np.hstack([low, 1 - high]), np.hstack([high, 1 - low])
    both = np.hstack([counts, trials - counts])
    with np.errstate(divide="ignore"):
        most, least = np.log(low), np.log(high)
    best: tuple[float, int, int, int] = (-math.inf, 0, 0, 0)
    for i in range(len(counts)):
        excess = most[i] - least - limits[i][:, None]
        excess[i] = -math.inf
        other, event = divmod(int(np.argmax(excess)), excess.shape[1])
        best = max(best, (float(excess[other, event]), i, other, event))
    _, i, j, event = best
    return Closest(
        likely=i,
        unlikely=j,
        event=event,
        counts=(int(both[i, event]), int(both[j, event])),
        bound=float(most[i, event] - least[j, event]),
        limit=float(limits[i, j]),
    )
