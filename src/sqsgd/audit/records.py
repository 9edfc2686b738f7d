"""Per record: can reports with and without one record be distinguished better than ρ allows?"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sqsgd.audit.distinguishing import CONFIDENCE, Scores, level_of, lower_bound
from sqsgd.audit.findings import Finding, judged
from sqsgd.audit.subject import Floats, Subject, task_for
from sqsgd.core import Scheme
from sqsgd.core.records import REACH, RecordSum
from sqsgd.core.task import Task
from sqsgd.mechanisms.gaussian_account import gaussian_epsilon

_DIM = 24
_ERRORS = 5.0  # standard errors by which a separation may seem too large


def record_checks(subject: Subject) -> Iterator[Finding]:
    """The limit of a single record, then reports of worst-case neighbours at several budgets."""
    yield _limit(subject)
    for budget in (*subject.budgets, subject.epsilon):
        scheme = subject.make(dim=_DIM, epsilon=budget, bytes=64)
        mechanism: Any = scheme.mechanism
        scheme = replace(scheme, mechanism=replace(mechanism, levels=1 << 16))  # attackers see the noisy sums
        task, rho = task_for(scheme, subject.seed), scheme.privacy.rho
        first, second = (_scores(scheme, task, each, subject) for each in (True, False))
        half = subject.trials // 2
        parts = [_tally(first[part], second[part]) for part in (slice(half), slice(half, None))]
        found = lower_bound(parts[0], parts[1], level_of(subject), scheme.privacy.delta)
        epsilon = gaussian_epsilon(rho, scheme.privacy.delta)
        about = f"{subject.trials:,} reports with and without one record"
        sentence = (
            f"Epsilon of one report is at least this, by {about} ({CONFIDENCE:.1%} confidence for all)."
        )
        yield judged("distinguish", f"distinguishing records, budget {budget:g}", sentence, found, epsilon)
        # The profile of Gaussians is exact: scores are Gaussian, and apart by at most √(2ρ) deviations.
        apart = float(first.mean() - second.mean()) / math.sqrt((first.var() + second.var()) / 2)
        mu = math.sqrt(2 * float(rho))
        error = math.sqrt(2 / first.size + mu**2 / (4 * first.size))
        sentence = f"Deviations between the mean scores of {about}; the limit allows for {_ERRORS:g} errors."
        yield judged("law", f"separation, budget {budget:g}", sentence, apart, mu + _ERRORS * error)


def _limit(subject: Subject) -> Finding:
    """Records of all lengths and shapes; whole numbers of any size are added up exactly."""
    numbers, norms = subject.numbers("records"), []
    for dim in (1, 3, _DIM, 1000):
        shapes = [numbers.standard_normal(dim), np.eye(1, dim)[0], np.ones(dim), np.full(dim, 0.5)]
        for shape in shapes:
            for size in (1e-38, 1e-3, 0.9999999, 1.0, 1.0000001, 30.0, 1e19, 3e38, math.inf, math.nan):
                with np.errstate(over="ignore", invalid="ignore"):
                    row = (size * shape / np.linalg.norm(shape)).astype(np.float32)
                for normalise in (False, True):
                    total = RecordSum(dim, 1.0, normalise=normalise)
                    total.add(row[None])
                    norms.append(sum(int(value) ** 2 for value in total.total))
    sentence = f"The largest squared norm of the whole numbers of {len(norms)} extreme records, over L²."
    return judged("ratio", "limit of one record", sentence, max(norms) / REACH**2, 1.0)


def _scores(scheme: Scheme, task: Task, present: bool, subject: Subject) -> Floats:
    """How far each decoded report points along a record, far beyond the bound, that is there or not."""
    rng, others = subject.noise(), subject.numbers("others").standard_normal((5, scheme.mechanism.dim))
    record = subject.numbers("record").standard_normal(scheme.mechanism.dim)
    total = scheme.record_sum(task)
    total.add(others.astype(np.float32))
    if present:
        total.add((1e6 * record)[None].astype(np.float32))
    direction = record / np.linalg.norm(record)
    opened = (scheme.open(scheme.encode(total, task, rng), task) for _ in range(subject.trials))
    return np.array([scheme.mechanism.estimate(columns, task.bound) @ direction for columns in opened])


def _tally(first: Floats, second: Floats) -> Scores:
    values = np.concatenate([first, second])
    ones = np.concatenate([np.ones(first.size), np.zeros(second.size)])
    return Scores(values, ones, 1 - ones)
