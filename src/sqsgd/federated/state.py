"""The settings of a training run, and the state passed from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.federated.optimizers import Optimizer, OptimizerState
from sqsgd.federated.order import Order
from sqsgd.federated.robust import MEAN, check_kind
from sqsgd.privacy.ledger import Ledgers


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The server's choices. α and β scale what goes to the residual and to the report (paper: 1)."""

    seed: int
    optimizer: Optimizer
    secure: bool
    """True: the clients' noise comes from the operating system. False: it comes from the public seed, so the
    run is a simulation, which can be repeated bit for bit and protects nobody. There is no default:
    tests/federated/test_state.py::test_who_draws_the_noise_has_no_default."""
    bound: float = 1.0
    track: bool = True
    """Adapt the bound to the privatised magnitudes, if the scheme reports one."""
    clip: float | None = None
    alpha: float = 1.0
    beta: float = 1.0
    weigh_by_size: bool = False
    decay_rounds: int = 0
    """The learning rate falls linearly to zero over this many rounds; 0: it is constant."""
    ledgers: Ledgers | None = None
    """The clients' own ledgers, which may refuse a report."""
    order: Order | None = None
    """Each user reports once, in this order: tasks then hold the numbers of slots, not of users."""
    aggregate: str = MEAN
    """How reports become a step: ``mean``, or an aggregate of ``robust.py``."""
    workers: int = 1
    """Threads that share the work of clients without state."""

    def rate_at(self, round: int) -> float:
        """The learning rate of a round."""
        left = max(1e-9, 1 - round / self.decay_rounds) if self.decay_rounds else 1.0
        return self.optimizer.rate * left

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, 0, 2**64 - 1)
        if not isinstance(self.secure, bool):
            raise ValueError(f"secure = {self.secure!r} must be true or false")
        checks.real("bound", self.bound, 1e-6, 1e30)
        checks.real("alpha", self.alpha, 0.0, 1e6)
        checks.positive("beta", self.beta)
        checks.integer("workers", self.workers, 1, 1024)
        check_kind(self.aggregate)
        if self.aggregate != MEAN and self.weigh_by_size:
            raise ValueError(
                f"weigh_by_size with aggregate = {self.aggregate!r}: a liar would choose its weight"
            )
        if self.order is not None and self.weigh_by_size:
            raise ValueError("weigh_by_size with an order: public weights would tell which user fills a slot")


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that one round passes to the next."""

    round: int
    weights: Vector
    bound: float
    optimizer: OptimizerState
    residuals: Mapping[int, Vector] = field(default_factory=dict)
    spent: Mapping[int, int] = field(default_factory=dict)  # reports sent by each client
    lost: int = -1  # a round that a crash interrupted: it is counted as spent and not repeated


def initial_state(weights: Vector, settings: Settings) -> State:
    """The state before the first round."""
    return State(round=0, weights=weights, bound=settings.bound, optimizer=settings.optimizer.initial())
