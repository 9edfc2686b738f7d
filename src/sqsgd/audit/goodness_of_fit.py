"""The bytes of many reports follow the distribution that the privacy proof is about."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from sqsgd._internal import exact
from sqsgd._internal.checks import Vector
from sqsgd.audit.findings import Finding, by_test, skipped
from sqsgd.audit.subject import Floats, Small, Subject, forward, preimage, task_for
from sqsgd.core.codec import Columns
from sqsgd.core.random import Rng
from sqsgd.core.task import Task
from sqsgd.mechanisms.privquant import PrivQuant, Quantized
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse import SparseLaw, SparseMatches

Counts = npt.NDArray[np.int64]
_ALL, _MATCHES = "law of all outputs", "law of the number of matches"
_PAIRS, _ONE = "law of matches and wrong signs", "At this budget only one number of matches ever occurs."
_TASKS, _PARTS = 8, 8
_RARELY = 8.0  # a budget at which the unlikely side of most mechanisms is seen in less than one report of 100
_BATCH = 5  # reports drawn many at once, over those drawn one by one
_LEAST_EXPECTED = 5.0  # of a cell, which a test's limiting distribution needs
_CLAMPED = 0.9  # a reach below this clamps every coordinate of a flat vector
_SHARE_OF_BOUND = 0.37  # the norm lies between two symbols, so that its rounding is tested too
_RARE = 1e-12  # pairs below this probability share one cell


def g_test(observed: npt.ArrayLike, expected: npt.ArrayLike) -> tuple[float, int]:
    """The p-value and degrees of freedom of a G-test. The rarest are pooled, the rarest seen tested alone."""
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
    """Return the p-value and degrees of freedom of a G-test for independence; rare columns are pooled."""
    counts = np.asarray(table, np.float64)
    rare = counts.sum(axis=0) < 10 * _LEAST_EXPECTED
    counts = np.column_stack([counts[:, ~rare], counts[:, rare].sum(axis=1)])
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    if min(counts.shape) < 2:
        return 1.0, 0
    test = stats.chi2_contingency(counts, correction=False, lambda_="log-likelihood")
    return float(test.pvalue), int(test.dof)


def chance_of_mean(mean: float, most: float, count: int) -> float:
    """Chernoff's bound on the p-value of the mean of ``count`` numbers in [0, most] with expectation one."""
    share, truth = mean / most, 1 / most
    if not 0 <= share <= 1 + 1e-9:
        return 0.0
    share = min(share, 1.0)  # rounding may have pushed it above one
    divergence = float(special.rel_entr(share, truth) + special.rel_entr(1 - share, 1 - truth))
    return min(1.0, 2 * math.exp(-count * max(divergence, 0.0)))


def law_of_outputs(subject: Subject) -> Iterator[Finding]:
    """Every output at a small budget against its probability; density ratios where outputs are too many."""
    found = subject.smalls()
    # Density ratios vary less at small budgets; listed outputs have more power at large ones.
    found = [pair for pair in found if pair[0] >= 1 and not pair[1].listed][:1] or found[-1:]
    if not found or not found[0][1].dense:
        yield skipped("law", _ALL, "The scheme has no parameters for small budgets, or no density there.")
        return
    budget, small = found[0]
    inside = _inside(subject, small)[-2:]
    test = _listed if small.listed else _mean_ratio
    reports = [(x, small.reports(x, subject.trials, subject.noise())) for x in inside]
    p_value, freedom = min(test(small, *each) for each in reports)
    what = f"{len(small.outputs)} outputs" if small.listed else "density ratios"
    sentence = f"{subject.trials:,} reports of each input at epsilon {budget:g} against the density ({what})"
    yield by_test(_ALL, sentence, (min(1.0, p_value * len(inside)), freedom))
    yield from _other_ways(subject, budget)


def _other_ways(subject: Subject, usual: float) -> Iterator[Finding]:
    """Also where one side is rare, which would not be missed at large budgets; and by ``encode_many``."""
    for budget, small in ((usual, subject.small(usual)), (_RARELY, subject.small(_RARELY))):
        if small is None or not (small.listed and small.dense):
            continue
        at = f"at epsilon {budget:g} against the density"
        if budget == usual:
            x = _inside(subject, small)[-1]
        else:  # the input whose report is most certain: what is rare is then the private step's
            inputs = small.every_length(subject.numbers("law"))
            x = max(inputs, key=lambda each: float(small.log_densities(each.image).max())).x
            test = _listed(small, x, small.reports(x, subject.trials, subject.noise()))
            yield by_test(f"{_ALL}, budget {budget:g}", f"{subject.trials:,} reports {at}", test)
        count = subject.trials * (_BATCH if budget == usual else 1)
        test = _listed(small, x, small.batch(x, count, subject.noise()))
        yield by_test(f"{_ALL}, many at once, budget {budget:g}", f"{count:,} reports {at}", test)


