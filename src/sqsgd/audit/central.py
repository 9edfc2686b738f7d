"""Checks (a) to (c) for a central guarantee: about the sum of many clients' reports, not about one of them.

One client's vector changes from x to x'; all others are zero. Secure aggregation shows only the sum s of
the codes, so δ(ε) = Σ_s max(0, P(s | x) - e^ε P(s | x')) must not exceed the guaranteed δ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sqsgd.audit._statistics import g_test
from sqsgd.audit.distinguishing import CONFIDENCE, Scores, level_of, lower_bound
from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.goodness_of_fit import by_test
from sqsgd.audit.subject import Floats, Subject, forward, task_for
from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.randomness import Rng
from sqsgd.task import Task

_SMALL = ((1, 6), (1, 8), (1, 10), (1, 12), (1, 14), (1, 16))
_MOST_SUPPORT = 20_000
_SLACK = 1e-9
_EXACT, _LAW = "likelihood ratio of the sum, all outputs", "law of one report"


def central_checks(subject: Subject) -> Iterator[Finding]:
    """At small budgets and for one coordinate, where the distribution of the sum can be computed."""
    tried, worst, promised, sampled = [], -math.inf, 0.0, []
    for budget in subject.budgets:
        scheme = _small(subject, budget)
        if scheme is None:
            continue
        pair = _ends(scheme)
        task = task_for(scheme, subject.seed)
        laws = [_law_of_sum(scheme, task, x) for x in pair]
        privacy = scheme.privacy
        excess = max(_delta(laws[0], laws[1], privacy.epsilon), _delta(laws[1], laws[0], privacy.epsilon))
        tried.append(budget)
        worst, promised = max(worst, excess), privacy.delta
        sampled.append((budget, scheme, task, pair, laws))
    if not tried:
        yield skipped("ratio", _EXACT, "The scheme has no parameters for small budgets.")
        return
    yield judged(
        "ratio",
        _EXACT,
        measured=worst,
        limit=promised,
        slack=_SLACK,
        sentence=f"At epsilon {', '.join(f'{budget:g}' for budget in tried)}, delta of the sum is at most "
        f"{worst:.2e}; {promised:.2e} is guaranteed. A single report has no guarantee.",
    )
    rng = subject.noise()
    for budget, scheme, _, pair, laws in sampled:
        found = _distinguished(subject, scheme, pair, laws, rng)
        epsilon = scheme.privacy.epsilon
        yield judged(
            "distinguish",
            f"distinguishing sums, budget {budget:g}",
            measured=found,
            limit=epsilon,
            sentence=f"{subject.trials // 10:,} sums for each of two inputs of one client show that epsilon "
            f"is at least {max(found, 0.0):.3f}; {epsilon:.3f} is guaranteed ({CONFIDENCE:.1%} confidence).",
        )
    budget, scheme, task, _, _ = sampled[-1]
    p_value, freedom = _law_of_report(scheme, task, subject.trials, rng)
    yield by_test(
        _LAW,
        p_value,
        f"{subject.trials:,} reports at epsilon {budget:g} against their density",
        freedom=freedom,
    )


def _small(subject: Subject, budget: float) -> Scheme | None:
    for dim, bits in _SMALL:
        try:
            scheme = subject.make(dim=dim, epsilon=budget, bytes=bits // 8)
        except ValueError:
            continue
        if (scheme.mechanism.layout[0].alphabet or math.inf) <= _MOST_SUPPORT:
            return scheme
    return None


def _clients(scheme: Scheme) -> int:
    return int(getattr(scheme.mechanism, "clients", 1))


def _ends(scheme: Scheme) -> tuple[Vector, Vector]:
    far = np.full(scheme.dim, 1e3, np.float32)
    return far, -far


def _law(scheme: Scheme, task: Task, x: Vector) -> Floats:
    """P(code) of one report over its support."""
    y, mechanism = forward(scheme, x, task), scheme.mechanism
    # One report uses the lowest part of the alphabet; the rest makes room for the sum.
    codes = range((mechanism.layout[0].alphabet or 0) // _clients(scheme) + 1)
    return np.exp([mechanism.log_density((np.array([code]),), y, task.bound) for code in codes])


def _law_of_sum(scheme: Scheme, task: Task, x: Vector) -> Floats:
    law = _law(scheme, task, x)
    other = _law(scheme, task, np.zeros_like(x))
    for _ in range(_clients(scheme) - 1):
        law = np.convolve(law, other)
    return law


def _delta(first: Floats, second: Floats, epsilon: float) -> float:
    return float(np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0)))


def _distinguished(
    subject: Subject, scheme: Scheme, pair: tuple[Vector, Vector], laws: list[Floats], rng: Rng
) -> float:
    clients = [task_for(scheme, subject.seed, client=client) for client in range(_clients(scheme))]

    def sums(x: Vector) -> Floats:
        """How often each sum occurs: all clients' real reports, summed as by secure aggregation."""
        vectors = [x, *[np.zeros_like(x)] * (len(clients) - 1)]
        counts = np.zeros(laws[0].size)
        for _ in range(subject.trials // 20):
            reports = zip(clients, vectors, strict=True)
            counts[sum(int(scheme.open(scheme.encode(v, t, rng), t)[0][0]) for t, v in reports)] += 1
        return counts

    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.nan_to_num(np.log(laws[0]) - np.log(laws[1]), nan=0.0, posinf=1e9, neginf=-1e9)
    learning, measuring = (Scores(values=score, first=sums(pair[0]), second=sums(pair[1])) for _ in range(2))
    return lower_bound(learning, measuring, level_of(subject), scheme.privacy.delta)


def _law_of_report(scheme: Scheme, task: Task, count: int, rng: Rng) -> tuple[float, int]:
    x = np.full(scheme.dim, 0.3 * task.bound, np.float32)
    law = _law(scheme, task, x)
    codes = [int(scheme.open(scheme.encode(x, task, rng), task)[0][0]) for _ in range(count)]
    counts = np.bincount(codes, minlength=law.size)
    return g_test(counts[: law.size], count * law) if counts.size == law.size else (0.0, law.size)
