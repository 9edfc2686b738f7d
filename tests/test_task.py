"""Tasks: validation, public streams, and the bytes that a report is bound to."""

import math
from fractions import Fraction

import numpy as np
import pytest
from refusing import refuse

from sqsgd import Task


def test_tasks_hold_plain_numbers():
    task = Task(
        round=np.int64(1), client=np.uint8(2), seed=np.int32(3), dim=np.int64(8), bound=np.float32(1.5)
    )
    assert [type(value) for value in (task.round, task.client, task.seed, task.dim)] == [int] * 4
    assert type(task.bound) is float
    refuse("bound = Fraction", lambda: Task(round=0, client=0, seed=0, dim=8, bound=Fraction(3, 2)))


@pytest.mark.parametrize(
    "changes",
    [
        {"round": -1},
        {"round": 2**32},
        {"client": -1},
        {"client": 2**64 - 1},
        {"seed": 2**64},
        {"dim": 0},
        {"clip": 0.0},
        {"clip": math.nan},
    ],
)
def test_tasks(changes):
    name = next(iter(changes))
    refuse(
        f"{name} = ", lambda: Task(**{"round": 0, "client": 0, "seed": 0, "dim": 8, "bound": 1.0, **changes})
    )


RIGHT = {"round": 3, "client": 1, "seed": 5, "dim": 8, "bound": 1.0, "clip": 2.0}


@pytest.mark.parametrize(
    "change",
    [
        {"round": 4},
        {"client": 2},
        {"seed": 6},
        {"dim": 9},
        {"bound": 1.0000001},
        {"clip": 2.5},
        {"clip": None},
    ],
)
def test_every_field_is_part_of_what_a_report_is_bound_to(change):
    assert Task(**RIGHT).binding != Task(**{**RIGHT, **change}).binding
    assert Task(**RIGHT).binding == Task(**RIGHT).binding


def test_shared_streams_and_streams_per_client():
    """Shared streams are the same for all clients of a round; no stream repeats in another round."""
    one, other = Task(**RIGHT), Task(**{**RIGHT, "client": 2})

    def drawn(task, purpose="signs", *, shared):
        return task.stream(purpose, shared=shared).words(4).tolist()

    assert drawn(one, shared=True) == drawn(other, shared=True)
    assert drawn(one, shared=False) == drawn(one, shared=False)
    streams = [
        drawn(one, shared=True),
        drawn(one, shared=False),
        drawn(other, shared=False),
        drawn(one, "coordinates", shared=True),
        drawn(Task(**{**RIGHT, "round": 4}), shared=True),
        drawn(Task(**{**RIGHT, "seed": 6}), shared=True),
    ]
    assert len({tuple(stream) for stream in streams}) == len(streams)
