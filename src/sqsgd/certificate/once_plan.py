"""What one report per user buys: from a local or a central ε to a scheme, its error and both guarantees."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqsgd import checks
from sqsgd.certificate.guarantee import CentralGuarantee, Order, central_guarantee
from sqsgd.certificate.local_choice import local_epsilon_for
from sqsgd.core import Scheme
from sqsgd.planner import automatic_scheme
from sqsgd.schemes import forecast, make_scheme


@dataclass(frozen=True, kw_only=True)
class OncePlan:
    """A scheme for runs in which each user reports once, and what it guarantees."""

    scheme: str
    dim: int
    users: int
    epsilon: float
    """The local ε of the report."""
    message_bytes: int
    nmse: float
    """The error of one report, relative to |x| = bound."""
    nmse_mean: float
    """The error of the mean over all users."""
    warning: str
    """If little or nothing will be learned by a softmax on features of unit length; else empty."""
    central: CentralGuarantee

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "central": self.central.to_dict()}


def plan_once(
    *,
    dim: int,
    bits: int,
    users: int,
    delta: float,
    epsilon: float | None = None,
    central: float | None = None,
    order: Order = "run",
    dropouts: int = 0,
    colluding: int = 0,
) -> OncePlan:
    """The automatic scheme at a local ``epsilon``, or at the largest one that keeps a ``central`` ε.

    Guarantees
    ----------
    * The central ε is at most ``central``, and the scheme is the one that ``scheme = "auto"`` trains with:
      tests/certificate/test_once_plan.py::test_the_plan_keeps_what_was_asked_for.

    >>> chosen = plan_once(dim=3920, bits=256, users=60000, delta=1e-6, central=0.5)
    >>> chosen.scheme, chosen.message_bytes, round(chosen.epsilon, 1), chosen.central.epsilon <= 0.5
    ('privunit-index', 7, 6.2, True)
    """
    if (epsilon is None) == (central is None):
        raise ValueError(f"set either epsilon = {epsilon} or central = {central}")

    def make(local: float) -> Scheme:
        name = automatic_scheme(dim=dim, epsilon=local, bits=bits)
        return make_scheme(name, dim=dim, epsilon=local, bits=bits)

    if epsilon is None:
        epsilon = local_epsilon_for(
            make, checks.positive("central", central), users, delta, dropouts=dropouts, colluding=colluding
        )
    scheme = make(epsilon)
    guarantee = central_guarantee(scheme, users, delta, order, dropouts, colluding)
    return OncePlan(
        scheme=scheme.name,
        dim=dim,
        users=users,
        epsilon=scheme.privacy.epsilon,
        message_bytes=scheme.bits // 8,
        nmse=scheme.nmse,
        nmse_mean=scheme.nmse / users,
        warning=forecast.once_outlook(scheme, users),
        central=guarantee,
    )
