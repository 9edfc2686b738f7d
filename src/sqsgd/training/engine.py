"""The local engine: all rounds in one process, with ledgers, timers and rounds lost to a crash."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sqsgd._internal.checks import Vector
from sqsgd.core import Indices, Scheme
from sqsgd.core.random import EVERYONE, Rng, secure_rng, seeded_rng
from sqsgd.core.task import Task, Tasks
from sqsgd.mechanisms.gaussian_account import spent
from sqsgd.privacy.ledger import Ledgers
from sqsgd.training.algorithm import Reports, diverged, round_step, server_step, task_for
from sqsgd.training.order import Order
from sqsgd.training.settings import Settings
from sqsgd.training.state import Record, State, make_record

_LOG = logging.getLogger("sqsgd")
Losses = npt.NDArray[np.float64]
_FLOATS = 1 << 22  # of gradients at a time: 16 megabytes
_FEW = 100  # up to this many seeded clients answer one by one, as Flower's nodes do: the same bits


class Problem(Protocol):
    """A model of ``dim`` weights and the data of ``clients`` clients."""

    @property
    def dim(self) -> int:
        """Trainable parameters."""

    @property
    def clients(self) -> int: ...

    def gradients(self, weights: Vector, round: int, cohort: Sequence[int]) -> Iterator[tuple[float, Vector]]:
        """Each client's loss and gradient, in order. Neither leaves the client. The loss is for plots."""

    def cohort(self, round: int) -> Sequence[int]:
        """Return the clients of a round."""


def noise_seed(seed: int, round: int, client: int) -> int:
    """Return a different seed for each report of a repeatable run; ``client`` is the number in its task."""
    return (seed << 128) | (round << 64) | client


