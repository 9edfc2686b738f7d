"""Algorithm 2 of the paper, corrected: what a client does, what the server does, and the rounds.

The order is accumulate, clip, select, rotate, quantise, privatise (the paper clips before it adds the
residual, which then leaves the range). Numbers in comments are lines of the paper's Algorithm 2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.core import Aggregate, Indices, Scheme
from sqsgd.federated.bounds import clip_rate, next_bound
from sqsgd.federated.optimizers import Optimizer, OptimizerState
from sqsgd.ledger.client_ledgers import Ledgers
from sqsgd.randomness import Rng, secure_rng, seeded_rng
from sqsgd.task import Task


class Problem(Protocol):
    """What is trained: a model of ``dim`` weights on the data of ``clients`` clients."""

    @property
    def dim(self) -> int:
        """Trainable parameters."""
        ...

    @property
    def clients(self) -> int:
        """Clients in all."""
        ...

    def gradients(self, weights: Vector, round: int, cohort: Sequence[int]) -> Iterator[tuple[float, Vector]]:
        """Each client's loss and gradient, in order. Neither leaves the client; the loss is for plots."""
        ...

    def size(self, client: int) -> int:
        """How many examples the client has; public."""
        ...

    def cohort(self, round: int) -> Sequence[int]:
        """The clients of a round."""
        ...

    @property
    def once(self) -> bool:
        """Whether no client is in the cohorts of two rounds."""
        ...


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the server decides. α and β scale what goes to the residual and to the report (paper: 1)."""

    seed: int
    optimizer: Optimizer
    bound: float = 1.0
    track: bool = True
    """Follow the privatised magnitudes with the bound, where the scheme reports one."""
    clip: float | None = None
    alpha: float = 1.0
    beta: float = 1.0
    weigh_by_size: bool = False
    decay_rounds: int = 0
    """The learning rate falls linearly to nothing over so many rounds; 0: it stays."""
    ledgers: Ledgers | None = None
    """The clients' own ledgers, which may refuse."""
    secure: bool = False
    """Noise from the operating system; a run can then not be repeated, nor resumed to the same bits."""

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, 0, 2**64 - 1)
        checks.real("bound", self.bound, 1e-6, 1e30)
        checks.real("alpha", self.alpha, 0.0, 1e6)
        checks.positive("beta", self.beta)


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that one round hands to the next."""

    round: int
    weights: Vector
    bound: float
    optimizer: OptimizerState
    residuals: Mapping[int, Vector] = field(default_factory=dict)
    spent: Mapping[int, int] = field(default_factory=dict)  # reports that each client has sent
    lost: int = -1  # a round whose reports may have left, but were lost: it passes, and is counted as spent


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one round did; progress bars, files and pages read these."""

    round: int
    loss: float  # mean over the round's clients, known to the simulation only
    epsilon: float
    epsilon_total: float  # of the client that has sent the most reports
    bytes_up: int = 0  # of one client's message, measured
    bytes_down: int = 0
    clients: int = 0  # whose reports were counted
    clip_rate: float | None = None  # share of privatised magnitudes at or near the bound; None: not told
    bound: float
    seconds: float = 0.0
    seconds_gradient: float = 0.0
    seconds_encode: float = 0.0
    seconds_aggregate: float = 0.0
    refused: int = 0  # clients whose own ledgers let no report leave
    bytes_up_serialised: int | None = None  # as the transport wraps them, where there is one
    bytes_down_serialised: int | None = None


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
    """A client's message and its new residual (None where the scheme sends the whole vector)."""
    if not scheme.residual:
        return scheme.encode(gradient, task, rng), None
    if scheme.momentum:
        return _velocity_step(scheme, task, gradient, residual, rng)
    kept = np.zeros_like(gradient) if residual is None else residual
    # 15: accumulate; clipping, selection, rotation and PrivQuant (13, 10, 15, 19, 20) are the scheme's.
    accumulated = kept + gradient if beta == 1 else kept + np.float32(beta) * gradient
    columns = scheme.randomize(accumulated, task, rng)
    # 17, 18: what was not sent waits; what was sent is gone.
    waiting = accumulated if alpha == beta else kept + np.float32(alpha) * gradient
    waiting[scheme.sent_coordinates(columns, task)] = 0
    return scheme.seal(columns, task), waiting


def _velocity_step(
    scheme: Scheme, task: Task, gradient: Vector, kept: Vector | None, rng: Rng
) -> tuple[bytes, Vector]:
    """With momentum correction: the residual gathers the velocity, and both are masked where sent.

    Deep Gradient Compression, Algorithm 4; ``kept`` holds the velocity and then what waits.
    """
    velocity, waiting = np.zeros((2, scheme.dim), np.float32) if kept is None else kept.copy()
    velocity *= np.float32(scheme.momentum)
    velocity += gradient
    waiting += velocity
    columns = scheme.randomize(waiting, task, rng)
    sent = scheme.sent_coordinates(columns, task)
    velocity[sent] = waiting[sent] = 0
    return scheme.seal(columns, task), np.stack([velocity, waiting])


def sent_coordinates(scheme: Scheme, task: Task, message: bytes) -> Indices:
    """The coordinates that a client's message is about."""
    return scheme.sent_coordinates(scheme.open(message, task) if scheme.mechanism.chooses else (), task)


