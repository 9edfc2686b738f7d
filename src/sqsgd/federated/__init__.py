"""Federated training: Algorithm 2 of the paper, the server's optimizers, bounds and learning rates."""

from sqsgd.federated.algorithm import (
    Problem,
    Record,
    Settings,
    State,
    client_step,
    initial_state,
    noise_seed,
    one_round,
    run,
    sent_coordinates,
    server_step,
)
from sqsgd.federated.optimizers import Optimizer
from sqsgd.federated.rates import learning_rate

__all__ = [
    "Optimizer",
    "Problem",
    "Record",
    "Settings",
    "State",
    "client_step",
    "initial_state",
    "learning_rate",
    "noise_seed",
    "one_round",
    "run",
    "sent_coordinates",
    "server_step",
]
