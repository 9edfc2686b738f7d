"""The local ε for a wanted central one."""

from __future__ import annotations

from collections.abc import Callable

from sqsgd import checks
from sqsgd.certificate.blanket_bound import TOLERANCE
from sqsgd.certificate.guarantee import certifies
from sqsgd.core import Scheme

LEAST = 0.01
"""The least local ε that schemes accept."""


def local_epsilon_for(
    make: Callable[[float], Scheme],
    central: float,
    users: int,
    delta: float,
    *,
    dropouts: int = 0,
    colluding: int = 0,
    most: float = 12.0,
) -> float:
    """The largest local ε, up to 0.1 %, whose scheme ``make(ε)`` has a central ε of at most ``central``.

    The other arguments are those of ``central_guarantee``. ``most`` limits the search. A local ε of
    ``central`` always suffices, so that the result is never below it, unless ``most`` is.

    Guarantees
    ----------
    * ``central_guarantee`` of the result is at most ``central``:
      tests/certificate/test_local_choice.py::test_what_is_chosen_keeps_the_central_epsilon.

    >>> from sqsgd import central_guarantee, make_scheme
    >>> make = lambda epsilon: make_scheme("privunit-index", dim=3920, epsilon=epsilon)
    >>> local = local_epsilon_for(make, 0.5, users=60000, delta=1e-6)
    >>> round(local, 1), central_guarantee(make(local), users=60000, delta=1e-6).epsilon <= 0.5
    (6.2, True)
    """
    central, most = checks.positive("central", central), checks.positive("most", most)
    wanted = central * (1 - 2 * TOLERANCE)  # because the least central ε is found to that accuracy

    def enough(epsilon: float) -> bool:
        return certifies(make(epsilon), wanted, users, delta, dropouts=dropouts, colluding=colluding)

    if central >= most or enough(most):
        return most
    low, high = max(central, LEAST), most
    if central < LEAST and not enough(LEAST):
        raise ValueError(
            f"central = {central:g} needs a local epsilon below {LEAST}, or more users than {users:,}"
        )
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low
