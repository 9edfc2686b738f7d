"""What a budget cannot teach: the rounds that it takes until gradients show above the noise of reports."""

from __future__ import annotations

import math

from sqsgd.core import Scheme

_FAINT, _FEW = 0.025, 40.0
_FAINT_SOFTMAX, _FEW_SOFTMAX = 0.005, 20.0
_UNSTABLE = 100.0


def least_rounds(scheme: Scheme, clients: int, bound: float, *, softmax: bool = False) -> float:
    """Rounds before which little or nothing is learned, at any rate; below 1 if one is enough.

    The mean of all reports about a weight has the error NMSE / (clients rounds) of a gradient as long as the
    bound; a weight is in the share n / dim of the reports if they are about blocks. Noise under a fixed bound
    spreads over all d weights, so what counts is that error over d. On digits, LeNet-5 reaches 65 % at
    0.0054, 30 % at 0.021 and not 22 % from 0.033 on; a linear model on pixels 36 to 50 % at 0.0032 and at
    most 37 % from 0.025 on, with some schemes 16 %; a ``softmax`` on features, where each user answers once,
    18 to 36 % at 0.0016 and at most 27 % from 0.006 on. With few weights the error itself counts: 36 of them
    separate four classes by 60 to 90 % at 9, by 50 to 70 % at 13 and by 28 % at 50. Noise that is relative to
    the gradient grows with what it does to the weights, whatever d: 70 % at 10, and nothing at 200. Where
    the mechanism chooses what it sends, the error is that of the estimate scaled to be unbiased.

    tests/training/test_runs.py::test_what_cannot_be_learned_is_told_before.
    """
    error, mechanism = scheme.nmse, scheme.mechanism
    if mechanism.chooses:
        error = mechanism.unbiased_error(1.0)
    elif mechanism.bounds_coordinates and not scheme.follows_norms:  # in units of the bound
        error *= (bound * mechanism.longest) ** 2
    elif scheme.sends_block:
        error *= scheme.dim / mechanism.dim
    if scheme.follows_norms:
        return error / (_UNSTABLE * clients)
    share, few = (_FAINT_SOFTMAX, _FEW_SOFTMAX) if softmax else (_FAINT, _FEW)
    return error / (max(share * scheme.dim, few) * clients)


def outlook(scheme: Scheme, clients: int, rounds: int, bound: float) -> str:
    """One sentence if little or nothing is predicted to be learned, else an empty text."""
    needed = least_rounds(scheme, clients, bound)
    if not needed > rounds:
        return ""
    least = (
        f"at least {math.ceil(needed):,} rounds are needed" if needed < 1e12 else "no number of rounds helps"
    )
    return (
        f"little or nothing will be learned in {rounds:,} round{'s' * (rounds != 1)} of {clients:,} "
        f"client{'s' * (clients != 1)}: the reports are too noisy; {least}, or more epsilon or clients"
    )


def once_outlook(scheme: Scheme, users: int) -> str:
    """The same for a softmax on features, to which each user reports once."""
    needed = least_rounds(scheme, 1, scheme.first_bound, softmax=True)
    if not needed > users:
        return ""
    return (
        f"little or nothing will be learned from {users:,} reports: they are too noisy; at least "
        f"{math.ceil(needed):,} users are needed, or more epsilon"
    )
