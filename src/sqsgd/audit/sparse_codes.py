"""Sparse codes at the requested budget: matches, wrong signs, places and the norm symbol of real reports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sqsgd.audit._statistics import g_test, independence_test
from sqsgd.audit.findings import Finding, skipped
from sqsgd.audit.goodness_of_fit import by_test
from sqsgd.audit.subject import Subject, forward, task_for
from sqsgd.mechanisms.sparse_law import SparseLaw
from sqsgd.mechanisms.sparse_matches import SparseMatches
from sqsgd.numerics import exact

_PAIRS, _NEAR = "law of matches and wrong signs", "places of the matches"
_OTHERS, _SYMBOL, _APART = (
    "places and signs of the others",
    "law of the norm symbol",
    "norm symbol and matches",
)
_TASKS, _PARTS = 8, 8
_RARE = 1e-12  # pairs below this probability share one cell
Counts = npt.NDArray[np.int64]


@dataclass(kw_only=True)
class _Seen:
    """Totals over the reports."""

    pairs: list[tuple[int, int]] = field(default_factory=list)
    near: Counts
    """How often each element of the near set, in rising order, was hit."""
    others: Counts
    """How often each part of the range outside the near set occurred, first with one sign, then the other."""
    symbols: list[tuple[int, float]] = field(default_factory=list)


def law_of_sparse_codes(subject: Subject) -> Iterator[Finding]:
    """Reports of known vectors against the exact law of their codes."""
    mechanism = subject.scheme.mechanism
    if not isinstance(mechanism, SparseMatches):
        yield skipped("law", _PAIRS, "It sends no sparse codes.")
        return
    seen = _reports(subject, mechanism)
    reports = f"{len(seen.pairs):,} reports of {mechanism.law.count:,} of {mechanism.law.size:,} coordinates"
    chances = pair_probabilities(mechanism.law)
    counted = Counter(seen.pairs)
    observed = [counted.pop(pair, 0) for pair in chances] + [sum(counted.values())]
    expected = np.array([*chances.values(), max(0.0, 1 - sum(chances.values()))]) * len(seen.pairs)
    p_value, freedom = g_test(observed, expected)
    if freedom or p_value < 1:
        yield by_test(_PAIRS, p_value, f"{reports} against the exact law of their matches", freedom=freedom)
    else:
        yield skipped("law", _PAIRS, "At this budget only one number of matches ever occurs.")
    for name, counts, sizes, sentence in (
        (_NEAR, seen.near, np.ones(seen.near.size), "all elements of the near set are hit equally often"),
        (_OTHERS, seen.others, _part_sizes(mechanism.law), "other coordinates and their signs are uniform"),
    ):
        p_value, freedom = g_test(counts, counts.sum() * sizes / max(1, sizes.sum()))
        if freedom:
            yield by_test(name, p_value, f"{reports}: {sentence}", freedom=freedom)
    if mechanism.norm is not None:
        yield from _symbols(mechanism, seen)


def pair_probabilities(law: SparseLaw) -> dict[tuple[int, int], float]:
    """P(l, j) of all but the rarest pairs of matches and wrong signs."""
    found = {}
    with exact.precision(128):
        for matches, mass in enumerate(law.masses()):
            weight = law.weights()[0 if matches >= law.threshold else 1]
            if mass * weight > _RARE:
                for wrong, share in law.row(matches):
                    found[matches, wrong] = float((share * weight).mid())
    return {pair: chance for pair, chance in found.items() if chance > _RARE}


def _part_sizes(law: SparseLaw) -> Counts:
    """How many signed coordinates outside the near set each cell of ``others`` has."""
    starts = -(-np.arange(_PARTS + 1) * (law.size - law.near) // _PARTS)
    return np.tile(np.diff(starts), 2)


def _reports(subject: Subject, mechanism: SparseMatches) -> _Seen:
    """Reports of one vector for each task; it is beyond the bound where a coin is tossed, to fix its side."""
    scheme, law, rng = subject.scheme, mechanism.law, subject.noise()
    seen = _Seen(near=np.zeros(law.near, np.int64), others=np.zeros(2 * _PARTS, np.int64))
    outside, numbers = max(1, law.size - law.near), subject.numbers("sparse")
    for client in range(_TASKS):
        task = task_for(scheme, subject.seed, client=client, round=client % 3)
        x = numbers.standard_normal(scheme.dim).astype(np.float32)
        length = float(np.linalg.norm(forward(scheme, x, task)))
        x *= np.float32((1.5 if mechanism.norm is None else 0.37) * task.bound / length)
        near, share = mechanism._near(forward(scheme, x, task), task.bound)
        for _ in range(max(1, subject.trials // (10 * _TASKS))):
            columns = scheme.open(scheme.encode(x, task, rng), task)
            codes = columns[0].astype(np.int64)
            right, wrong = np.isin(codes, near), np.isin(codes ^ 1, near)
            seen.pairs.append((int(right.sum()), int(wrong.sum())))
            seen.near += np.isin(near >> 1, codes >> 1)
            others = codes[~(right | wrong)]
            ranks = (others >> 1) - np.searchsorted(near >> 1, others >> 1)
            parts = (others & 1) * _PARTS + ranks * _PARTS // outside
            seen.others += np.bincount(parts, minlength=2 * _PARTS)
            if mechanism.norm is not None:
                seen.symbols.append((int(columns[1][0]), share))
    return seen


def _symbols(mechanism: SparseMatches, seen: _Seen) -> Iterator[Finding]:
    norm = mechanism.norm
    assert norm is not None  # noqa: S101
    count, drawn = norm.levels + 1, np.array([symbol for symbol, _ in seen.symbols])
    expected = np.zeros(count)
    for share, times in Counter(share for _, share in seen.symbols).items():
        expected += [times * math.exp(norm.log_density(symbol, share)) for symbol in range(count)]
    p_value, freedom = g_test(np.bincount(drawn, minlength=count), expected)
    yield by_test(_SYMBOL, p_value, f"{drawn.size:,} symbols against their distribution", freedom=freedom)
    high = np.array([matches >= mechanism.law.threshold for matches, _ in seen.pairs])
    table = [np.bincount(drawn[high == side], minlength=count) for side in (False, True)]
    p_value, freedom = independence_test(table)
    if freedom > 0:
        yield by_test(_APART, p_value, "The symbol is independent of the number of matches", freedom=freedom)
