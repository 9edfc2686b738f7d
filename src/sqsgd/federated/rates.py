"""Default learning rates: smaller where the mean of the reports is noisier."""

from __future__ import annotations

import math

from sqsgd.core import Scheme
from sqsgd.federated.optimizers import OPTIMIZERS

_NOISE, _LONGEST = 0.1, 1.25
_SCORE_NOISE, _LARGEST_SOFTMAX_RATE = 1.4, 200.0
_PRETRAINED_NOISE, _PRETRAINED_BOUND = 0.7, 0.25


def learning_rate(
    scheme: Scheme, clients: int, optimizer: str = "sgd", *, rounds: int = 600, bound: float | None = None
) -> float:
    """The default learning rate for any budget: smaller where the mean of the reports is noisier.

    If reports hold norms, 0.25 / (1 + NMSE / clients), where NMSE is the relative squared error of one report
    on what it sends. If all reports are as long as the bound, so are the steps: the first is 1.25 long, or
    so short that the noise of all rounds moves a weight by 0.1 (one standard deviation) at the end, under a
    rate that falls linearly to zero. The constants were chosen on Fashion-MNIST.

    If clients accumulate a velocity, ten gradients add up, so it is a tenth of that. The server's momentum
    and adam take a hundredth: they keep moving a coordinate between its reports, which hold many gradients
    and come once in dim / n rounds.
    """
    if scheme.mechanism.fixed_length:
        bound = bound or scheme.first_bound
        rate = min(_LONGEST / bound, _noise_rate(scheme, clients, rounds, bound, _NOISE))
    else:
        error = scheme.mechanism.relative_error(0.5)
        rate = 0.25 / (1 + error / clients) if math.isfinite(error) else 0.1
    return rate * (1 - scheme.momentum) * OPTIMIZERS[optimizer].default_rate


def softmax_rate(
    scheme: Scheme, clients: int, rounds: int, bound: float, *, pretrained: bool = False
) -> float:
    """The default learning rate for a softmax on unit features where each client answers once.

    At the end, the noise of all rounds then moves a class score by 1.4 (one standard deviation) at any
    budget, under a rate that falls linearly to zero. It is at most 200; above that, steps overshoot. Both
    constants were chosen on Fashion-MNIST. ``clients`` are those of one round. A softmax that was trained on
    public data (``pretrained``) has less to learn: the noise then moves a score by 0.7, which was chosen on
    held-out training images of MNIST.
    """
    noise = _PRETRAINED_NOISE if pretrained else _SCORE_NOISE
    return min(_LARGEST_SOFTMAX_RATE, _noise_rate(scheme, clients, rounds, bound, noise))


def bound_and_rate(
    scheme: Scheme,
    *,
    clients: int,
    rounds: int,
    optimizer: str,
    decays: bool,
    softmax: bool,
    pretrained: bool = False,
    bound: float = 0.0,
    lr: float = 0.0,
) -> tuple[float, float]:
    """The bound of the first round and the learning rate; 0 is replaced by the default.

    ``clients`` are those of one round. ``softmax``: each answers once, for a softmax on unit features, which
    may be ``pretrained`` on public data.
    """
    first = _PRETRAINED_BOUND if pretrained else 0.5
    bound = bound or (first if softmax else scheme.first_bound)
    if lr:
        return bound, lr
    if softmax:
        rate = softmax_rate(scheme, clients, rounds, bound, pretrained=pretrained)
    else:
        rate = learning_rate(scheme, clients, optimizer, rounds=rounds, bound=bound)
    halved = not decays and (softmax or scheme.mechanism.fixed_length)
    return bound, rate * (0.5 if halved else 1.0)


def _noise_rate(scheme: Scheme, clients: int, rounds: int, bound: float, noise: float) -> float:
    """The rate at which the noise of T rounds moves each of d weights by ``noise``.

    A round's noise has the energy bound² NMSE / clients; a rate that falls linearly adds up T / 3 of them.
    """
    return noise * math.sqrt(3 * clients * scheme.dim / (rounds * max(scheme.nmse, 1e-9))) / bound
