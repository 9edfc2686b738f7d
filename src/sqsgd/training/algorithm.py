"""Algorithm 2 of the paper, corrected: the client's step, the server's step, one round.

Numbers in comments are lines of the paper's Algorithm 2. The order is corrected: accumulate, clip, select,
rotate, quantise, privatise. (The paper clips before it adds the residual, which then leaves the range.)
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sqsgd._internal.checks import Vector
from sqsgd.core import Aggregate, Scheme
from sqsgd.core.codec import Bytes, Columns
from sqsgd.core.random import Rng
from sqsgd.core.scheme import Counts
from sqsgd.core.task import Task, Tasks
from sqsgd.training.settings import Settings
from sqsgd.training.state import Gradient, OptimizerState, Record, State, make_record

Report = tuple[Task, bytes | Columns, float]
"""A client's task, its message (or what ``Scheme.open`` made of it) and its weight in the mean."""
Reports = tuple[Tasks, Bytes, Gradient | None]
"""The same for many clients: a row each; None: all weigh the same."""
Counted = tuple[Task, Counts, None]
"""All reports of a round, counted: how often each code was sent."""


def round_step(
    scheme: Scheme,
    settings: Settings,
    state: State,
    cohort: Iterable[tuple[Task, Vector, Rng]],
    *,
    paid: Iterable[int] | None = None,
) -> tuple[State, Record]:
    """Lines 8 to 27: task, gradient and noise of each client to the next state."""
    residuals, reports = dict(state.residuals), list[Report]()
    for task, gradient, rng in cohort:  # 8, 12
        residual = residuals.get(task.client)
        try:
            message, residual = client_step(
                scheme, task, gradient, residual, rng, alpha=settings.alpha, beta=settings.beta
            )
        except ValueError as error:
            raise diverged(settings, state, error, task.client) from None
        if residual is not None:
            residuals[task.client] = residual
        reports.append((task, message, 1.0))  # 21
    after, record = server_step(scheme, settings, state, reports, paid=paid)
    return replace(after, residuals=residuals), record


class Diverged(ValueError):
    """A client's vector cannot be encoded in this round, most likely because the training has diverged."""


def diverged(settings: Settings, state: State, error: ValueError, client: int | None = None) -> Diverged:
    who = "" if client is None else f"client {client}: "
    return Diverged(
        f"round {state.round}, {who}{error}; if training has diverged, a learning rate below "
        f"{settings.lr:g} may help"
    )


