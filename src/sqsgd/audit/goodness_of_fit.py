"""The bytes of many reports follow the distribution that the privacy proof is about."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from sqsgd._internal import exact
from sqsgd._internal.checks import Vector
from sqsgd.audit.findings import Finding, by_test, skipped
from sqsgd.audit.subject import Floats, Small, Subject, forward, preimage, task_for
from sqsgd.core.random import Rng
from sqsgd.core.task import Task
from sqsgd.mechanisms.privquant import PrivQuant, Quantized
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches

Counts = npt.NDArray[np.int64]
_ALL, _MATCHES = "law of all outputs", "law of the number of matches"
_PAIRS, _ONE = "law of matches and wrong signs", "At this budget only one number of matches ever occurs."
_TASKS, _PARTS = 8, 8
_LEAST_EXPECTED = 5.0  # of a cell, which a test's limiting distribution needs
_CLAMPED = 0.9  # a reach below this clamps every coordinate of a flat vector
_MOST_DOUBT = 0.02  # coordinates per report; their law is corrected to first order in it
_SHARE_OF_BOUND = 0.37  # the norm lies between two symbols, so that its rounding is tested too
_RARE = 1e-12  # pairs below this probability share one cell


def g_test(observed: npt.ArrayLike, expected: npt.ArrayLike) -> tuple[float, int]:
    """The p-value of a G-test, and its degrees of freedom; the rarest outcomes are pooled.

    The rarest observed one, which could hide in the pool, is also tested alone.

    >>> g_test([50, 50], [50, 50]), g_test([99, 1], [100, 0])
    ((1.0, 1), (0.0, 0))
    """
    order = np.argsort(np.asarray(expected, np.float64), kind="stable")
    seen, due = np.asarray(observed, np.float64)[order], np.asarray(expected, np.float64)[order]
    as_rare = np.cumsum(due)
    rarest = float(np.min(as_rare[seen > 0], initial=1.0))
    few = max(int(np.searchsorted(as_rare, _LEAST_EXPECTED)) + 1, int(np.searchsorted(due, _LEAST_EXPECTED)))
    seen, due = (np.concatenate([[each[:few].sum()], each[few:]]) for each in (seen, due))
    freedom = seen.size - 1
    p_value = float(stats.chi2.sf(2 * special.kl_div(seen, due).sum(), freedom)) if freedom else 1.0
    return min(p_value, 2 * rarest), freedom


def independence_test(table: npt.ArrayLike) -> tuple[float, int]:
    """The p-value and degrees of freedom of a G-test for independence; rare columns are pooled.

    >>> independence_test([[50, 50], [50, 50]])
    (1.0, 1)
    """
    counts = np.asarray(table, np.float64)
    rare = counts.sum(axis=0) < 10 * _LEAST_EXPECTED
    counts = np.column_stack([counts[:, ~rare], counts[:, rare].sum(axis=1)])
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    if min(counts.shape) < 2:
        return 1.0, 0
    test = stats.chi2_contingency(counts, correction=False, lambda_="log-likelihood")
    return float(test.pvalue), int(test.dof)


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
    divergence = float(special.rel_entr(share, truth) + special.rel_entr(1 - share, 1 - truth))
    return min(1.0, 2 * math.exp(-count * max(divergence, 0.0)))


# ---------------------------------------------------------------- small budgets: all outputs


def law_of_outputs(subject: Subject) -> Iterator[Finding]:
    """Every output at a small budget against its probability; density ratios where outputs are too many."""
    found = subject.smalls()
    # Density ratios vary less at small budgets; listed outputs have more power at large ones.
    found = [pair for pair in found if pair[0] >= 1 and not pair[1].listed][:1] or found[-1:]
    if not found or not found[0][1].dense:
        yield skipped("law", _ALL, "The scheme has no parameters for small budgets, or no density there.")
        return
    (budget, small), rng = found[0], subject.noise()
    inputs = small.extreme_inputs(subject.numbers("law"))
    inside = [y for y in inputs if 0.2 < np.linalg.norm(y) / small.task.bound < 0.9][-2:]
    tests = []
    for y in inside:
        x = preimage(small.scheme, y, small.task)
        tested = _listed if small.listed else _mean_ratio
        tests.append(tested(small, x, forward(small.scheme, x, small.task), subject.trials, rng))
    p_value, freedom = min(tests)
    what = f"{len(small.outputs)} outputs" if small.listed else "density ratios"
    sentence = f"{subject.trials:,} reports of each input at epsilon {budget:g} against the density ({what})"
    yield by_test(_ALL, sentence, (min(1.0, p_value * len(inside)), freedom))


def _listed(small: Small, x: Vector, y: Vector, count: int, rng: Rng) -> tuple[float, int]:
    places = [small.places.get(message, -1) for message in small.reports(x, count, rng)]
    if min(places) < 0:
        return 0.0, len(small.outputs)
    return g_test(np.bincount(places, minlength=len(small.outputs)), count * np.exp(small.log_densities(y)))


def _mean_ratio(small: Small, x: Vector, y: Vector, count: int, rng: Rng) -> tuple[float, int]:
    """For every other input z, the ratio p(v | z) / p(v | y) has mean one over reports v of y."""
    scheme, task = small.scheme, small.task
    others = small.extreme_inputs(np.random.default_rng(1))[::9]
    ratios = np.empty((count, len(others)))
    for row, message in zip(ratios, small.reports(x, count, rng), strict=True):
        columns = scheme.open(message, task)
        here = scheme.mechanism.log_density(columns, y, task.bound)
        row[:] = [scheme.mechanism.log_density(columns, z, task.bound) - here for z in others]
    most = math.exp(scheme.privacy.epsilon)
    chances = [chance_of_mean(float(mean), most, count) for mean in np.exp(ratios).mean(axis=0)]
    return min(1.0, len(others) * min(chances)), len(others)


# ---------------------------------------------------------------- vectors whose codes are known


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownCodes:
    """A vector for one task, the codes that it is rounded to, and its size over the bound for the symbol."""

    task: Task
    x: Vector
    codes: npt.NDArray[np.uint8]
    size: float | None
    doubt: float = 0.0
    """Expected number of coordinates with another code: float32 does not hit inner levels exactly."""


def known_codes(subject: Subject) -> list[KnownCodes]:
    """One for each of several tasks; none where the public steps or the range leave the codes uncertain."""
    scheme, numbers, found = subject.scheme, subject.numbers("certain"), list[KnownCodes]()
    mechanism = scheme.mechanism
    if not isinstance(mechanism, Quantized):
        return []
    for client in range(_TASKS):
        task = task_for(scheme, subject.seed, client=client, round=client % 3)
        target = _on_levels(mechanism, task.bound, numbers)
        if target is None:
            return []
        x = preimage(scheme, target[0].astype(np.float32), task)
        image, half_range, size = mechanism.prepared(forward(scheme, x, task), task.bound)
        top = mechanism.quantizer.levels - 1
        places = np.clip((image.astype(np.float64) / half_range + 1) * top / 2, 0, top)
        doubt = float(np.abs(places - target[1]).sum())
        if doubt > _MOST_DOUBT:
            return []
        found.append(KnownCodes(task=task, x=x, codes=target[1], size=size, doubt=doubt))
    return found


def _on_levels(
    mechanism: Quantized, bound: float, numbers: np.random.Generator
) -> tuple[Floats, npt.NDArray[np.uint8]] | None:
    """A vector on the levels, as the mechanism sees it, and its codes; the ends are clamped from beyond.

    If the range follows the vector's own root mean square, with the range as the unit: most coordinates at
    the innermost levels (± s), m of them at ± a with a >= 1, where m a² + (dim - m) s² = dim / reach².
    """
    dim, levels, reach = mechanism.dim, mechanism.quantizer.levels, mechanism.own_reach
    signs, stretch = numbers.integers(0, 2, dim), np.full(dim, 1.5)
    if reach is None:
        codes = numbers.integers(0, levels, dim)
        _, length, _ = mechanism.prepared(np.zeros(dim, np.float32), bound)
    elif reach < _CLAMPED:
        codes, stretch = signs * (levels - 1), numbers.uniform(1.0, 1.05, dim)
    else:
        square = float((1 - levels % 2) / (levels - 1)) ** 2
        count = int(0.95 * dim * (1 / reach**2 - square) / (1 - square)) if square < 1 else 0
        if count < 1:
            return None
        outer = np.zeros(dim, bool)
        outer[numbers.choice(dim, count, replace=False)] = True
        inner = (levels - 1) // 2 + (signs if levels % 2 == 0 else 0)
        codes = np.where(outer, signs * (levels - 1), inner)
        stretch[:] = math.sqrt((dim / reach**2 - (dim - count) * square) / count)
    values = 2.0 * codes / (levels - 1) - 1.0
    values = np.where(np.abs(values) == 1.0, stretch * values, values)
    if reach is not None:
        length = _SHARE_OF_BOUND * bound / float(np.linalg.norm(values))
    return length * values, codes.astype(np.uint8)


# ---------------------------------------------------------------- the requested budget: PrivQuant codes


def law_of_codes(subject: Subject) -> Iterator[Finding]:
    """Matches, their positions, the codes that do not match and the norm symbol, at the requested budget."""
    scheme, mechanism, vectors = subject.scheme, subject.scheme.mechanism, known_codes(subject)
    if not isinstance(mechanism, Quantized) or not vectors:
        yield skipped("law", _MATCHES, "No vector's PrivQuant codes are known; see the law of all outputs.")
        return
    quantizer, rng = mechanism.quantizer, subject.noise()
    dim, levels, each = quantizer.dim, quantizer.levels, max(1, subject.trials // (10 * _TASKS))
    by_place, changes = np.zeros(dim, np.int64), np.zeros(levels**2, np.int64)
    counts, symbols, runs = [], list[tuple[int, float]](), 0
    for vector in vectors:
        reports = [scheme.open(scheme.encode(vector.x, vector.task, rng), vector.task) for _ in range(each)]
        codes = np.stack([columns[0] for columns in reports])
        same = codes == vector.codes
        counts.append(same.sum(axis=1))
        by_place += same.sum(axis=0)
        changes += np.bincount((levels * vector.codes.astype(np.int64) + codes).ravel(), minlength=levels**2)
        runs += int(same[:, 0].sum()) + int(np.count_nonzero(same[:, 1:] & ~same[:, :-1]))
        if vector.size is not None and mechanism.symbol is not None:
            symbols += [(int(columns[1][0]), vector.size) for columns in reports]
    matches = np.concatenate(counts)
    told = f"{matches.size:,} reports of {dim:,} codes"
    doubt = sum(vector.doubt for vector in vectors) / len(vectors)
    law = with_doubt(match_probabilities(quantizer), levels, doubt)
    test = g_test(np.bincount(matches, minlength=dim + 1), matches.size * law)
    if test[1] == 0:
        yield skipped("law", _MATCHES, _ONE)
    else:
        yield by_test(_MATCHES, f"{told} against the exact distribution of their matches", test)
    yield from _places(matches, by_place, runs, told)
    if levels > 2:
        sentence = f"{told}: codes that do not match are uniform over the {levels - 1} others"
        yield by_test("codes of the others", sentence, _others(changes.reshape(levels, levels)))
    if mechanism.symbol is not None and symbols:
        yield from _symbols(mechanism.symbol, symbols, matches > np.median(matches))


def match_probabilities(quantizer: PrivQuant) -> Floats:
    """P(L = l) for l from 0 to dim: C(n, l) (K-1)^(n-l) times the density of an output with l matches."""
    dim, codes = quantizer.dim, np.zeros(quantizer.dim, np.uint8)
    out, densities, matches = np.ones(dim, np.uint8), np.empty(dim + 1), np.arange(dim + 1)
    for count in range(dim + 1):
        densities[count] = quantizer.log_density(out, codes)
        out[count : count + 1] = 0
    ways = special.gammaln(dim + 1) - special.gammaln(matches + 1) - special.gammaln(dim - matches + 1)
    return np.asarray(np.exp(ways + (dim - matches) * math.log(quantizer.levels - 1) + densities))


def with_doubt(chances: Floats, levels: int, doubt: float) -> Floats:
    """The distribution of observed matches if, with probability ``doubt``, one code is not the known one.

    With l true matches, that code is one of them with probability l / n and is then observed as a mismatch;
    otherwise it is reported as the known code with probability 1 / (K - 1).
    """
    matches = np.arange(chances.size)
    kept, found = chances * matches / matches[-1], chances * (1 - matches / matches[-1]) / (levels - 1)
    seen = chances - kept - found
    seen[:-1] += kept[1:]
    seen[1:] += found[:-1]
    return np.asarray((1 - doubt) * chances + doubt * seen)


def _places(matches: Counts, by_place: Counts, runs: int, told: str) -> Iterator[Finding]:
    """All positions together, where each has many matches and changes; and the most extreme one alone.

    A single coordinate sent in the clear hardly shows in a joint test of thousands.
    """
    dim, count = by_place.size, matches.size
    variance = float(np.sum(matches * (dim - matches))) / (dim * max(dim - 1, 1))
    if variance == 0:
        return
    many = min(matches.sum(), (dim - matches).sum()) >= _LEAST_EXPECTED * dim
    usual, centred = float(by_place.mean()) / count, by_place - by_place.mean()
    ends = (by_place.min() / count, by_place.max() / count)
    tried = [dim * min(chance_of_mean(float(end) / usual, 1 / usual, count) for end in ends)]
    if many:
        tried.append(float(stats.chi2.sf(float(centred @ centred) / variance, dim - 1)))
    test = min(1.0, len(tried) * min(tried)), dim - 1
    yield by_test("places of the matches", f"{told}: every coordinate matches as often as any other", test)
    # Runs in a uniform subset of positions: the number of occupied gaps is hypergeometric.
    gaps = dim - matches + 1
    variances = matches * gaps * (matches - 1) * (dim - matches) / (dim**2 * max(dim - 1, 1))
    spread = math.sqrt(float(variances.sum()))
    if many and spread > _LEAST_EXPECTED:
        p_value = 2 * float(stats.norm.sf(abs(runs - float(np.sum(matches * gaps / dim))) / spread))
        sentence = f"{told}: matches are adjacent as often as expected by chance"
        yield by_test("runs of matches", sentence, (p_value, 1))


def _others(changes: Counts) -> tuple[float, int]:
    """For every code (row) that was changed, all other codes (columns) are equally likely."""
    tests = []
    for code, row in enumerate(changes):
        others = np.delete(row, code)
        if others.sum() > 0:
            tests.append(g_test(others, np.full(others.size, others.mean())))
    p_value = min((p_value for p_value, _ in tests), default=1.0)
    return min(1.0, p_value * max(1, len(tests))), sum(freedom for _, freedom in tests)


def _symbols(symbol: ScalarDP, sent: Sequence[tuple[int, float]], high: npt.ArrayLike) -> Iterator[Finding]:
    """The norm symbols and the sizes that they are about; and whether they depend on ``high`` matches."""
    count, drawn = symbol.levels + 1, np.array([each for each, _ in sent])
    expected = np.zeros(count)
    for size, times in Counter(size for _, size in sent).items():
        expected += times * np.exp([symbol.log_density(each, size) for each in range(count)])
    test = g_test(np.bincount(drawn, minlength=count), expected)
    sentence = f"{drawn.size:,} symbols against their distribution"
    yield by_test("law of the norm symbol", sentence, test)
    table = [np.bincount(drawn[np.equal(high, side)], minlength=count) for side in (False, True)]
    test = independence_test(table)
    if test[1] > 0:
        sentence = "The symbol is independent of the number of matches"
        yield by_test("norm symbol and matches", sentence, test)


# ---------------------------------------------------------------- the requested budget: sparse codes


def law_of_sparse_codes(subject: Subject) -> Iterator[Finding]:
    """Matches, wrong signs, places and the norm symbol of reports of known vectors, at the requested budget.

    Vectors are beyond the bound where a coin is tossed, to fix its side.
    """
    scheme, mechanism, rng = subject.scheme, subject.scheme.mechanism, subject.noise()
    if not isinstance(mechanism, SparseMatches):
        yield skipped("law", _PAIRS, "It sends no sparse codes.")
        return
    law, norm, numbers = mechanism.law, mechanism.norm, subject.numbers("sparse")
    pairs, symbols = list[tuple[int, int]](), list[tuple[int, float]]()
    by_place, by_part = np.zeros(law.near, np.int64), np.zeros(2 * _PARTS, np.int64)
    for client in range(_TASKS):
        task = task_for(scheme, subject.seed, client=client, round=client % 3)
        x = numbers.standard_normal(scheme.dim).astype(np.float32)
        length = float(np.linalg.norm(forward(scheme, x, task)))
        x *= np.float32((1.5 if norm is None else _SHARE_OF_BOUND) * task.bound / length)
        near, share = mechanism._near(forward(scheme, x, task), task.bound)
        for _ in range(max(1, subject.trials // (10 * _TASKS))):
            columns = scheme.open(scheme.encode(x, task, rng), task)
            codes = columns[0].astype(np.int64)
            right, wrong = np.isin(codes, near), np.isin(codes ^ 1, near)
            pairs.append((int(right.sum()), int(wrong.sum())))
            by_place += np.isin(near >> 1, codes >> 1)
            others = codes[~(right | wrong)]
            ranks = (others >> 1) - np.searchsorted(near >> 1, others >> 1)
            parts = (others & 1) * _PARTS + ranks * _PARTS // max(1, law.size - law.near)
            by_part += np.bincount(parts, minlength=2 * _PARTS)
            if norm is not None:
                symbols.append((int(columns[1][0]), share))
    told = f"{len(pairs):,} reports of {law.count:,} of {law.size:,} coordinates"
    chances, counted = pair_probabilities(law), Counter(pairs)
    observed = [counted.pop(pair, 0) for pair in chances] + [sum(counted.values())]
    expected = np.array([*chances.values(), max(0.0, 1 - sum(chances.values()))]) * len(pairs)
    test = g_test(observed, expected)
    if test == (1.0, 0):
        yield skipped("law", _PAIRS, _ONE)
    else:
        yield by_test(_PAIRS, f"{told} against the exact law of their matches", test)
    for name, counts, sizes in (
        ("places of the matches", by_place, np.ones(law.near)),
        ("places and signs of the others", by_part, part_sizes(law)),
    ):
        test = g_test(counts, counts.sum() * sizes / max(1, sizes.sum()))
        if test[1]:
            yield by_test(name, f"{told}: the {name} are uniform", test)
    if norm is not None:
        yield from _symbols(norm, symbols, [matches >= law.threshold for matches, _ in pairs])


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


def part_sizes(law: SparseLaw) -> Counts:
    """How many signed coordinates outside the near set each part of the vector has, once for each sign."""
    starts = -(-np.arange(_PARTS + 1) * (law.size - law.near) // _PARTS)
    return np.tile(np.diff(starts), 2)
