"""A round of clients that keep no state: gradients, reports and their sum for many of them at once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from sqsgd.codec import Bytes
from sqsgd.core import Aggregate, Indices, Scheme, Vectors
from sqsgd.federated.problems import Losses, RowProblem
from sqsgd.federated.robust import RobustAggregate, make_aggregate
from sqsgd.training.engine import noise_seed
from sqsgd.training.settings import Settings
from sqsgd.training.state import State
from sqsgd.randomness import EVERYONE, Rng, secure_rng, seeded_rng
from sqsgd.task import Tasks
from sqsgd.training.algorithm import server_step, task_for
from sqsgd.training.engine import noise_seed
from sqsgd.training.settings import Settings
from sqsgd.training.state import State

_FLOATS = 1 << 22  # of gradients at a time: 16 megabytes
_FEW = 100
"""Up to this many seeded clients draw their noise one by one, as Flower's nodes do: the same bits."""


@dataclass(kw_only=True)
class BatchRound:
    """One round: reports with the law of one client after the other.

    tests/federated/test_batch_rounds.py::test_few_seeded_clients_draw_the_bits_of_single_ones.
    """

    problem: RowProblem
    scheme: Scheme
    settings: Settings
    state: State
    users: Indices
    """Whose gradients are taken."""
    numbers: Indices
    """The number in each user's task: the user's own, or that of its slot."""
    weights: Losses | None = None
    losses: list[Losses] = field(default_factory=list)
    magnitudes: list[float] = field(default_factory=list)
    seconds_gradient: float = 0.0
    seconds_encode: float = 0.0
    seconds_aggregate: float = 0.0

    def step(self) -> State:
        """All clients, in pieces, so that memory does not grow with their number; then the model's step."""
        total = make_aggregate(self.settings.aggregate, self.scheme, len(self.users))
        size = max(1, _FLOATS // self.scheme.dim)
        seed = noise_seed(self.settings.seed, self.state.round, EVERYONE)
        rng = secure_rng() if self.settings.secure else seeded_rng(seed)
        for start in range(0, len(self.users), size):
            self._add(total, slice(start, start + size), rng)
        started = time.perf_counter()
        after = server_step(self.settings, self.state, total.mean(), self.magnitudes)
        self.seconds_aggregate += time.perf_counter() - started
        return after

    def _add(self, total: Aggregate | RobustAggregate, piece: slice, rng: Rng) -> None:
        state, workers, started = self.state, self.settings.workers, time.perf_counter()
        losses, rows = self.problem.gradient_rows(state.weights, state.round, self.users[piece])
        tasks = Tasks(task_for(0, self.settings, state), self.numbers[piece])
        computed = time.perf_counter()
        messages = self._encode(rows, tasks, rng)
        encoded = time.perf_counter()
        weights = None if self.weights is None else self.weights[piece]
        columns = total.add_many(tasks, messages, weights, workers=workers)
        self.magnitudes += self.scheme.mechanism.magnitudes(columns, state.bound)
        self.losses.append(losses)
        self.seconds_gradient += computed - started
        self.seconds_encode += encoded - computed
        self.seconds_aggregate += time.perf_counter() - encoded

    def _encode(self, rows: Vectors, tasks: Tasks, rng: Rng) -> Bytes:
        settings, round = self.settings, self.state.round
        try:
            if settings.secure or len(self.users) > _FEW:
                return self.scheme.encode_many(rows, tasks, rng, workers=settings.workers)
            messages = []
            for row, task in zip(rows, tasks, strict=True):
                own = seeded_rng(noise_seed(settings.seed, round, task.client))
                try:
                    messages.append(np.frombuffer(self.scheme.encode(row, task, own), np.uint8))
                except ValueError as error:
                    raise ValueError(f"client {task.client}: {error}") from None
            return np.stack(messages)
        except ValueError as error:
            raise ValueError(
                f"round {round}, {error}; if training has diverged, a learning rate below "
                f"{settings.optimizer.rate:g} may help"
            ) from None
