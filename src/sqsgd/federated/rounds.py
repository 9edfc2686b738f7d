"""The local engine: all rounds in one process, with ledgers, timers and rounds lost to a crash."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from sqsgd.checks import Vector
from sqsgd.core import Scheme
from sqsgd.federated.algorithm import round_step, task_for
from sqsgd.federated.record import Record, make_record
from sqsgd.federated.state import Settings, State
from sqsgd.randomness import Rng, secure_rng, seeded_rng
from sqsgd.task import Task


class Problem(Protocol):
    """A model of ``dim`` weights and the data of ``clients`` clients."""

    @property
    def dim(self) -> int:
        """Trainable parameters."""

    @property
    def clients(self) -> int:
        """Number of clients."""

    def gradients(self, weights: Vector, round: int, cohort: Sequence[int]) -> Iterator[tuple[float, Vector]]:
        """Each client's loss and gradient, in order. Neither leaves the client; the loss is for plots."""

    def size(self, client: int) -> int:
        """The client's number of examples; public."""

    def cohort(self, round: int) -> Sequence[int]:
        """The clients of a round."""

    @property
    def once(self) -> bool:
        """Whether no client is in the cohorts of two rounds."""


def run(
    problem: Problem, scheme: Scheme, settings: Settings, state: State, rounds: int
) -> Iterator[tuple[Record, State]]:
    """Rounds ``state.round`` to ``rounds - 1``: a record and the new state for each."""
    while state.round < rounds:
        record, state = one_round(problem, scheme, settings, state)
        yield record, state


def one_round(problem: Problem, scheme: Scheme, settings: Settings, state: State) -> tuple[Record, State]:
    """One round of Algorithm 2, and its record."""
    started, cohort = time.perf_counter(), problem.cohort(state.round)
    if state.round == state.lost:
        spent = _spent(problem, state, cohort)
        record = make_record(scheme, state, most_reports=max(spent.values(), default=1))
        return record, replace(state, round=state.round + 1, spent=spent)
    clients = _Clients(problem=problem, scheme=scheme, settings=settings, state=state, cohort=cohort)
    try:
        after, reports, magnitudes = round_step(scheme, settings, state, clients)
    except ValueError as error:
        if clients.encoding is None:
            raise
        raise ValueError(
            f"round {state.round}, client {clients.encoding}: {error}; if training has diverged, a learning "
            f"rate below {settings.optimizer.rate:g} may help"
        ) from None
    ended = time.perf_counter()
    spent = _spent(problem, state, [task.client for task, _, _ in reports])
    record = make_record(
        scheme,
        state,
        most_reports=max(spent.values(), default=1),
        loss=float(np.mean(clients.losses)),
        magnitudes=magnitudes,
        bytes_up=max(len(message) for _, message, _ in reports),
        bytes_down=4 * problem.dim + len(reports[0][0].binding),
        clients=len(reports),
        seconds=ended - started,
        seconds_gradient=clients.ended - started - clients.seconds_encode,
        seconds_encode=clients.seconds_encode,
        seconds_aggregate=ended - clients.ended,
        refused=clients.refused,
    )
    return record, replace(after, spent=spent)


def _spent(problem: Problem, state: State, clients: Sequence[int]) -> dict[int, int]:
    """Reports sent by each client so far; not counted if no client sends a second one."""
    counted = () if problem.once else clients
    return {**state.spent, **{client: state.spent.get(client, 0) + 1 for client in counted}}


@dataclass(kw_only=True)
class _Clients:
    """The clients of a round whose ledgers allow a report, and their timers."""

    problem: Problem
    scheme: Scheme
    settings: Settings
    state: State
    cohort: Sequence[int]
    losses: list[float] = field(default_factory=list)
    refused: int = 0
    encoding: int | None = None
    """The client whose step is under way."""
    seconds_encode: float = 0.0
    ended: float = 0.0

    def __iter__(self) -> Iterator[tuple[Task, Vector, Rng, float]]:
        problem, settings, state = self.problem, self.settings, self.state
        gradients = problem.gradients(state.weights, state.round, self.cohort)
        for client, (loss, gradient) in zip(self.cohort, gradients, strict=True):
            started = time.perf_counter()
            task = task_for(client, settings, state)
            if settings.ledgers is not None and not settings.ledgers.paid(self.scheme, task):
                self.refused += 1
                continue
            seed = noise_seed(settings.seed, state.round, client)
            weight = float(problem.size(client)) if settings.weigh_by_size else 1.0
            self.encoding = client
            yield task, gradient, secure_rng() if settings.secure else seeded_rng(seed), weight
            self.encoding = None
            self.losses.append(loss)
            self.seconds_encode += time.perf_counter() - started
        if not self.losses:
            raise ValueError(
                f"round {state.round}: all {self.refused:,} clients refused, their budgets are spent"
            )
        self.ended = time.perf_counter()


def noise_seed(seed: int, round: int, client: int) -> int:
    """A different seed for each report of a repeatable run."""
    return (seed << 128) | (round << 64) | client
