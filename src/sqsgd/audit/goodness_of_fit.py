"""The bytes of many reports follow the distribution that the privacy proof is about."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sqsgd.audit._statistics import (
    chance_of_mean,
    chi_square_tail,
    g_test,
    independence_test,
    normal_tails,
)
from sqsgd.audit._worst_inputs import extreme_inputs
from sqsgd.audit.findings import Finding, skipped
from sqsgd.audit.known_codes import Certain, certain_vectors, quantizer_of, symbol_of
from sqsgd.audit.subject import Floats, Small, Subject, forward, preimage
from sqsgd.checks import Vector
from sqsgd.core import Mechanism
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.randomness import Rng

SIGNIFICANCE = 1e-6
"""A test fails if its p-value is below this."""
_ALL, _MATCHES = "law of all outputs", "law of the number of matches"
_PLACES, _RUNS = "places of the matches", "runs of matches"
_OTHERS, _SYMBOL, _APART = "codes of the others", "law of the norm symbol", "norm symbol and matches"
_INPUTS = 2
_ENOUGH = 5  # matches and changes per coordinate that a test's limiting distribution needs


def by_test(name: str, p_value: float, sentence: str, *, check: str = "law", **details: object) -> Finding:
    """The finding of a statistical test: its p-value must be at least the significance."""
    return Finding(
        check=check,
        name=name,
        outcome="passed" if p_value >= SIGNIFICANCE else "violated",
        measured=abs(math.log10(p_value)) if p_value > 0 else math.inf,
        limit=-math.log10(SIGNIFICANCE),
        sentence=f"{sentence}: p = {p_value:.2g} (fails below {SIGNIFICANCE:g}).",
        details={"p": p_value, **details},
    )


# ---------------------------------------------------------------- small budgets: all outputs


def law_of_outputs(subject: Subject) -> Iterator[Finding]:
    """Every output at a small budget against its probability; density ratios where outputs are too many."""
    found = [(budget, small) for budget in subject.budgets if (small := subject.small(budget)) is not None]
    # Density ratios vary less at small budgets; listed outputs have more power at large ones.
    found = [pair for pair in found if pair[0] >= 1 and not pair[1].listed][:1] or found[-1:]
    if not found or not found[0][1].dense:
        yield skipped("law", _ALL, "The scheme has no parameters for small budgets, or no density there.")
        return
    (budget, small), rng = found[0], subject.noise()
    mechanism = small.scheme.mechanism
    inputs = extreme_inputs(mechanism.dim, small.task.bound, subject.numbers("law"))
    inside = [y for y in inputs if 0.2 < np.linalg.norm(y) / small.task.bound < 0.9][-_INPUTS:]
    worst, freedom = 1.0, 0
    for y in inside:
        x = preimage(small.scheme, y, small.task)
        image = forward(small.scheme, x, small.task)
        test = _listed if small.listed else _mean_ratio
        p_value, freedom = test(small, x, image, subject.trials, rng)
        worst = min(worst, min(1.0, p_value * len(inside)))
    what = f"{len(small.outputs)} outputs" if small.listed else "density ratios"
    yield by_test(
        _ALL,
        worst,
        f"{subject.trials:,} reports of each of {len(inside)} inputs at epsilon {budget:g} against the "
        f"density that the proof is about ({what})",
        freedom=freedom,
    )


def _listed(small: Small, x: Vector, y: Vector, count: int, rng: Rng) -> tuple[float, int]:
    tally = small.tally(x, count, rng)
    counts = np.zeros(len(small.outputs))
    for body, times in tally.items():
        if body not in small.places:
            return 0.0, len(small.outputs)
        counts[small.places[body]] = times
    return g_test(counts, count * np.exp(small.log_densities(y)))


def _mean_ratio(small: Small, x: Vector, y: Vector, count: int, rng: Rng) -> tuple[float, int]:
    """For every other input z, the ratio p(v | z) / p(v | y) has mean one over reports v of y."""
    scheme, task = small.scheme, small.task
    others = extreme_inputs(scheme.mechanism.dim, task.bound, np.random.default_rng(1))[::9]
    ratios = np.empty((count, len(others)))
    for row in ratios:
        columns = scheme.open(scheme.encode(x, task, rng), task)
        here = scheme.mechanism.log_density(columns, y, task.bound)
        row[:] = [scheme.mechanism.log_density(columns, z, task.bound) - here for z in others]
    most = math.exp(scheme.privacy.epsilon)
    chances = [chance_of_mean(float(mean), most, count) for mean in np.exp(ratios).mean(axis=0)]
    return min(1.0, len(others) * min(chances)), len(others)


# ---------------------------------------------------------------- the requested budget: PrivQuant codes


@dataclass(kw_only=True)
class _Seen:
    """Totals over the reports."""

    matches: list[int] = field(default_factory=list)
    by_place: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.int64]
    """How often a code (row) was reported as another one (column)."""
    runs: float = 0.0
    runs_expected: float = 0.0
    runs_variance: float = 0.0
    place_variance: float = 0.0
    doubt: float = 0.0
    """The expected number of codes, over all reports, that differ from the known ones."""
    symbols: list[tuple[int, float]] = field(default_factory=list)


def law_of_codes(subject: Subject) -> Iterator[Finding]:
    """Matches, their positions, the codes that do not match and the norm symbol, at the requested budget."""
    mechanism = subject.scheme.mechanism
    quantizer, symbol = quantizer_of(mechanism), symbol_of(mechanism)
    if quantizer is None:
        yield skipped("law", _MATCHES, "It does not use PrivQuant; see the law of all outputs.")
        return
    vectors = [*certain_vectors(subject)]
    if not vectors:
        yield skipped("law", _MATCHES, "No vector's codes are known here; see the law of all outputs.")
        return
    seen = _reports(subject, quantizer, symbol is not None, vectors)
    reports = f"{len(seen.matches):,} reports of {quantizer.dim:,} codes"
    p_value, freedom = _law_of_matches(quantizer, seen)
    if freedom == 0:
        yield skipped("law", _MATCHES, "At this budget only one number of matches ever occurs.")
    else:
        yield by_test(
            _MATCHES, p_value, f"{reports} against the exact distribution of their matches", freedom=freedom
        )
    changed = sum(quantizer.dim - matches for matches in seen.matches)
    if seen.place_variance > 0:
        many = min(changed, sum(seen.matches)) >= _ENOUGH * quantizer.dim
        yield from _places(quantizer, seen, reports, many=many)
    if quantizer.levels > 2:
        p_value, freedom = _others(seen.pairs)
        yield by_test(
            _OTHERS,
            p_value,
            f"{reports}: codes that do not match are uniform over the {quantizer.levels - 1} others",
            freedom=freedom,
        )
    if symbol is not None:
        yield from _symbols(mechanism, seen)


def _reports(subject: Subject, quantizer: PrivQuant, has_symbol: bool, vectors: list[Certain]) -> _Seen:
    levels, dim, rng = quantizer.levels, quantizer.dim, subject.noise()
    seen = _Seen(by_place=np.zeros(dim, np.int64), pairs=np.zeros((levels, levels), np.int64))
    for vector in vectors:
        for _ in range(max(1, subject.trials // (10 * len(vectors)))):
            columns = subject.scheme.open(subject.scheme.encode(vector.x, vector.task, rng), vector.task)
            same = columns[0] == vector.codes
            matches = int(np.count_nonzero(same))
            seen.matches.append(matches)
            seen.doubt += vector.doubt
            seen.by_place += same
            seen.pairs += np.bincount(
                levels * vector.codes.astype(np.int64) + columns[0], minlength=levels**2
            ).reshape(levels, levels)
            seen.runs += int(same[0]) + int(np.count_nonzero(same[1:] & ~same[:-1]))
            _expect_runs(seen, matches, dim)
            seen.place_variance += matches * (dim - matches) / (dim * max(dim - 1, 1))
            if has_symbol and vector.size is not None:
                seen.symbols.append((int(columns[1][0]), vector.size))
    return seen


def _expect_runs(seen: _Seen, matches: int, dim: int) -> None:
    """Runs in a uniform subset of ``matches`` positions: the number of occupied gaps is hypergeometric."""
    gaps = dim - matches + 1
    seen.runs_expected += matches * gaps / dim
    if dim > 1:
        seen.runs_variance += matches * gaps * (matches - 1) * (dim - matches) / (dim**2 * (dim - 1))


def _law_of_matches(quantizer: PrivQuant, seen: _Seen) -> tuple[float, int]:
    """G-test against C(n, l) (K-1)^(n-l) times the density of an output with l matches."""
    reports = len(seen.matches)
    expected = reports * with_doubt(match_probabilities(quantizer), quantizer.levels, seen.doubt / reports)
    return g_test(np.bincount(seen.matches, minlength=quantizer.dim + 1), expected)


def match_probabilities(quantizer: PrivQuant) -> Floats:
    """P(L = l) for l from 0 to dim, from the density of single outputs."""
    dim, codes = quantizer.dim, np.zeros(quantizer.dim, np.uint8)
    out, chances = np.ones(dim, np.uint8), np.empty(dim + 1)
    for matches in range(dim + 1):
        ways = math.lgamma(dim + 1) - math.lgamma(matches + 1) - math.lgamma(dim - matches + 1)
        ways += (dim - matches) * math.log(quantizer.levels - 1)
        chances[matches] = math.exp(ways + quantizer.log_density(out, codes))
        out[matches : matches + 1] = 0
    return chances


def with_doubt(chances: Floats, levels: int, doubt: float) -> Floats:
    """The distribution of observed matches if, with probability ``doubt``, one code is not the known one.

    With l true matches, that code is one of them with probability l / n and is then observed as a mismatch;
    otherwise it is reported as the known code with probability 1 / (K - 1). Without this correction, a
    report with the fewest possible matches may seem to have one less.
    """
    matches = np.arange(chances.size)
    kept, found = chances * matches / matches[-1], chances * (1 - matches / matches[-1]) / (levels - 1)
    seen = chances - kept - found
    seen[:-1] += kept[1:]
    seen[1:] += found[:-1]
    return np.asarray((1 - doubt) * chances + doubt * seen)


def _places(quantizer: PrivQuant, seen: _Seen, reports: str, *, many: bool) -> Iterator[Finding]:
    """All positions together, where each has ``many`` matches and changes; and the most extreme one alone."""
    tried, count = [_oddest_place(seen.by_place, len(seen.matches))], len(seen.matches)
    if many:
        centred = seen.by_place - seen.by_place.mean()
        statistic = float(centred @ centred) / seen.place_variance
        tried.append(chi_square_tail(statistic, quantizer.dim - 1))
    odd = int(np.argmax(np.abs(seen.by_place - seen.by_place.mean())))
    yield by_test(
        _PLACES,
        min(1.0, len(tried) * min(tried)),
        f"{reports}: every coordinate matches as often as any other",
        freedom=quantizer.dim - 1,
        oddest=f"coordinate {odd}, {int(seen.by_place[odd]):,} of {count:,} times",
    )
    if many and seen.runs_variance > _ENOUGH**2:
        score = (seen.runs - seen.runs_expected) / math.sqrt(seen.runs_variance)
        yield by_test(
            _RUNS, normal_tails(score), f"{reports}: matches are adjacent as often as expected by chance"
        )


def _oddest_place(by_place: npt.NDArray[np.int64], count: int) -> float:
    """A Chernoff bound on the p-value of the position whose match count is farthest from the mean.

    A single coordinate sent in the clear hardly shows in a joint test of thousands.
    """
    usual = float(by_place.mean()) / count
    ends = (int(by_place.min()), int(by_place.max()))
    chances = [chance_of_mean(end / (count * usual), 1 / usual, count) for end in ends]
    return min(1.0, by_place.size * min(chances))


def _others(pairs: npt.NDArray[np.int64]) -> tuple[float, int]:
    """For every code that was changed, all other codes are equally likely."""
    levels, p_values, freedom = len(pairs), [], 0
    for code, row in enumerate(pairs):
        changed = np.delete(row, code)
        if changed.sum() > 0:
            p_value, more = g_test(changed, np.full(levels - 1, changed.sum() / (levels - 1)))
            p_values.append(p_value)
            freedom += more
    return min(1.0, min(p_values, default=1.0) * max(1, len(p_values))), freedom


def _symbols(mechanism: Mechanism, seen: _Seen) -> Iterator[Finding]:
    symbol = symbol_of(mechanism)
    if symbol is None or not seen.symbols:
        return
    count = symbol.levels + 1
    sizes, places = np.unique([size for _, size in seen.symbols], return_inverse=True)
    times = np.bincount(places)
    law = [[symbol.log_density(each, float(size)) for each in range(count)] for size in sizes]
    expected = times @ np.exp(np.array(law))
    drawn = np.array([each for each, _ in seen.symbols])
    p_value, freedom = g_test(np.bincount(drawn, minlength=count), expected)
    yield by_test(_SYMBOL, p_value, f"{drawn.size:,} symbols against their distribution", freedom=freedom)
    high = np.array(seen.matches) > np.median(seen.matches)
    table = [np.bincount(drawn[high == side], minlength=count) for side in (False, True)]
    p_value, freedom = independence_test(table)
    if freedom > 0:
        yield by_test(_APART, p_value, "The symbol is independent of the number of matches", freedom=freedom)
