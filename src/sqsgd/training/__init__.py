"""Training: Algorithm 2 of the paper, the local engine, settings, rates and run folders."""

from sqsgd.training.algorithm import client_step, server_step
from sqsgd.training.engine import Problem, noise_seed, run
from sqsgd.training.rates import learning_rate
from sqsgd.training.settings import RunConfig, Settings
from sqsgd.training.state import Record, State, initial_state

__all__ = [
    "Problem",
    "Record",
    "RunConfig",
    "Settings",
    "State",
    "client_step",
    "initial_state",
    "learning_rate",
    "noise_seed",
    "run",
    "server_step",
]
