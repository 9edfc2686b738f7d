"""Default learning rates of all schemes: as large as the noise of the reports allows."""

import math

from sqsgd.core import Scheme

_NOISE, _COORDINATE_NOISE, _UNEVEN_NOISE, _SPIKES = 0.1, 0.08, 0.07, 0.04
_LONGEST_STEP, _LONGEST_CHOSEN, _LONG_GRADIENT = 1.25, 2.0, 3.0
_STEEPEST, _TOLERATED, _UNBOUNDED, _OF_BLOCK = 0.3, 25.0, 3.0, 0.85
ONCE_BOUND = {"softmax": 0.5, "pretrained": 0.25, "classes": 0.4, "numbers": 0.15}
_ONCE_NOISE = {"softmax": 1.4, "pretrained": 0.7, "classes": 2.8, "numbers": 0.3}
"""The first bound and the tolerated noise of a score where each client answers once: for a softmax on
features, from zero or pretrained on public data, and for the classes or numbers of a scaled table."""
_LARGEST_ONCE_RATE = {"numbers": 20.0}  # above it, steps overshoot; the others': 200
RECORD_BOUND = {"softmax": 0.3, "pretrained": 0.1, "classes": 0.3, "numbers": 0.1, "other": 0.3}
_RECORD_NOISE = {"softmax": 1.4, "pretrained": 0.7, "classes": 1.4, "numbers": 0.3, "other": 0.1}
"""Per record: the norm that gradients are clipped to, and the noise of a weight over all rounds."""
_AVERAGED = 200  # rounds from which on averages, which lose less of the signal, take less noise
_STATEFUL = 0.01
"""Of SGD's rate, for momentum and adam, which keep moving a coordinate between its reports."""


def learning_rate(
    scheme: Scheme, clients: int, optimizer: str = "sgd", *, rounds: int = 600, bound: float | None = None
) -> float:
    """Return the default learning rate of the first round for any budget. It then falls linearly to zero.

    * If a fixed bound decides the noise, the noise of all rounds moves a weight by 0.1 (one standard
      deviation; 0.08 if the bound limits coordinates, 0.07 if reports differ in length, 0.04 if no rotation
      spreads the noise), and the first step is at most 1.25 long, 2 if only the largest coordinates are sent.
    * If the noise is relative to the gradient, the rate is 0.3 / (1 + NMSE / (t clients)): t = 25 if a bound
      follows the norms, 3 if there is none; for a block alone 0.3 / (1 + NMSE / clients)^0.85.

    Clients that accumulate a velocity of momentum 0.9 add up about five gradients: a fifth of that. If they
    report a running average, more than T = 200 rounds take (200 / T)^½ of the noise: 0.058 for 600.
    tests/training/test_rates.py::test_every_default_on_digits_is_within_two_points_of_the_best_of_a_grid.
    """
    mechanism, length = scheme.mechanism, (bound or scheme.first_bound) * scheme.mechanism.longest
    if scheme.follows_norms:
        tolerated, power = (_TOLERATED if mechanism.traits.has_symbol else _UNBOUNDED), 1.0
        if scheme.sends_block:
            tolerated, power = 1.0, _OF_BLOCK
        error = scheme.nmse / (tolerated * clients)
        rate = _STEEPEST / (1 + error) ** power if math.isfinite(error) else 0.1
    else:
        noise = _UNEVEN_NOISE if any(transform.spreads for transform in scheme.transforms) else _SPIKES
        if mechanism.traits.fixed_length:
            noise = _NOISE
        elif mechanism.traits.bounds_coordinates:
            noise = _COORDINATE_NOISE
        rate = _noise_rate(scheme, clients, rounds, length, noise)
        if not mechanism.traits.bounds_coordinates:  # a range, which no gradient fills
            rate = min(rate, (_LONGEST_CHOSEN if mechanism.traits.chooses else _LONGEST_STEP) / length)
    if scheme.average:
        rate *= math.sqrt(min(1.0, _AVERAGED / rounds))
    return rate * min(1.0, 2 * (1 - scheme.momentum)) * (1.0 if optimizer == "sgd" else _STATEFUL)


def change_rate(scheme: Scheme, clients: int, optimizer: str = "sgd") -> float:
    """The constant default rate for changes of a model, which hold the app's own small rate, with norms."""
    error = scheme.mechanism.relative_error(0.5)
    rate = 1 / (1 + error / clients) if math.isfinite(error) else 0.4
    return rate * (1 - scheme.momentum) * (1.0 if optimizer == "sgd" else _STATEFUL)


def softmax_rate(scheme: Scheme, clients: int, rounds: int, bound: float, *, rule: str = "softmax") -> float:
    """Return the default learning rate for a linear model on rows of unit length where each client answers
    once.

    The noise of all rounds then moves a class score by 1.4 (one standard deviation), or by 0.7 if the softmax
    was trained on public data. The constants were chosen on Fashion-MNIST and held-out images of MNIST; those
    of tables (a score by 2.8, a number by 0.3, before the steps contract it) on three drawn tables.
    """
    rate = _noise_rate(scheme, clients, rounds, bound, _ONCE_NOISE[rule])
    return min(_LARGEST_ONCE_RATE.get(rule, 200.0), rate)


def record_rate(scheme: Scheme, clients: int, bound: float, rule: str) -> float:
    """The default learning rate per record: the noise of all rounds moves a weight as far as weights go."""
    rounds, noise = scheme.privacy.reports, _RECORD_NOISE[rule]
    rate = _noise_rate(scheme, clients, rounds, bound, noise) * scheme.mechanism.traits.records
    return min(_LARGEST_ONCE_RATE.get(rule, 400.0), rate)


def _noise_rate(scheme: Scheme, clients: int, rounds: int, bound: float, noise: float) -> float:
    """Return the rate at which the noise of T rounds moves each of d weights by ``noise``.

    A round's noise has the energy bound² NMSE / clients. A rate that falls linearly adds up T / 3 of them.
    """
    long = _LONG_GRADIENT if scheme.mechanism.keeps_length else 1.0
    energy = max(long**2 * scheme.nmse_at(long), 1e-9)
    return noise * math.sqrt(3 * clients * scheme.dim / (rounds * energy)) / bound
