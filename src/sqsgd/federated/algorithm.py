"""Algorithm 2 of the paper, corrected: the client's step, the server's step, one round.

Numbers in comments are lines of the paper's Algorithm 2. The order is corrected: accumulate, clip, select,
rotate, quantise, privatise. (The paper clips before it adds the residual, which then leaves the range.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from sqsgd.checks import Vector
from sqsgd.codec import Columns
from sqsgd.core import Estimate, Indices, Scheme
from sqsgd.federated.robust import make_aggregate
from sqsgd.randomness import Rng
from sqsgd.task import Task
from sqsgd.training.algorithm import next_bound
from sqsgd.training.settings import Settings
from sqsgd.training.state import State

Report = tuple[Task, bytes, float]
"""A client's task, its message and its weight in the mean."""


def round_step(
    scheme: Scheme, settings: Settings, state: State, cohort: Iterable[tuple[Task, Vector, Rng, float]]
) -> tuple[State, list[Report], list[float]]:
    """Lines 8 to 27: task, gradient, noise and weight of each client to the next state.

    Also returns the reports that were sent and the privatised magnitudes they hold.
    """
    residuals, reports = dict(state.residuals), []
    for task, gradient, rng, weight in cohort:  # 8, 12
        residual = residuals.get(task.client)
        message, residual = client_step(
            scheme, task, gradient, residual, rng, alpha=settings.alpha, beta=settings.beta
        )
        if residual is not None:
            residuals[task.client] = residual
        reports.append((task, message, weight))  # 21
    after, magnitudes = server_step(scheme, settings, state, reports)
    return replace(after, residuals=residuals), reports, magnitudes


def task_for(client: int, settings: Settings, state: State) -> Task:
    """Line 7: what the server sends to a client, or to whoever fills a slot, besides the weights."""
    return Task(
        round=state.round,
        client=client,
        seed=settings.seed,
        dim=state.weights.size,
        bound=state.bound,
        clip=settings.clip,
    )


def client_step(
    scheme: Scheme,
    task: Task,
    gradient: Vector,
    residual: Vector | None,
    rng: Rng,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> tuple[bytes, Vector | None]:
    """A client's message and its new residual (None if the scheme sends the whole vector)."""
    if not scheme.residual:
        return scheme.encode(gradient, task, rng), None
    if scheme.momentum:
        return _velocity_step(scheme, task, gradient, residual, rng)
    kept = np.zeros_like(gradient) if residual is None else residual  # 4
    accumulated = kept + gradient if beta == 1 else kept + np.float32(beta) * gradient  # 15
    columns = scheme.randomize(accumulated, task, rng)  # clip 13, select 10, rotate 15, PrivQuant 19, 20
    unsent = accumulated if alpha == beta else kept + np.float32(alpha) * gradient  # 17
    unsent[scheme.sent_coordinates(columns, task)] = 0  # 18
    return scheme.seal(columns, task), unsent


def _velocity_step(
    scheme: Scheme, task: Task, gradient: Vector, kept: Vector | None, rng: Rng
) -> tuple[bytes, Vector]:
    """With momentum correction: the residual accumulates the velocity, and both are masked where sent.

    Deep Gradient Compression, Algorithm 4; ``kept`` holds the velocity and then the residual.
    """
    velocity, unsent = np.zeros((2, scheme.dim), np.float32) if kept is None else kept.copy()
    velocity *= np.float32(scheme.momentum)
    velocity += gradient
    unsent += velocity
    columns = scheme.randomize(unsent, task, rng)
    sent = scheme.sent_coordinates(columns, task)
    velocity[sent] = unsent[sent] = 0
    return scheme.seal(columns, task), np.stack([velocity, unsent])


def sent_coordinates(scheme: Scheme, task: Task, message: bytes) -> Indices:
    """The coordinates that a client's message describes: 𝒟_s of line 11."""
    return scheme.sent_coordinates(scheme.open(message, task) if scheme.mechanism.chooses else (), task)


def server_step(
    scheme: Scheme, settings: Settings, state: State, reports: Sequence[Report]
) -> tuple[State, list[float]]:
    """Average, descend, adapt the bound: (task, message, weight) of each client to the next state.

    Also returns the privatised magnitudes, which are all that the server learns of the clients' norms.
    """
    opened = ((task, scheme.open(message, task), weight) for task, message, weight in reports)
    return _step(scheme, settings, state, opened, len(reports))


def server_step_opened(
    scheme: Scheme, settings: Settings, state: State, reports: Sequence[tuple[Task, Columns, float]]
) -> tuple[State, list[float]]:
    """``server_step`` for reports that ``Scheme.open`` has opened."""
    return _step(scheme, settings, state, reports, len(reports))


def _step(
    scheme: Scheme,
    settings: Settings,
    state: State,
    reports: Iterable[tuple[Task, Columns, float]],
    count: int,
) -> tuple[State, list[float]]:
    aggregate, magnitudes = make_aggregate(settings.aggregate, scheme, count), []
    for task, columns, weight in reports:
        aggregate.add_columns(task, columns, weight)
        magnitude = scheme.mechanism.magnitude(columns, task.bound)
        if magnitude is not None:
            magnitudes.append(magnitude)
    return descend(settings, state, aggregate.mean(), magnitudes), magnitudes


def descend(settings: Settings, state: State, mean: Estimate, magnitudes: Sequence[float]) -> State:
    """The step along the mean of a round's reports, and the next bound."""
    optimizer = replace(settings.optimizer, rate=settings.rate_at(state.round))
    weights, optimizer_state = optimizer.step(state.weights, mean, state.optimizer)  # 24, 25
    bound = state.bound
    if settings.track and magnitudes:  # 27
        bound = next_bound(bound, magnitudes, floor=max(1e-9, settings.bound * 1e-4))
    return replace(state, round=state.round + 1, weights=weights, bound=bound, optimizer=optimizer_state)


def enough_answers(min_answers: int, asked: int) -> int:
    """The least number of answers on which the model moves; by default (0) half of those asked, rounded up.

    >>> [enough_answers(0, asked) for asked in (1, 2, 3, 10)]
    [1, 1, 2, 5]
    """
    return min_answers or max(1, (asked + 1) // 2)
