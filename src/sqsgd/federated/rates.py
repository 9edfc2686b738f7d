"""Default learning rates: smaller where the mean of the reports is noisier."""

from __future__ import annotations

import math

from sqsgd.core import Scheme
from sqsgd.federated.optimizers import OPTIMIZERS


def learning_rate(scheme: Scheme, clients: int, optimizer: str = "sgd") -> float:
    """The default learning rate for any budget: smaller where the mean of the reports is noisier.

    0.25 / (1 + NMSE / clients), where NMSE is the relative squared error of one report on what it sends.
    If clients accumulate a velocity, ten gradients add up, so it is a tenth of that. The server's momentum
    and adam take a hundredth: they keep moving a coordinate between its reports, which hold many gradients
    and come once in dim / n rounds.
    """
    error = scheme.mechanism.relative_error(0.5)
    rate = 0.25 / (1 + error / clients) if math.isfinite(error) else 0.1
    rate *= 1 - scheme.momentum
    return rate * OPTIMIZERS[optimizer].default_rate


def softmax_rate(scheme: Scheme, clients: int, rounds: int, bound: float, decay: bool) -> float:
    """The default learning rate for a softmax on unit features where each client answers once.

    At the end, the noise of all rounds then moves a class score by 1.4 (one standard deviation) at any
    budget: with n reports in total, T rounds and d weights it is rate bound T sqrt(NMSE / (3 n d)) under a
    rate that falls linearly. It is at most 200; above that, steps overshoot. Both constants were chosen on
    Fashion-MNIST.
    """
    travel = 1.4 * math.sqrt(3 * clients * scheme.dim / max(scheme.nmse, 1e-9)) / bound
    return min(200.0, travel / rounds) * (1.0 if decay else 0.5)
