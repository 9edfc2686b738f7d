"""Tasks: validation, public streams, and the bytes that a report is bound to."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from refusing import refuse

from sqsgd import Task
from sqsgd.core.task import Tasks


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


def test_many_tasks_are_single_ones_but_for_the_client():
    first = Task(round=2, client=9, seed=3, dim=8, bound=1.5, clip=2.0)
    tasks = Tasks(first, np.array([0, 7, 2**64 - 2], np.uint64))
    assert [task.client for task in tasks] == [0, 7, 2**64 - 2]
    assert all(replace(task, client=9) == first for task in tasks)
    front, back = tasks.binding
    for i, task in enumerate(tasks):
        assert task.binding == front + task.client.to_bytes(8, "little") + back
        stream = task.stream("signs 0", shared=False)
        assert tasks.words("signs 0", 5)[i].tobytes() == stream.words(10).tobytes()
    assert [[task.client for task in part] for part in tasks.parts(2)] == [[0, 7], [2**64 - 2]]
    assert tasks.parts(2)[0] is tasks.parts(2)[0]


@pytest.mark.parametrize("clients", [[[1]], [1.5], [-1], [2**64 - 1]])
def test_numbers_of_clients_are_checked(clients):
    refuse("clients", lambda: Tasks(Task(round=0, client=0, seed=0, dim=8, bound=1.0), np.array(clients)))
