"""The running mean of reports: its value, and the reports that it rejects."""

import math

import numpy as np
from cases import task, unit_vector
from refusing import refuse

from sqsgd import Aggregate, Task, make_scheme, seeded_rng


def test_aggregates():
    scheme, x = make_scheme("sqsgd", dim=8, epsilon=9.0, bytes=1), np.zeros(8, np.float32)
    tasks = [Task(round=r, client=0, seed=0, dim=8, bound=1.0) for r in (0, 1)]
    reports = [(task, scheme.encode(x, task, seeded_rng(1))) for task in tasks]
    refuse("no reports", lambda: scheme.aggregate([]))
    refuse("round 1", lambda: scheme.aggregate(reports))
    for weight in (0.0, 1e-50, 1e40, math.nan):
        refuse("weight = ", lambda weight=weight: Aggregate(scheme).add(*reports[0], weight=weight))
    refuse("task = None", lambda: scheme.encode(x, None, seeded_rng(1)))
    refuse(
        r"task\.dim = 9",
        lambda: scheme.encode(x, Task(round=0, client=0, seed=0, dim=9, bound=1.0), seeded_rng(1)),
    )


def test_many_reports_are_summed_as_exactly_as_few():
    """Summed in float32 alone, 20,000 times 0.1 would be off in the fourth digit."""
    scheme = make_scheme("fedsgd", dim=2)
    t, total = Task(round=0, client=0, seed=0, dim=2, bound=1.0), Aggregate(scheme)
    message = scheme.encode(np.array([0.1, -3.0]), t, seeded_rng(1))
    for count in range(1, 20_001):
        total.add(t, message)
        if count in (1, 255, 256, 257, 20_000):  # reading the mean in between changes nothing
            assert total.count == count
            assert np.allclose(total.mean(), [0.1, -3.0], rtol=1e-5)


def test_reports_can_be_weighted():
    """Where each client has its own coordinates (sqsgd), and where all have the same."""
    for name in ("sqsgd", "sqsgd-paper"):
        scheme = make_scheme(name, dim=300, epsilon=120.0, bytes=64)
        tasks = [task(scheme, client=client) for client in range(2)]
        reports = [(t, scheme.encode(unit_vector(300), t, seeded_rng(t.client))) for t in tasks]
        once, twice = Aggregate(scheme), Aggregate(scheme)
        for t, message in (*reports, reports[1]):
            once.add(t, message)
        for (t, message), weight in zip(reports, (0.5, 1.0), strict=True):
            twice.add(t, message, weight=weight)
        assert (once.count, twice.count) == (3, 2)
        assert np.allclose(once.mean(), twice.mean(), atol=1e-6)