def _inside(subject: Subject, small: Small) -> list[Vector]:
    """Inputs that are neither short nor as long as the bound."""
    inputs = small.every_length(subject.numbers("law"))
    return [each.x for each in inputs if 0.2 < np.linalg.norm(each.image) / small.task.bound < 0.9]


def _listed(small: Small, x: Vector, messages: Sequence[bytes]) -> tuple[float, int]:
    places = Counter(small.places.get(message, -1) for message in messages)
    if -1 in places:
        return 0.0, len(small.outputs)
    law = np.exp(small.log_densities(forward(small.scheme, x, small.task)))
    return g_test([places[i] for i in range(len(small.outputs))], len(messages) * law)


def _mean_ratio(small: Small, x: Vector, messages: Sequence[bytes]) -> tuple[float, int]:
    """For every other input z, the ratio p(v | z) / p(v | x) has mean one over reports v of x."""
    scheme, density, bound = small.scheme, small.scheme.mechanism.log_density, small.task.bound
    others = [each.image for each in small.every_length(np.random.default_rng(1))[::9]]
    images = [forward(scheme, x, small.task), *others]
    reports = [scheme.open(message, small.task) for message in messages]
    table = np.array([[density(columns, z, bound) for z in images] for columns in reports])
    means = np.exp(table[:, 1:] - table[:, :1]).mean(axis=0)
    most = math.exp(scheme.privacy.epsilon)
    chances = [chance_of_mean(float(mean), most, len(messages)) for mean in means]
    return min(1.0, len(others) * min(chances)), len(others)


class KnownCodes(NamedTuple):
    """A vector for one task, the codes that it is rounded to, and its size over the bound for the symbol."""

    task: Task
    x: Vector
    codes: npt.NDArray[np.uint8]
    size: float | None


def known_codes(subject: Subject) -> list[KnownCodes]:
    """One for each of several tasks, beyond the range at every coordinate; none where no vector surely is."""
    scheme, numbers, found = subject.scheme, subject.numbers("certain"), list[KnownCodes]()
    mechanism = scheme.mechanism
    if not isinstance(mechanism, Quantized) or (mechanism.own_reach or 0.0) >= _CLAMPED:
        return []
    for client in range(_TASKS):
        task = task_for(scheme, subject.seed, client=client, round=client % 3)
        ends = numbers.choice(np.array([-1.0, 1.0]), mechanism.dim)
        target = ends * numbers.uniform(1.0, 1.05, mechanism.dim)
        if mechanism.own_reach is None:
            target *= 1.5 * mechanism.prepared(np.zeros(mechanism.dim, np.float32), task.bound)[1]
        else:  # the range follows the root mean square
            target *= _SHARE_OF_BOUND * task.bound / float(np.linalg.norm(target))
        x = preimage(scheme, target.astype(np.float32), task)
        image, half_range, size = mechanism.prepared(forward(scheme, x, task), task.bound)
        if not np.all(ends * image > half_range):
            return []
        codes = np.where(ends > 0, mechanism.quantizer.levels - 1, 0).astype(np.uint8)
        found.append(KnownCodes(task, x, codes, size))
    return found


def law_of_codes(subject: Subject) -> Iterator[Finding]:
    """Matches, their positions, the codes that do not match and the norm symbol, at the requested budget."""
    mechanism, vectors, rng = subject.scheme.mechanism, known_codes(subject), subject.noise()
    if not isinstance(mechanism, Quantized) or not vectors:
        yield skipped("law", _MATCHES, "No vector's PrivQuant codes are known; see the law of all outputs.")
        return
    dim, levels = mechanism.quantizer.dim, mechanism.quantizer.levels
    same, changes, symbols = list[npt.NDArray[np.bool_]](), np.zeros((levels, levels), np.int64), []
    for vector in vectors:
        reports = _reports(subject, vector.x, vector.task, rng)
        codes = np.stack([columns[0] for columns in reports])
        same.append(codes == vector.codes)
        np.add.at(changes, (np.broadcast_to(vector.codes, codes.shape), codes), 1)
        if vector.size is not None:
            symbols += [(int(columns[1][0]), vector.size) for columns in reports]
    matching = np.concatenate(same)
    matches = matching.sum(axis=1)
    told = f"{matches.size:,} reports of {dim:,} codes"
    law = match_probabilities(mechanism.quantizer)
    if (test := g_test(np.bincount(matches, minlength=dim + 1), matches.size * law))[1] == 0:
        yield skipped("law", _MATCHES, _ONE)
    else:
        yield by_test(_MATCHES, f"{told} against the exact distribution of their matches", test)
    yield from _places(matching, told)
    if levels > 2:
        sentence = f"{told}: codes that do not match are uniform over the {levels - 1} others"
        yield by_test("codes of the others", sentence, _others(changes))
    if mechanism.symbol is not None and symbols:
        yield from _symbols(mechanism.symbol, symbols, matches > np.median(matches))