def task_for(client: int, settings: Settings, state: State) -> Task:
    """Line 7: the task that the server sends to a client, or to the user of a slot."""
    return Task(
        round=state.round,
        client=client,
        seed=settings.seed,
        dim=state.weights.size,
        bound=state.bound,
        clip=settings.clip_norm or None,
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
    """Encode the report of a client and update its state.

    Args:
        scheme: The scheme used for encoding.
        task: The public request.
        gradient: The gradient as a float32 vector.
        residual: The state returned by the previous step, or None in the first round.
        rng: The private generator.
        alpha: The factor for adding the gradient to the residual (without momentum).
        beta: The factor for the gradient in the report (without momentum).

    Returns:
        The message and the new residual or average, which is None for schemes without state. As in the paper,
        the part of the sent coordinates that was removed by clipping is lost, and the residual of the other
        coordinates is not clipped.

    Raises:
        ValueError: If the vector is not finite or has a different length.
    """
    if not scheme.keeps_state:
        return scheme.encode(gradient, task, rng), None
    if scheme.average:
        share, kept = np.float32(scheme.average), np.zeros_like(gradient) if residual is None else residual
        average = share * kept + (1 - share) * gradient
        return scheme.encode(average, task, rng), average
    if scheme.momentum:
        return _velocity_step(scheme, task, gradient, residual, rng)
    kept = np.zeros_like(gradient) if residual is None else residual  # 4
    accumulated = kept + gradient if beta == 1 else kept + np.float32(beta) * gradient  # 14
    columns = scheme.randomize(accumulated, task, rng)  # clip 13, select 10, rotate 15, PrivQuant 19, 20
    unsent = accumulated if alpha == beta else kept + np.float32(alpha) * gradient  # 17
    unsent[scheme.sent_coordinates(columns, task)] = 0  # 18
    return scheme.seal(columns, task), unsent


def _velocity_step(
    scheme: Scheme, task: Task, gradient: Vector, kept: Vector | None, rng: Rng
) -> tuple[bytes, Vector]:
    """Deep Gradient Compression, Algorithm 4; ``kept`` holds the velocity and then the residual."""
    velocity, unsent = np.zeros((2, scheme.dim), np.float32) if kept is None else kept.copy()
    velocity *= np.float32(scheme.momentum)
    velocity += gradient
    unsent += velocity
    columns = scheme.randomize(unsent, task, rng)
    sent = scheme.sent_coordinates(columns, task)
    velocity[sent] = unsent[sent] = 0
    return scheme.seal(columns, task), np.stack([velocity, unsent])


def server_step(
    scheme: Scheme,
    settings: Settings,
    state: State,
    reports: Iterable[Report | Reports | Counted],
    *,
    paid: Iterable[int] | None = None,
    workers: int = 1,
) -> tuple[State, Record]:
    """Average the reports, update the model, and adapt the bound (lines 22 to 27 of the paper).

    Args:
        scheme: The scheme of the reports.
        settings: The settings of the training, including the bound and the learning rate.
        state: The state before the round. Its residuals are copied to the next state.
        reports: The reports of the clients, either individually or in batches. Generators are supported.
        paid: The clients that may have paid for a report, by default those in the tasks. It should be empty
            if clients report only once, because the tasks then contain slot numbers.
        workers: The number of threads for processing batches of reports.

    Returns:
        The next state, and a record which can be extended with sizes and times by the caller.

    Raises:
        MalformedReport: If a report is not valid for its task.
        ValueError: If there are no reports.
    """
    mean, magnitudes, clients, seconds = Aggregate(scheme), list[float](), list[int](), 0.0
    for task, content, weight in reports:
        started = time.perf_counter()
        if isinstance(task, Tasks):
            columns = mean.add_many(task, content, weight, workers=workers)  # type: ignore[arg-type]
            magnitudes += scheme.mechanism.magnitudes(columns, task.task.bound)
            clients += task.clients.tolist()
        elif isinstance(content, np.ndarray):
            mean.add_counts(task, content)  # type: ignore[arg-type]
        else:
            columns = scheme.open(content, task) if isinstance(content, bytes) else content
            mean.add_columns(task, columns, weight)  # type: ignore[arg-type]
            magnitude = scheme.mechanism.magnitude(columns, task.bound)
            if magnitude is not None:
                magnitudes.append(magnitude)
            clients.append(task.client)
        seconds += time.perf_counter() - started
    started = time.perf_counter()
    direction, optimizer = DIRECTIONS[settings.optimizer](mean.mean(), state.optimizer)  # 24
    weights = (state.weights - settings.rate_at(state.round) * direction).astype(np.float32)  # 25
    bound = state.bound
    if settings.track and magnitudes:  # 27
        bound = next_bound(bound, magnitudes, floor=max(1e-9, settings.bound * 1e-4))
    after = replace(state, weights=weights, bound=bound, optimizer=optimizer)
    after = after.after(clients if paid is None else paid)
    record = make_record(
        scheme,
        state,
        after,
        magnitudes=magnitudes,
        clients=mean.count,
        bytes_up=scheme.bits // 8,
        bytes_down=4 * scheme.dim,
        seconds_aggregate=seconds + time.perf_counter() - started,
    )
    return after, record


def _momentum(gradient: Gradient, state: OptimizerState) -> tuple[Gradient, OptimizerState]:
    first = 0.9 * state.get("first", np.zeros_like(gradient)) + gradient
    return first, {"first": first}


def _adam(gradient: Gradient, state: OptimizerState) -> tuple[Gradient, OptimizerState]:
    """Kingma and Ba: the running mean over the root of the running square, with bias correction."""
    first = 0.9 * state.get("first", np.zeros_like(gradient)) + 0.1 * gradient
    second = 0.999 * state.get("second", np.zeros_like(gradient)) + 0.001 * gradient**2
    steps = float(state.get("steps", np.zeros(1))[0]) + 1
    direction = (first / (1 - 0.9**steps)) / (np.sqrt(second / (1 - 0.999**steps)) + 1e-8)
    return direction, {"first": first, "second": second, "steps": np.array([steps])}


DIRECTIONS: Mapping[str, Callable[[Gradient, OptimizerState], tuple[Gradient, OptimizerState]]] = {
    "sgd": lambda gradient, state: (gradient, state),
    "momentum": _momentum,
    "adam": _adam,
}


def next_bound(bound: float, magnitudes: Sequence[float], floor: float) -> float:
    """U_{t+1}: 1.5 times the upper quartile of the privatised magnitudes, within [U_t / 2, 2 U_t].

    The paper's maximum never falls. Of two clients, none can raise this bound alone.
    """
    seen = float(np.quantile(np.clip(magnitudes, 0.0, 2 * bound), 0.75, method="lower"))
    return max(floor, min(max(1.5 * seen, bound / 2), 2 * bound))


def enough_answers(min_answers: int, asked: int) -> int:
    """The least number of answers on which the model moves; by default (0) half of those asked."""
    return min_answers or max(1, (asked + 1) // 2)
