"""The checks of a central guarantee: about the sum of many clients' reports, not about one of them.

One client's vector changes from x to x'; all others are zero. Secure aggregation shows only the sum s of
the codes, so δ(ε) = Σ_s max(0, P(s | x) - e^ε P(s | x')) must not exceed the guaranteed δ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sqsgd._internal.checks import Vector
from sqsgd.audit.distinguishing import CONFIDENCE, Scores, level_of, lower_bound
from sqsgd.audit.findings import Finding, by_test, judged, skipped
from sqsgd.audit.goodness_of_fit import g_test
from sqsgd.audit.subject import Floats, Subject, forward, task_for
from sqsgd.core import Scheme
from sqsgd.core.random import Rng
from sqsgd.core.task import Task

_BYTES = (1, 2)  # for one coordinate
_MOST_SUPPORT = 20_000
_SLACK = 1e-9
_EXACT = "likelihood ratio of the sum, all outputs"


def central_checks(subject: Subject) -> Iterator[Finding]:
    """At small budgets and for one coordinate, where the distribution of the sum can be computed."""
    tried = [(budget, s) for budget in subject.budgets if (s := _small(subject, budget)) is not None]
    if not tried:
        yield skipped("ratio", _EXACT, "The scheme has no parameters for small budgets.")
        return
    rng, excesses, bounds = subject.noise(), [], list[Finding]()
    far = np.full(1, 1e3, np.float32)
    for budget, scheme in tried:
        task, epsilon = task_for(scheme, subject.seed), scheme.privacy.epsilon
        laws = law_of_sum(scheme, task, far), law_of_sum(scheme, task, -far)
        excesses.append(max(delta_beyond(*laws, epsilon), delta_beyond(*laws[::-1], epsilon)))
        found = _distinguished(subject, scheme, far, laws, rng)
        sentence = (
            f"{subject.trials // 10:,} sums for each of two inputs of one client show that epsilon is at "
            f"least {max(found, 0.0):.3f}; {epsilon:.3f} is guaranteed ({CONFIDENCE:.1%} confidence)."
        )
        name = f"distinguishing sums, budget {budget:g}"
        bounds.append(judged("distinguish", name, sentence, found, epsilon))
    worst, promised = max(excesses), scheme.privacy.delta
    sentence = (
        f"At epsilon {', '.join(f'{budget:g}' for budget, _ in tried)}, delta of the sum is at most "
        f"{worst:.2e}; {promised:.2e} is guaranteed. A single report has no guarantee."
    )
    yield judged("ratio", _EXACT, sentence, worst, promised, slack=_SLACK)
    yield from bounds
    sentence = f"{subject.trials:,} reports at epsilon {budget:g} against their density"
    yield by_test("law of one report", sentence, _law_of_report(scheme, task, subject.trials, rng))


def _small(subject: Subject, budget: float) -> Scheme | None:
    for size in _BYTES:
        try:
            scheme = subject.make(dim=1, epsilon=budget, bytes=size)
        except ValueError:
            continue
        if (scheme.mechanism.layout[0].alphabet or math.inf) <= _MOST_SUPPORT:
            return scheme
    return None


def _clients(scheme: Scheme) -> int:
    return int(getattr(scheme.mechanism, "clients", 1))


def _law(scheme: Scheme, task: Task, x: Vector) -> Floats:
    """P(code) of one report over its support."""
    y, mechanism = forward(scheme, x, task), scheme.mechanism
    # One report uses the lowest part of the alphabet; the rest makes room for the sum.
    codes = range((mechanism.layout[0].alphabet or 0) // _clients(scheme) + 1)
    return np.exp([mechanism.log_density((np.array([code]),), y, task.bound) for code in codes])


def law_of_sum(scheme: Scheme, task: Task, x: Vector) -> Floats:
    """P(sum) of one client's report of x and the others' of zero."""
    law = _law(scheme, task, x)
    other = _law(scheme, task, np.zeros_like(x))
    for _ in range(_clients(scheme) - 1):
        law = np.convolve(law, other)
    return law


def delta_beyond(first: Floats, second: Floats, epsilon: float) -> float:
    """δ(ε) of two laws: how much of the first lies beyond e^ε times the second."""
    return float(np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0)))


def _distinguished(
    subject: Subject, scheme: Scheme, x: Vector, laws: tuple[Floats, Floats], rng: Rng
) -> float:
    tasks = [task_for(scheme, subject.seed, client=client) for client in range(_clients(scheme))]

    def sums(x: Vector) -> Floats:
        """How often each sum occurs: all clients' real reports, summed as by secure aggregation."""
        vectors = [x, *[np.zeros_like(x)] * (len(tasks) - 1)]
        counts = np.zeros(laws[0].size)
        for _ in range(subject.trials // 20):
            reports = zip(tasks, vectors, strict=True)
            counts[sum(int(scheme.open(scheme.encode(v, t, rng), t)[0][0]) for t, v in reports)] += 1
        return counts

    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.nan_to_num(np.log(laws[0]) - np.log(laws[1]), nan=0.0, posinf=1e9, neginf=-1e9)
    learning, measuring = (Scores(score, sums(x), sums(-x)) for _ in range(2))
    return lower_bound(learning, measuring, level_of(subject), scheme.privacy.delta)


def _law_of_report(scheme: Scheme, task: Task, count: int, rng: Rng) -> tuple[float, int]:
    x = np.full(scheme.dim, 0.3 * task.bound, np.float32)
    law = _law(scheme, task, x)
    codes = [int(scheme.open(scheme.encode(x, task, rng), task)[0][0]) for _ in range(count)]
    counts = np.bincount(codes, minlength=law.size)
    return g_test(counts, count * law) if counts.size == law.size else (0.0, law.size)