def _reports(subject: Subject, x: Vector, task: Task, rng: Rng) -> list[Columns]:
    scheme, count = subject.scheme, max(1, subject.trials // (10 * _TASKS))
    return [scheme.open(scheme.encode(x, task, rng), task) for _ in range(count)]


def match_probabilities(quantizer: PrivQuant) -> Floats:
    """P(L = l) for l from 0 to dim: C(n, l) (K-1)^(n-l) times the density of an output with l matches."""
    dim, levels, matches = quantizer.dim, quantizer.levels, np.arange(quantizer.dim + 1)
    densities = np.where(matches >= quantizer.threshold, *quantizer.law.log_densities)
    ways = stats.binom.logpmf(matches, dim, 1 / levels) + dim * math.log(levels)
    return np.asarray(np.exp(ways + densities))


def _places(matching: npt.NDArray[np.bool_], told: str) -> Iterator[Finding]:
    """All positions together, if each has many matches and changes; the most extreme one alone; and runs."""
    (count, dim), matches, by_place = matching.shape, matching.sum(axis=1), matching.sum(axis=0)
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
        runs = by_place[0] + np.count_nonzero(matching[:, 1:] & ~matching[:, :-1])
        p_value = 2 * float(stats.norm.sf(abs(runs - float(np.sum(matches * gaps / dim))) / spread))
        sentence = f"{told}: matches are adjacent as often as expected by chance"
        yield by_test("runs of matches", sentence, (p_value, 1))


def _others(changes: Counts) -> tuple[float, int]:
    """For every code (row) that was changed, all other codes (columns) are equally likely."""
    rows = [np.delete(row, code) for code, row in enumerate(changes)]
    tests = [g_test(row, np.full(row.size, row.mean())) for row in rows if row.any()] or [(1.0, 0)]
    return min(1.0, min(tests)[0] * len(tests)), sum(freedom for _, freedom in tests)


def _symbols(symbol: ScalarDP, sent: Sequence[tuple[int, float]], high: npt.ArrayLike) -> Iterator[Finding]:
    """The norm symbols and the sizes that they are about; and whether they depend on ``high`` matches."""
    count, drawn = symbol.levels + 1, np.array([each for each, _ in sent])
    expected = np.zeros(count)
    for size, times in Counter(size for _, size in sent).items():
        expected += times * np.exp([symbol.log_density(each, size) for each in range(count)])
    sentence = f"{drawn.size:,} symbols against their distribution"
    yield by_test("law of the norm symbol", sentence, g_test(np.bincount(drawn, minlength=count), expected))
    table = [np.bincount(drawn[np.equal(high, side)], minlength=count) for side in (False, True)]
    if (test := independence_test(table))[1] > 0:
        yield by_test("norm symbol and matches", "The symbol is independent of the number of matches", test)


def law_of_sparse_codes(subject: Subject) -> Iterator[Finding]:
    """Matches, wrong signs, places and norm symbol at the requested budget; long vectors fix a coin."""
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
        for columns in _reports(subject, x, task, rng):
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
    observed = [counted.pop(pair, 0) for pair in chances] + [counted.total()]
    expected = np.array([*chances.values(), max(0.0, 1 - sum(chances.values()))]) * len(pairs)
    if (test := g_test(observed, expected)) == (1.0, 0):
        yield skipped("law", _PAIRS, _ONE)
    else:
        yield by_test(_PAIRS, f"{told} against the exact law of their matches", test)
    # How many signed coordinates outside the near set each part of the vector has, once for each sign.
    parts = np.tile(np.diff(-(-np.arange(_PARTS + 1) * (law.size - law.near) // _PARTS)), 2)
    places = ("places of the matches", by_place, np.ones(law.near))
    for name, counts, sizes in (places, ("places and signs of the others", by_part, parts)):
        if (test := g_test(counts, counts.sum() * sizes / max(1, sizes.sum())))[1]:
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
