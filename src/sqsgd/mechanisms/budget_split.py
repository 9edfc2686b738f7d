"""How a privacy budget is split between coordinates, or between a direction and its norm."""

from __future__ import annotations

from sqsgd import checks
from sqsgd.mechanisms.channel import LEAST_EPSILON
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.numerics.epsilon_sums import divided, take_away

_NORM_SHARES = ((1000.0, 10.0), (60.0, 6.0), (20.0, 4.0), (8.0, 2.0), (4.0, 1.5), (2.0, 1.0))


def equal_share(epsilon: float, parts: int) -> float:
    """The largest float that ``parts`` times never exceeds epsilon."""
    share = divided(epsilon, parts)
    if share < LEAST_EPSILON:
        raise ValueError(
            f"epsilon = {epsilon!r} over {parts} coordinates leaves {share:g} for each; "
            f"at most {int(epsilon / LEAST_EPSILON)} coordinates can be sent"
        )
    return share


def norm_share(epsilon: float) -> float:
    """ε2: the norm's share of the budget.

    Near the minimum of (1 + Var(norm) / norm²) / m(ε - ε2)², which hardly depends on the dimension. It is
    a table so that client and server agree to the last bit.
    """
    return next((share for least, share in _NORM_SHARES if epsilon >= least), epsilon / 2)


def split(epsilon: float, norm_epsilon: float | None) -> tuple[float, ScalarDP]:
    """ε1 for the direction, and ScalarDP for norm / bound with ``norm_epsilon`` (default: ``norm_share``).

    >>> split(400.0, None)
    (394.0, ScalarDP(maximum=1.0, epsilon=6.0, levels=8))
    """
    if norm_epsilon is not None:
        if norm_epsilon == 0:
            raise ValueError("norm_epsilon = 0: only sparse codes do without a norm")
        norm_epsilon = checks.real("norm_epsilon", norm_epsilon, 1e-3 * epsilon, 0.999 * epsilon)
    share = norm_share(epsilon) if norm_epsilon is None else norm_epsilon
    return take_away(epsilon, share), ScalarDP(1.0, share)
