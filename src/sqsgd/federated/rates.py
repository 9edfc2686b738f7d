"""Default learning rates of all schemes: as large as the noise of the reports allows."""

from __future__ import annotations

import math

from sqsgd.core import Scheme
from sqsgd.federated.optimizers import OPTIMIZERS

_NOISE, _COORDINATE_NOISE, _UNEVEN_NOISE, _SPIKES = 0.1, 0.08, 0.07, 0.04
_LONGEST, _LONGEST_CHOSEN, _LONG = 1.25, 2.0, 3.0
_STEEPEST, _TOLERATED, _UNBOUNDED, _OF_BLOCK = 0.3, 25.0, 3.0, 0.85
_SCORE_NOISE, _LARGEST_SOFTMAX_RATE = 1.4, 200.0
_PRETRAINED_NOISE, _PRETRAINED_BOUND = 0.7, 0.25


def learning_rate(
    scheme: Scheme, clients: int, optimizer: str = "sgd", *, rounds: int = 600, bound: float | None = None
) -> float:
    """The default learning rate of the first round for any budget; it then falls linearly to zero.

    If a fixed bound decides the noise, it is so small that the noise of all rounds moves a weight by 0.1 at
    the end (one standard deviation; 0.08 if the bound limits coordinates; 0.07 if reports differ in length;
    0.04 if noise hits few weights at a time, hard, because no rotation spreads it), and that the first step
    is at most 1.25 long, 2 if it is of the largest coordinates alone. Where longer gradients bring more
    noise, it is that of one three times as long as the bound. If the noise is relative to the gradient,
    because the bound follows norms in the reports or there is none, the rate is
    0.3 / (1 + NMSE / (25 clients)), where NMSE is the relative squared error of one report; with 3 instead of
    25 if no bound keeps it down. If it is the error on a block alone, which the bound follows, the rate is
    0.3 / (1 + NMSE / clients)^0.85. docs/results.md says how the constants were chosen.

    If clients accumulate a velocity of momentum 0.9, about five gradients add up before it is forgotten with
    the coordinates that are sent, so it is a fifth of that. The server's momentum and adam take a hundredth:
    they keep moving a coordinate between its reports, which hold many gradients and come once in dim / n
    rounds.
    """
    length = (bound or scheme.first_bound) * scheme.mechanism.longest
    if scheme.follows_norms:
        tolerated = _TOLERATED if scheme.mechanism.has_symbol else _UNBOUNDED
        tolerated, power = (1.0, _OF_BLOCK) if scheme.sends_block else (tolerated, 1.0)
        error = scheme.nmse / (tolerated * clients)
        rate = _STEEPEST / (1 + error) ** power if math.isfinite(error) else 0.1
    else:
        longest = _LONGEST_CHOSEN if scheme.mechanism.chooses else _LONGEST
        steepest = math.inf if scheme.mechanism.bounds_coordinates else longest / length
        rate = min(steepest, _noise_rate(scheme, clients, rounds, length, _tolerated_noise(scheme)))
    return rate * min(1.0, 2 * (1 - scheme.momentum)) * OPTIMIZERS[optimizer].default_rate


def _tolerated_noise(scheme: Scheme) -> float:
    if scheme.mechanism.fixed_length:
        return _NOISE
    if scheme.mechanism.bounds_coordinates:
        return _COORDINATE_NOISE
    return _UNEVEN_NOISE if any(transform.spreads for transform in scheme.transforms) else _SPIKES


def earlier_rate(scheme: Scheme, clients: int, optimizer: str = "sgd") -> float:
    """The constant rate that runs of earlier versions began with where reports differ in length."""
    error = scheme.mechanism.relative_error(0.5)
    rate = 0.25 / (1 + error / clients) if math.isfinite(error) else 0.1
    return rate * (1 - scheme.momentum) * OPTIMIZERS[optimizer].default_rate


def change_rate(scheme: Scheme, clients: int, optimizer: str = "sgd") -> float:
    """The default rate for changes of a model, which hold the app's own small rate, in reports with norms.

    Constant, and four times ``earlier_rate`` (docs/flower.md).
    """
    return 4 * earlier_rate(scheme, clients, optimizer)


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
    return bound, rate * (1.0 if decays else 0.5)


def _noise_rate(scheme: Scheme, clients: int, rounds: int, bound: float, noise: float) -> float:
    """The rate at which the noise of T rounds moves each of d weights by ``noise``.

    A round's noise has the energy bound² NMSE / clients; a rate that falls linearly adds up T / 3 of them.
    """
    long = _LONG if scheme.mechanism.keeps_length else 1.0
    energy = max(long**2 * scheme.nmse_at(long), 1e-9)
    return noise * math.sqrt(3 * clients * scheme.dim / (rounds * energy)) / bound