def server_step(
    scheme: Scheme, settings: Settings, state: State, reports: Sequence[tuple[Task, bytes, float]]
) -> tuple[State, list[float]]:
    """Average, descend, follow the bound: (task, message, weight) of each client to the next state.

    Returns the privatised magnitudes too; they are all that the server knows of the clients' norms.
    """
    total, magnitudes = Aggregate(scheme), []
    for task, message, weight in reports:
        columns = total.add(task, message, weight)
        magnitude = scheme.mechanism.magnitude(columns, task.bound)
        if magnitude is not None:
            magnitudes.append(magnitude)
    descent = settings.optimizer
    if settings.decay_rounds:
        left = max(0.0, 1 - state.round / settings.decay_rounds)
        descent = replace(descent, rate=descent.rate * max(left, 1e-9))
    weights, optimizer = descent.step(state.weights, total.mean(), state.optimizer)  # 24
    bound = state.bound
    if settings.track and magnitudes:  # 27
        bound = next_bound(bound, magnitudes, floor=max(1e-9, settings.bound * 1e-4))
    after = replace(state, round=state.round + 1, weights=weights, bound=bound, optimizer=optimizer)
    return after, magnitudes


def initial_state(weights: Vector, settings: Settings) -> State:
    """The state before the first round."""
    return State(round=0, weights=weights, bound=settings.bound, optimizer=settings.optimizer.initial())


def run(
    problem: Problem, scheme: Scheme, settings: Settings, state: State, rounds: int
) -> Iterator[tuple[Record, State]]:
    """Rounds ``state.round`` to ``rounds - 1``: a record and the new state for each."""
    while state.round < rounds:
        record, state = one_round(problem, scheme, settings, state)
        yield record, state


def one_round(problem: Problem, scheme: Scheme, settings: Settings, state: State) -> tuple[Record, State]:
    """Lines 6 to 27: the clients' steps one after the other, then the server's."""
    started = time.perf_counter()
    cohort = problem.cohort(state.round)  # 6
    residuals, spent = dict(state.residuals), dict(state.spent)
    if state.round == state.lost:
        return _lost_round(problem, scheme, state, cohort)
    reports: list[tuple[Task, bytes, float]] = []
    losses, encoding, refused = [], 0.0, 0
    gradients = problem.gradients(state.weights, state.round, cohort)
    for client, (loss, gradient) in zip(cohort, gradients, strict=True):
        encode_started = time.perf_counter()
        task = Task(
            round=state.round,
            client=client,
            seed=settings.seed,
            dim=problem.dim,
            bound=state.bound,
            clip=settings.clip,
        )
        if settings.ledgers is not None and not settings.ledgers.paid(scheme, task):
            refused += 1
            continue
        rng = secure_rng() if settings.secure else seeded_rng(noise_seed(settings.seed, state.round, client))
        try:
            message, residual = client_step(
                scheme, task, gradient, residuals.get(client), rng, alpha=settings.alpha, beta=settings.beta
            )
        except ValueError as error:
            raise ValueError(
                f"round {state.round}, client {client}: {error}; if training has diverged, a learning rate "
                f"below {settings.optimizer.rate:g} may help"
            ) from None
        if residual is not None:
            residuals[client] = residual
        if not problem.once:
            spent[client] = spent.get(client, 0) + 1
        reports.append((task, message, float(problem.size(client)) if settings.weigh_by_size else 1.0))
        losses.append(loss)
        encoding += time.perf_counter() - encode_started
    if not reports:
        raise ValueError(f"round {state.round}: all {refused:,} clients refused, their budgets are spent")
    aggregate_started = time.perf_counter()
    after, magnitudes = server_step(scheme, settings, state, reports)
    ended = time.perf_counter()
    record = Record(
        round=state.round,
        loss=float(np.mean(losses)),
        epsilon=scheme.privacy.epsilon,
        epsilon_total=scheme.privacy.epsilon * max(spent.values(), default=1),
        bytes_up=max(len(message) for _, message, _ in reports),
        bytes_down=4 * problem.dim + len(reports[0][0].binding),
        clients=len(reports),
        clip_rate=clip_rate(magnitudes, state.bound),
        bound=state.bound,
        seconds=ended - started,
        seconds_gradient=aggregate_started - started - encoding,
        seconds_encode=encoding,
        seconds_aggregate=ended - aggregate_started,
        refused=refused,
    )
    return record, replace(after, residuals=residuals, spent=spent)


def _lost_round(
    problem: Problem, scheme: Scheme, state: State, cohort: Sequence[int]
) -> tuple[Record, State]:
    """A round that was begun before a crash: nobody is asked again, and all that could be spent is."""
    spent = dict(state.spent)
    if not problem.once:
        spent |= {client: spent.get(client, 0) + 1 for client in cohort}
    record = Record(
        round=state.round,
        loss=math.nan,
        epsilon=scheme.privacy.epsilon,
        epsilon_total=scheme.privacy.epsilon * max(spent.values(), default=1),
        bound=state.bound,
    )
    return record, replace(state, round=state.round + 1, spent=spent)


def noise_seed(seed: int, round: int, client: int) -> int:
    """A seed of its own for each report of a repeatable run."""
    return (seed << 128) | (round << 64) | client
