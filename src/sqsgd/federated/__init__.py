"""Federated training: Algorithm 2 of the paper, the local engine, optimizers, bounds and learning rates."""

from sqsgd.federated.algorithm import server_step
from sqsgd.federated.optimizers import Optimizer
from sqsgd.federated.problems import Problem
from sqsgd.federated.rates import learning_rate
from sqsgd.federated.rounds import one_round
from sqsgd.training.algorithm import client_step, sent_coordinates
from sqsgd.training.engine import noise_seed, run
from sqsgd.training.settings import Settings
from sqsgd.training.state import Record, State, initial_state

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
