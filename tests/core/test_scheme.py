"""Schemes and the mean of reports: what both sides share, what is refused, and exact sums."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from refusing import refuse

from sqsgd import SCHEMES, Aggregate, MalformedReport, Task, make_scheme, seeded_rng
from sqsgd.core.transforms import Rotate


def test_parts_that_do_not_fit_are_refused():
    made = make_scheme("privunit-index", dim=100, epsilon=4.0)
    with pytest.raises(ValueError, match="the transforms give 256 coordinates, the mechanism takes 128"):
        replace(made, dim=200)
    with pytest.raises(ValueError, match="dim = 0"):
        replace(made, dim=0)


def test_the_fingerprint_covers_everything_that_both_sides_must_share():
    made = make_scheme("privunit-index", dim=100, epsilon=4.0)
    others = [
        replace(made, name="other"),
        replace(made, dim=101),
        replace(made, transforms=(Rotate(rounds=1),)),
        replace(made, transforms=(*made.transforms, Rotate())),
        make_scheme("privunit-index", dim=100, epsilon=4.1),
    ]
    assert len({made.fingerprint, *(other.fingerprint for other in others)}) == 6
    assert replace(made, keeps_state=True, momentum=0.5).fingerprint == made.fingerprint  # client only
    task = Task(round=2, client=7, seed=1, dim=100, bound=1.0)
    message = made.encode(np.ones(100, np.float32), task, seeded_rng(1))
    for other in (others[0], others[2], others[-1]):
        with pytest.raises(MalformedReport, match="scheme"):
            other.open(message, task)


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


def test_the_command_starts_with_the_base_package_alone():
    """`make test-base` runs this where nothing but the dependencies of the base package is installed."""
    command = [sys.executable, "-m", "sqsgd", "schemes", "--dim", "100", "--epsilon", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {row["name"] for row in json.loads(done.stdout)} == set(SCHEMES)
