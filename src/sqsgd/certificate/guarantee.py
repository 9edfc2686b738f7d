"""The central (ε, δ) of a run in which every user reports once, in a secret order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
from typing import Any, Literal, get_args

from sqsgd import checks
from sqsgd.certificate.blanket_bound import BlanketBound, blanket_bound, generic_bound
from sqsgd.core import Scheme

Order = Literal["run", "round"]
MOST_COUNTED = 10**9  # more users hide better, but the bound is computed for at most so many
MOST_USERS = 2**53
_MOST_LOCAL = 64.0  # no number of users that is counted lowers a larger ε
_LEAST_DELTA = 1e-100  # smaller ones count as zero


@dataclass(frozen=True, kw_only=True)
class CentralGuarantee:
    """What is published is (``epsilon``, ``delta``)-differentially private if one user's data are replaced.

    That is for whoever sees what is published, under ``assumptions``. ``local_epsilon`` holds for each report
    without them, against everyone.

    >>> from sqsgd import central_guarantee, make_scheme
    >>> scheme = make_scheme("privunit-index", dim=3920, epsilon=8.0)
    >>> central_guarantee(scheme, users=100, delta=1e-6).sentence.partition("; ")[0]
    'local 8 against everyone'
    """

    epsilon: float
    delta: float
    users: int
    """Those who are counted: neither drop-outs nor colluding users."""
    order: Order
    bound: Literal["blanket", "generic", "local"]
    """The mechanism's own bound, the one for all ε-LDP mechanisms, or none: then ``epsilon`` is the local one."""
    local_epsilon: float
    assumptions: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The guarantee in a sentence, with ε rounded up."""
        local = f"local {self.local_epsilon:g} against everyone"
        if self.bound == "local":
            return f"{local}; for {self.users:,} users nothing smaller is certified"
        epsilon = float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(self.epsilon))
        return (
            f"{local}; central ({epsilon:g}, {self.delta:g}) for whoever sees only what is published, if the "
            f"operator keeps the order of the {self.users:,} users and their reports to itself"
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "assumptions": list(self.assumptions), "sentence": self.sentence}


def central_guarantee(
    scheme: Scheme,
    users: int,
    delta: float,
    order: Order = "run",
    dropouts: int = 0,
    colluding: int = 0,
) -> CentralGuarantee:
    """The central guarantee of reports of ``scheme``, one per user, whose order is uniform and secret.

    ``order`` says over which reports it is: those of the whole ``"run"``, or, if the users of a round are known,
    those of a ``"round"``. ``users`` is their number; for rounds of different sizes, the smallest. ``dropouts`` is the
    largest number of them who may not answer, because of anything but their data and their place in the order;
    the others are then in a uniform order over the answered slots, so that they alone are counted. (Reports that
    are lost whoever sends them, such as those of a failed round, need not be subtracted.) ``colluding`` users tell
    the attacker their slots and reports, and are not counted either. docs/proofs/shuffled-reports.md has the proof.

    The smaller of two bounds is returned: that of the mechanism, if it has two densities (``Mechanism.blanket``),
    and that of Feldman, McMillan and Talwar (2021) for all ε-LDP mechanisms; never more than the local ε.

    Guarantees
    ----------
    * ε is an upper bound in whole-number and ball arithmetic, rounded up, within 0.1 % of what its formula gives:
      tests/certificate/test_guarantee.py::test_the_table_of_values.
    * No attacker who sees all reports exceeds it, adaptive tasks included:
      tests/certificate/test_blanket_bound.py::test_no_adaptive_choice_exceeds_the_bound.

    >>> from sqsgd import make_scheme
    >>> found = central_guarantee(make_scheme("privunit-index", dim=3920, epsilon=4.0), users=60000, delta=1e-6)
    >>> found.bound, round(found.epsilon, 3), found.local_epsilon
    ('blanket', 0.138, 4.0)
    """
    counted, delta = _checked(scheme, users, delta, order, dropouts, colluding)
    local = scheme.privacy.epsilon
    epsilon: float = local
    bound: Literal["blanket", "generic", "local"] = "local"
    for name, candidate in bounds(scheme, counted, delta):
        # One evaluation tells whether the second bound can be smaller.
        if bound == "local" or candidate.holds(epsilon):
            found = candidate.epsilon(epsilon)
            epsilon, bound = (found, name) if found < epsilon else (epsilon, bound)
    return CentralGuarantee(
        epsilon=epsilon,
        delta=delta,
        users=counted,
        order=order,
        bound=bound,
        local_epsilon=local,
        assumptions=tuple(_assumptions(scheme, counted, order, dropouts, colluding)),
    )


def certifies(
    scheme: Scheme, epsilon: float, users: int, delta: float, *, dropouts: int = 0, colluding: int = 0
) -> bool:
    """Whether ``central_guarantee`` certifies ``epsilon``, which is quicker than to find the least one."""
    counted, delta = _checked(scheme, users, delta, "run", dropouts, colluding)
    if epsilon >= scheme.privacy.epsilon:
        return True
    return any(candidate.holds(epsilon) for _, candidate in bounds(scheme, counted, delta))


def bounds(
    scheme: Scheme, users: int, delta: float
) -> Iterator[tuple[Literal["blanket", "generic"], BlanketBound]]:
    """The bounds that apply, the likely smaller one first; none where no δ or no other user helps."""
    local = scheme.privacy.epsilon
    if users > 1 and delta >= _LEAST_DELTA and local <= _MOST_LOCAL:
        if scheme.mechanism.blanket:
            yield "blanket", blanket_bound(scheme.mechanism.blanket, users, delta)
        yield "generic", generic_bound(local, users, delta)


def _checked(
    scheme: Scheme, users: int, delta: float, order: str, dropouts: int, colluding: int
) -> tuple[int, float]:
    """The number of users that are counted, and δ; ValueError where there is no guarantee to state."""
    if not isinstance(scheme, Scheme):
        raise ValueError(f"scheme = {scheme!r} must be a sqsgd.Scheme")
    if order not in get_args(Order):
        raise ValueError(f"order = {order!r} must be one of {', '.join(get_args(Order))}")
    if not scheme.privacy.is_pure_local:
        raise ValueError(
            f"scheme = {scheme.name!r} has no pure local guarantee (notion {scheme.privacy.notion!r}); a central "
            "guarantee of reports in a secret order starts from one"
        )
    if scheme.residual:
        raise ValueError(
            f"scheme = {scheme.name!r} sends a block and keeps a residual for later reports; where every user reports "
            "once, use a scheme that sends the whole vector, such as 'privunit-index' or 'sqsgd-stateless'"
        )
    users = checks.integer("users", users, 1, MOST_USERS)
    dropouts = checks.integer("dropouts", dropouts, 0, MOST_USERS)
    colluding = checks.integer("colluding", colluding, 0, MOST_USERS)
    if dropouts + colluding >= users:
        raise ValueError(f"dropouts + colluding = {dropouts + colluding} leaves none of users = {users}")
    delta = checks.real("delta", delta, 0.0, 1.0)
    if delta == 1.0:
        raise ValueError("delta = 1.0 must be below 1: every mechanism is (0, 1)-differentially private")
    return min(users - dropouts - colluding, MOST_COUNTED), delta


def _assumptions(scheme: Scheme, users: int, order: Order, dropouts: int, colluding: int) -> Iterator[str]:
    where = {"run": "over the whole run", "round": "within each round"}[order]
    yield "each user sends one report in all"
    yield f"the order of at least {users:,} users {where} is uniform, independent of their data, and stays secret"
    yield "tasks, seeds and messages depend on the round and the slot, never on who fills the slot"
    yield "whoever assigns slots and receives reports by user is trusted to reveal neither; against them ε is local"
    yield "when a report arrives or is published tells nothing about who sent it"
    yield (
        "whether a user answers depends neither on the user's data nor on the user's slot"
        + (f", and at most {dropouts:,} do not answer" if dropouts else ", and all answer")
    )
    yield f"at most {colluding:,} other users reveal their slots" if colluding else "no other user reveals a slot"
    if scheme.privacy.arithmetic == "real":
        yield f"the reports of {scheme.name!r} are ε-private in real arithmetic only"
