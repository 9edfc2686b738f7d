"""The local engine: all rounds in one process, with ledgers, timers and rounds lost to a crash."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sqsgd.checks import Vector
from sqsgd.core import Indices, Scheme
from sqsgd.federated.algorithm import round_step
from sqsgd.federated.batch_rounds import BatchRound
from sqsgd.federated.problems import Problem, RowProblem
from sqsgd.randomness import Rng, secure_rng, seeded_rng
from sqsgd.task import Task
from sqsgd.training.algorithm import task_for
from sqsgd.training.engine import noise_seed
from sqsgd.training.settings import Settings
from sqsgd.training.state import Record, State, make_record


def run(
    problem: Problem, scheme: Scheme, settings: Settings, state: State, rounds: int
) -> Iterator[tuple[Record, State]]:
    """Rounds ``state.round`` to ``rounds - 1``: a record and the new state for each."""
    while state.round < rounds:
        record, state = one_round(problem, scheme, settings, state)
        yield record, state


def one_round(problem: Problem, scheme: Scheme, settings: Settings, state: State) -> tuple[Record, State]:
    """One round of Algorithm 2, and its record."""
    started, order = time.perf_counter(), settings.order
    users = np.asarray(problem.cohort(state.round) if order is None else order.cohort(state.round), np.int64)
    if state.round == state.lost:
        spent = _spent(settings, state, users)
        record = make_record(scheme, state, most_reports=max(spent.values(), default=1))
        return record, replace(state, round=state.round + 1, spent=spent)
    parts = (scheme, settings, state, users, _numbers(settings, users))
    if isinstance(problem, RowProblem) and not scheme.residual and settings.ledgers is None:
        after, answered, measured = _batch(problem, *parts)
    else:
        after, answered, measured = _one_by_one(problem, *parts)
    spent = _spent(settings, state, answered)
    record = make_record(
        scheme,
        state,
        most_reports=max(spent.values(), default=1),
        bytes_down=4 * problem.dim + len(task_for(0, settings, state).binding),
        seconds=time.perf_counter() - started,
        clients=answered.size,
        **measured,
    )
    return record, replace(after, spent=spent)


def _numbers(settings: Settings, users: Indices) -> Indices:
    """The number in each user's task: whoever reports once is known by its slot, and nothing tells the user.

    tests/experiments/test_slots.py::test_nothing_public_depends_on_a_users_number.
    """
    return users if settings.order is None else np.arange(users.size)


def _spent(settings: Settings, state: State, clients: Indices) -> dict[int, int]:
    """Reports sent by each client so far; not counted if no client sends a second one."""
    counted = () if settings.order is not None else clients.tolist()
    return {**state.spent, **{client: state.spent.get(client, 0) + 1 for client in counted}}


_Step = tuple[State, Indices, dict[str, Any]]
"""The state after a round, the clients whose reports were averaged, and what a record says about them."""


def _batch(
    problem: RowProblem, scheme: Scheme, settings: Settings, state: State, users: Indices, numbers: Indices
) -> _Step:
    """Clients without state, many at once."""
    weights = np.array([float(problem.size(user)) for user in users]) if settings.weigh_by_size else None
    batch = BatchRound(
        problem=problem, scheme=scheme, settings=settings, state=state, users=users, numbers=numbers,
        weights=weights,
    )  # fmt: skip
    after = batch.step()
    return (
        after,
        users,
        {
            "loss": float(np.mean(np.concatenate(batch.losses))),
            "magnitudes": batch.magnitudes,
            "bytes_up": scheme.bits // 8,
            "seconds_gradient": batch.seconds_gradient,
            "seconds_encode": batch.seconds_encode,
            "seconds_aggregate": batch.seconds_aggregate,
        },
    )


def _one_by_one(
    problem: Problem, scheme: Scheme, settings: Settings, state: State, users: Indices, numbers: Indices
) -> _Step:
    """One client after the other, with its residual and its ledger."""
    started = time.perf_counter()
    clients = _Clients(
        problem=problem, scheme=scheme, settings=settings, state=state, users=users, numbers=numbers
    )
    try:
        after, reports, magnitudes = round_step(scheme, settings, state, clients)
    except ValueError as error:
        if clients.encoding is None:
            raise
        raise ValueError(
            f"round {state.round}, client {clients.encoding}: {error}; if training has diverged, a learning "
            f"rate below {settings.optimizer.rate:g} may help"
        ) from None
    return (
        after,
        np.array(clients.answered, np.int64),
        {
            "loss": float(np.mean(clients.losses)),
            "magnitudes": magnitudes,
            "bytes_up": max(len(message) for _, message, _ in reports),
            "seconds_gradient": clients.ended - started - clients.seconds_encode,
            "seconds_encode": clients.seconds_encode,
            "seconds_aggregate": time.perf_counter() - clients.ended,
            "refused": clients.refused,
        },
    )


@dataclass(kw_only=True)
class _Clients:
    """The clients of a round whose ledgers allow a report, and their timers."""

    problem: Problem
    scheme: Scheme
    settings: Settings
    state: State
    users: Indices
    numbers: Indices
    """The number in each user's task."""
    losses: list[float] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    refused: int = 0
    encoding: int | None = None
    """The number of the client whose step is under way."""
    seconds_encode: float = 0.0
    ended: float = 0.0

    def __iter__(self) -> Iterator[tuple[Task, Vector, Rng, float]]:
        problem, settings, state = self.problem, self.settings, self.state
        gradients = problem.gradients(state.weights, state.round, self.users.tolist())
        numbers = zip(self.users.tolist(), self.numbers.tolist(), strict=True)
        for (user, number), (loss, gradient) in zip(numbers, gradients, strict=True):
            started = time.perf_counter()
            task = task_for(number, settings, state)
            if settings.ledgers is not None and not settings.ledgers.paid(self.scheme, task, user):
                self.refused += 1
                continue
            seed = noise_seed(settings.seed, state.round, number)
            weight = float(problem.size(user)) if settings.weigh_by_size else 1.0
            self.encoding = number
            yield task, gradient, secure_rng() if settings.secure else seeded_rng(seed), weight
            self.encoding = None
            self.losses.append(loss)
            self.answered.append(user)
            self.seconds_encode += time.perf_counter() - started
        if not self.losses:
            raise ValueError(
                f"round {state.round}: all {self.refused:,} clients refused, their budgets are spent"
            )
        self.ended = time.perf_counter()
