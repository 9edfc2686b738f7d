"""For any two inputs and any output, the log-likelihood ratio is at most ε."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from sqsgd.audit._worst_inputs import WorstPair, climbed, extreme_inputs, worst_pair
from sqsgd.audit.findings import Finding, judged, skipped
from sqsgd.audit.subject import Small, Subject, forward, has_density, task_for
from sqsgd.checks import Vector
from sqsgd.core import Mechanism, Scheme
from sqsgd.task import Task
from sqsgd.training import sent_coordinates

SLACK = 1e-9
_PAIRS, _REPORTS = 6, 2
_LISTED, _SAMPLED = "likelihood ratio, all outputs", "likelihood ratio, real budget"
_WHOLE = "densities add up to one"


@lru_cache(maxsize=32)
def worst_of(subject: Subject, small: Small) -> tuple[WorstPair, float]:
    """The pair with the largest likelihood ratio, and how far the probabilities are from summing to one."""
    mechanism, bound = small.scheme.mechanism, small.task.bound
    numbers = subject.numbers("worst pair")
    one = small.scheme.privacy.notion == "per-weight"
    inputs = extreme_inputs(mechanism.dim, bound, numbers)
    if one:
        inputs += _one_apart(inputs, bound)
    table = np.stack([small.log_densities(y) for y in inputs], axis=1)
    pair = worst_pair(inputs, table, one_coordinate=one)
    columns = small.outputs[pair.output]

    def density(y: Vector) -> float:
        return mechanism.log_density(columns, y, bound)

    pair = climbed(pair, density, bound, numbers, one_coordinate=one)
    return pair, float(np.max(np.abs(np.exp(table).sum(axis=0) - 1)))


def _one_apart(inputs: list[Vector], bound: float) -> list[Vector]:
    """The inputs with one coordinate moved to either end."""
    moved = []
    for y in inputs[:: max(1, len(inputs) // 12)]:
        for end in (-30.0 * bound, 30.0 * bound):
            other = y.copy()
            other[0] = end
            moved.append(other)
    return moved


def listed_ratio(subject: Subject) -> Iterator[Finding]:
    """At small budgets, over all outputs."""
    worst, most, off, tried = (-math.inf, 0.0, 0.0, 0.0), 0.0, 0.0, []
    for budget in subject.exact_budgets:
        small = subject.small(budget)
        if small is None or not (small.listed and small.dense):
            continue
        pair, wrong = worst_of(subject, small)
        promised, off = small.scheme.privacy.epsilon, max(off, wrong)
        tried.append(budget)
        worst = max(worst, (pair.ratio - promised, pair.ratio, promised, budget))
        most = max(most, pair.ratio / promised)
    if not tried:
        yield skipped("ratio", _LISTED, "Its outputs cannot be enumerated at any small budget.")
        return
    sentence = (
        f"Over all outputs at epsilon {_joined(tried)} and the worst pairs of inputs, the log-likelihood "
        f"ratio reaches {most:.6f} of the guarantee."
    )
    _, ratio, promised, budget = worst
    if ratio > promised + SLACK:
        sentence = (
            f"At a budget of {budget:g}, one input makes an output e^{ratio:.6g} times as likely as another "
            f"input does; e^{promised:.6g} is guaranteed."
        )
    yield judged(
        "ratio",
        _LISTED,
        measured=ratio,
        limit=promised,
        slack=SLACK,
        sentence=sentence,
        details={"largest share of the promise": most, "budgets": tried},
    )
    yield judged(
        "ratio",
        _WHOLE,
        measured=off,
        limit=SLACK,
        sentence=f"The probabilities of all outputs sum to one within {off:.1e}.",
    )


def _joined(budgets: list[float]) -> str:
    return ", ".join(f"{budget:g}" for budget in budgets)


def sampled_ratio(subject: Subject) -> Iterator[Finding]:
    """At the requested budget, over real reports."""
    scheme = subject.scheme
    mechanism, before_grid = _with_density(scheme.mechanism)
    if mechanism is None:
        yield skipped("ratio", _SAMPLED, "Its density has no closed form.")
        return
    numbers, rng, worst, count = subject.numbers("sampled"), subject.noise(), 0.0, 0
    for client in range(_PAIRS):
        task = task_for(scheme, subject.seed, client=client)
        pair = _apart(scheme, task, client, numbers)
        images = [forward(scheme, x, task) for x in pair]
        for x, y in zip(pair, images, strict=True):
            for _ in range(_REPORTS):
                if before_grid:
                    columns = mechanism.randomize(y, task.bound, rng)
                else:
                    columns = scheme.open(scheme.encode(x, task, rng), task)
                first, second = (mechanism.log_density(columns, each, task.bound) for each in images)
                worst, count = max(worst, abs(first - second)), count + 1
    promised = scheme.privacy.epsilon
    what = "reports, before rounding to the grid," if before_grid else "reports"
    yield judged(
        "ratio",
        _SAMPLED,
        measured=worst,
        limit=promised,
        slack=SLACK,
        sentence=f"Over {count} {what} of {_PAIRS} extreme pairs of inputs, the log-likelihood ratio is at "
        f"most {worst:.10g}; {promised:.10g} is guaranteed.",
    )


def _with_density(mechanism: Mechanism) -> tuple[Mechanism | None, bool]:
    """The mechanism, or the one whose output it rounds to a grid, which is post-processing."""
    if has_density(mechanism):
        return mechanism, False
    inner = getattr(mechanism, "inner", None)
    return (inner, True) if isinstance(inner, Mechanism) and has_density(inner) else (None, False)


def _apart(scheme: Scheme, task: Task, which: int, numbers: np.random.Generator) -> tuple[Vector, Vector]:
    """Two vectors that differ as much as the guarantee's notion of neighbours allows."""
    x = numbers.standard_normal(scheme.dim).astype(np.float32)
    x /= np.float32(np.linalg.norm(x))
    if scheme.privacy.notion == "per-weight":
        other = x.copy()
        place = int(sent_coordinates(scheme, task, b"")[which % scheme.mechanism.dim])
        x[place], other[place] = 1e3, -1e3
        return x, other
    spike = np.zeros_like(x)
    spike[which % scheme.dim] = 1.0
    sizes = (1.0, 1e3, 1e-4, 0.5, 1.0, 1e3)
    others = (-x, -1e-4 * x, -30 * x, np.zeros_like(x), spike, -spike)
    return np.float32(sizes[which % 6]) * x, np.asarray(others[which % 6], np.float32)