def run(
    problem: Problem, scheme: Scheme, settings: Settings, state: State, rounds: int, **parts: Any
) -> Iterator[tuple[Record, State]]:
    """Rounds ``state.round`` to ``rounds - 1``: a record and the new state for each.

    Args:
        problem: The model and the clients' data; a method ``gradient_rows(weights, round, cohort)``, which
            gives their losses and a gradient in each row, is used for many clients at once.
        scheme: The scheme of the reports.
        settings: The settings, with bound and rate.
        state: Where to begin: ``initial_state``, or a checkpoint's.
        rounds: The number of all rounds.
        **parts: Other fields of ``Engine``.
    """
    engine = Engine(problem=problem, scheme=scheme, settings=settings, **parts)
    while state.round < rounds:
        record, state = engine.one_round(state)
        yield record, state


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The clients of a simulation, and their server."""

    problem: Problem
    scheme: Scheme
    settings: Settings
    order: Order | None = None
    """Users report in this order: tasks then hold the numbers of slots, not of users."""
    ledgers: Ledgers | None = None
    workers: int = 1

    def one_round(self, state: State) -> tuple[Record, State]:
        started, order, scheme = time.perf_counter(), self.order, self.scheme
        users = np.asarray((self.problem if order is None else order).cohort(state.round), np.int64)
        if state.round == state.lost:
            after = state.after(users.tolist() if order is None else ())
            return self._counted(make_record(scheme, state, after)), after
        # Whoever reports in a secret order is known by the slot, not by name:
        # tests/training/test_order.py::test_nothing_public_depends_on_a_users_number.
        numbers, paid = (users, None) if order is None else (np.arange(users.size), ())
        clients = _Clients(self, state, users, numbers)
        stateless = not scheme.keeps_state and self.ledgers is None
        many = stateless and not scheme.sums_records and (self.settings.secure or users.size > _FEW)
        if many and hasattr(self.problem, "gradient_rows"):
            parts = (scheme, self.settings, state, clients.reports())
            after, record = server_step(*parts, paid=paid, workers=self.workers)
        else:
            after, record = round_step(scheme, self.settings, state, clients.one_by_one(), paid=paid)
        record = replace(
            self._counted(record),
            loss=float(np.mean(np.concatenate(clients.losses))),
            bytes_down=4 * self.problem.dim + len(task_for(0, self.settings, state).binding),
            seconds=time.perf_counter() - started,
            seconds_gradient=clients.seconds_gradient,
            seconds_encode=clients.seconds_encode,
            refused=clients.refused,
        )
        return record, after

    def _counted(self, record: Record) -> Record:
        """The record with the total of a user who reports by slots, whom no state counts."""
        if self.order is None:
            return record
        return replace(record, epsilon_total=spent(self.scheme.privacy, self.order.sent(record.round)))


@dataclass
class _Clients:
    engine: Engine
    state: State
    users: Indices
    numbers: Indices
    """The number in each user's task: the user's own, or its slot's."""
    losses: list[Losses] = field(default_factory=list)
    refused: int = 0
    seconds_gradient: float = 0.0
    seconds_encode: float = 0.0

    def reports(self) -> Iterator[Reports]:
        """Many at once, without state: in pieces, so that memory does not grow with the clients."""
        engine, state, settings = self.engine, self.state, self.engine.settings
        problem: Any = engine.problem
        size = max(1, _FLOATS // engine.scheme.dim)
        seed = noise_seed(settings.seed, state.round, EVERYONE)
        rng = secure_rng() if settings.secure else seeded_rng(seed)
        for start in range(0, self.users.size, size):
            users, numbers = (each[start : start + size] for each in (self.users, self.numbers))
            began = time.perf_counter()
            losses, rows = problem.gradient_rows(state.weights, state.round, users)
            computed = time.perf_counter()
            tasks = Tasks(task_for(0, settings, state), numbers)
            try:
                messages = engine.scheme.encode_many(rows, tasks, rng, workers=engine.workers)
            except ValueError as error:
                raise diverged(settings, state, error) from None
            self.losses.append(losses)
            self.seconds_gradient += computed - began
            self.seconds_encode += time.perf_counter() - computed
            yield tasks, messages, None

    def _rng(self, number: int) -> Rng:
        settings = self.engine.settings
        if settings.secure:
            return secure_rng()
        return seeded_rng(noise_seed(settings.seed, self.state.round, number))

    def one_by_one(self) -> Iterator[tuple[Task, Vector, Rng]]:
        """Task, gradient and noise of the clients whose ledgers allow a report."""
        engine, state, settings = self.engine, self.state, self.engine.settings
        asked = [
            (user, task_for(number, settings, state), self._rng(number))
            for user, number in zip(self.users.tolist(), self.numbers.tolist(), strict=True)
        ]
        problem: Any = engine.problem
        if engine.scheme.sums_records:
            gradients = problem.record_sums(state.weights, engine.scheme, asked, normalise=settings.normalise)
        else:
            gradients = problem.gradients(state.weights, state.round, self.users.tolist())
        started = time.perf_counter()
        for user, task, rng in asked:
            loss, gradient = next(gradients)
            computed = time.perf_counter()
            self.seconds_gradient += computed - started
            # In one visit a user pays for several reports of the round: each has a name.
            part = 0 if engine.order is None else task.client // engine.order.per_round
            name = f"seed {task.seed}, report {part + 1}" if part else ""
            if engine.ledgers is not None and len(self.losses) % 50 == 0:  # each waits for a disk
                _LOG.debug("round %s: %s of %s have paid", state.round + 1, len(self.losses), self.users.size)
            if engine.ledgers is None or engine.ledgers.paid(engine.scheme, task, user, name=name):
                yield task, gradient, rng
                self.losses.append(np.atleast_1d(loss))
            else:
                self.refused += 1
            started = time.perf_counter()
            self.seconds_encode += started - computed
        if not self.losses and self.refused:
            who = f"all {self.refused:,} clients refused"
            raise ValueError(f"round {state.round}: {who}, their budgets are spent")
