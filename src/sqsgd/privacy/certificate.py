"""The central (ε, δ) of a run in which every user reports once, in a secret order; plans for such runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from sqsgd._internal import checks
from sqsgd._internal.exact import four_digits, total
from sqsgd.core import Scheme
from sqsgd.privacy.blanket import TOLERANCE, BlanketBound, blanket_bound, generic_bound
from sqsgd.privacy.planner import automatic_scheme, once_outlook
from sqsgd.schemes import make_scheme

Order = Literal["run", "round"]
Bound = Literal["blanket", "generic", "local"]
MOST_USERS, MOST_COUNTED = 2**53, 10**9  # more users hide better; the bound is computed for at most so many
_MOST_LOCAL = 64.0  # no number of users that is counted lowers a larger ε
MOST_REPORTS = 10**6  # of a user
_LEAST_DELTA = 1e-100  # smaller ones count as zero
LEAST = 0.01  # the least local ε that schemes accept


@dataclass(frozen=True, kw_only=True)
class CentralGuarantee:
    """The published models are (``epsilon``, ``delta``)-DP if one user's data are replaced.

    This holds against those who see only the models, under ``assumptions``. ``local_epsilon`` holds for each
    report against everyone, without them.
    """

    epsilon: float
    delta: float
    users: int
    """Those who are counted: neither drop-outs nor colluding users."""
    order: Order
    bound: Bound
    """The mechanism's own bound, that for all mechanisms, or none: then ``epsilon`` is the local one."""
    local_epsilon: float
    """Of all reports of a user together."""
    assumptions: tuple[str, ...]
    reports: int = 1
    """Of each user."""
    linked: str = ""
    """Why the reports of a user can be linked to each other; empty if they cannot."""

    @property
    def sentence(self) -> str:
        """The guarantee in a sentence, with ε rounded up."""
        reports = f" for all {self.reports:,} reports of a user" * (self.reports > 1)
        local = f"local {self.local_epsilon:g}{reports} against everyone"
        users = f"{self.users:,} users{' of a round' * (self.order == 'round')}"
        if self.bound == "local":
            return f"{local}; for {users} nothing smaller is certified"
        delta = repr(self.delta).replace("e-0", "e-")
        return (
            f"{local}; central ({four_digits(self.epsilon)}, {delta}) for whoever sees only the models, if "
            f"the operator keeps the order of the {users} and their reports to itself"
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "assumptions": list(self.assumptions), "sentence": self.sentence}


def central_guarantee(
    scheme: Scheme,
    users: int,
    delta: float,
    order: Order = "run",
    reports: int = 1,
    dropouts: int = 0,
    colluding: int = 0,
    *,
    linked: str = "",
) -> CentralGuarantee:
    """The central guarantee of reports of ``scheme`` whose order is uniform and secret.

    Each user sends ``reports`` of them, each in a new order that is independent of the others.

    It is the smaller of two bounds, for mechanisms with two densities and for all, and at most the local ε:
    docs/proofs/shuffled-reports.md.

    Args:
        scheme: A scheme with pure local privacy and without a residual.
        users: The number of reports in the secret order; for rounds, in the smallest round.
        delta: The δ of the guarantee, below 1.
        order: Which reports are in it: all of the ``"run"``, or, if rounds are known, of a ``"round"``.
        reports: The number of reports of each user: one in each of as many passes through all users, or,
            with the order of a ``"round"``, also all of them in the round in which the user takes part.
        dropouts: The most users who may not answer, for reasons other than their data and slot; not counted.
        colluding: Users who tell the attacker their slots and reports; not counted either.
        linked: Why the reports of a user can be linked to each other, such as "one order for all passes" or
            "one connection"; they then count as one report of a larger local ε. Empty if they cannot.

    Returns:
        The guarantee with the least certified ε, and its assumptions.

    Raises:
        ValueError: If a value is out of range, or the scheme has no guarantee from which one could follow.

    Guarantees
    ----------
    * ε is never below the formulas, and within about one percent of them:
      tests/privacy/test_blanket.py::test_the_bound_is_just_above_the_exact_sum,
      tests/privacy/test_certificate.py::test_the_table_of_values.
    * No attacker who sees all reports and chooses the tasks exceeds it:
      tests/privacy/test_blanket.py::test_no_adaptive_choice_exceeds_the_bound.

    >>> from sqsgd import make_scheme
    >>> scheme = make_scheme("privunit-index", dim=3920, epsilon=4.0)
    >>> found = central_guarantee(scheme, users=60000, delta=1e-6)
    >>> found.bound, round(found.epsilon, 3), found.local_epsilon
    ('blanket', 0.138, 4.0)
    """
    counted, delta = _checked(scheme, users, delta, order, dropouts, colluding)
    reports = checks.integer("reports", reports, 1, MOST_REPORTS)
    local = total(scheme.privacy.epsilon, reports)
    if reports == 1:
        epsilon, bound = _least(_bounds(scheme, counted, delta), local)
    elif linked:
        epsilon, bound = _least(_generic(local, counted, delta), local)
    else:
        epsilon, bound = _least(
            _bounds(scheme, counted, math.nextafter(delta / reports, 0.0)), scheme.privacy.epsilon
        )
        epsilon = total(epsilon, reports)
    return CentralGuarantee(
        epsilon=epsilon,
        delta=delta,
        users=counted,
        order=order,
        bound=bound,
        local_epsilon=local,
        assumptions=tuple(_assumptions(scheme, counted, order, reports, linked, dropouts, colluding)),
        reports=reports,
        linked=linked if reports > 1 else "",
    )


def _least(bounds: Iterable[tuple[Bound, BlanketBound]], local: float) -> tuple[float, Bound]:
    """The least ε of the bounds and of the local ε, and its name."""
    epsilon = local
    bound: Bound = "local"
    for name, candidate in bounds:
        # One evaluation tells whether the second bound can be smaller.
        if bound == "local" or candidate.holds(epsilon):
            found = candidate.epsilon(epsilon)
            epsilon, bound = (found, name) if found < epsilon else (epsilon, bound)
    return epsilon, bound


def _bounds(scheme: Scheme, users: int, delta: float) -> Iterator[tuple[Bound, BlanketBound]]:
    """The bounds that apply, the likely smaller one first; none where neither δ nor other users help."""
    generic = list(_generic(scheme.privacy.epsilon, users, delta))
    if generic and scheme.mechanism.traits.blanket:
        yield "blanket", blanket_bound(scheme.mechanism.traits.blanket, users, delta)
    yield from generic


def _generic(local: float, users: int, delta: float) -> Iterator[tuple[Bound, BlanketBound]]:
    """The bound for every mechanism of a local ε, if it is not vain."""
    if users > 1 and delta >= _LEAST_DELTA and local <= _MOST_LOCAL:
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
            f"scheme = {scheme.name!r} has no pure local guarantee (notion {scheme.privacy.notion!r}), "
            "from which a central one could follow"
        )
    if scheme.residual:
        raise ValueError(
            f"scheme = {scheme.name!r} keeps a residual for later reports; where each user reports once, use "
            "one that sends the whole vector, such as 'privunit-index' or 'sqsgd-stateless'"
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


def _assumptions(
    scheme: Scheme, users: int, order: Order, reports: int, linked: str, dropouts: int, colluding: int
) -> Iterator[str]:
    where = {"run": "over the whole run", "round": "within each round"}[order]
    answers = f"at most {dropouts:,} do not answer" if dropouts else f"{users:,} or more do"
    if reports == 1:
        yield "each user sends one report in all"
    elif linked:
        yield f"each user sends at most {reports:,} reports in all, which count as one: {linked}"
    else:
        yield f"each user sends at most {reports:,} reports in all"
        yield "each of them has an order of its own, independent of the others; nothing links two of them"
    yield f"the order of {users:,} users or more {where} is uniform, independent of their data, and secret"
    yield "tasks, seeds and messages depend on the round and the slot, never on who fills the slot"
    yield "those who know the order or receive reports by user reveal neither; against them ε is local"
    yield "when a report arrives or is published does not tell who sent it"
    yield f"whether a user answers depends neither on the user's data nor on the slot, and {answers}"
    yield f"at most {colluding:,} other users reveal their slots" if colluding else "no user reveals a slot"
    if scheme.privacy.arithmetic == "real":
        yield f"the reports of {scheme.name!r} are ε-private in real arithmetic only"


def local_epsilon_for(
    make: Callable[[float], Scheme], central: float, users: int, delta: float, *, most: float = 12.0
) -> float:
    """The largest local ε, up to 0.1 %, whose scheme ``make(ε)`` has a central ε of at most ``central``.

    Args:
        make: Makes the scheme for a local ε.
        central: The wanted central ε.
        users: The users in the secret order, without drop-outs and colluding users.
        delta: The δ of the central guarantee.
        most: The largest local ε to consider.

    Returns:
        The local ε, at least ``central`` unless ``most`` is below it.

    Raises:
        ValueError: If a value is out of range, or even the least local ε exceeds ``central``.

    Guarantees
    ----------
    * ``central_guarantee`` of the result is at most ``central``:
      tests/privacy/test_certificate.py::test_what_is_chosen_keeps_the_central_epsilon.

    >>> make = lambda epsilon: make_scheme("privunit-index", dim=3920, epsilon=epsilon)
    >>> round(local_epsilon_for(make, 0.5, users=60000, delta=1e-6), 1)
    6.2
    """
    central, most = checks.positive("central", central), checks.positive("most", most)
    wanted = central * (1 - 2 * TOLERANCE)  # because the least central ε is found to that accuracy

    def enough(epsilon: float) -> bool:
        scheme = make(epsilon)
        counted, _ = _checked(scheme, users, delta, "run", 0, 0)
        bounds = _bounds(scheme, counted, delta)
        return scheme.privacy.epsilon <= wanted or any(bound.holds(wanted) for _, bound in bounds)

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


@dataclass(frozen=True, kw_only=True)
class OncePlan:
    """A scheme for runs in which each user reports once, and what it guarantees."""

    scheme: str
    dim: int
    users: int
    epsilon: float  # local, of the report
    message_bytes: int
    nmse: float  # of one report, relative to |x| = bound
    nmse_mean: float  # of the mean over all users
    warning: str  # if little or nothing will be learned by a softmax on features of unit length; else empty
    central: CentralGuarantee

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "central": self.central.to_dict()}


def plan_once(
    *,
    dim: int,
    bytes: int,
    users: int,
    delta: float,
    epsilon: float | None = None,
    central: float | None = None,
) -> OncePlan:
    """The automatic scheme at a local ``epsilon``, or at the largest one that keeps a ``central`` ε.

    Guarantees
    ----------
    * The central ε is at most ``central``, and the scheme is the one that ``scheme = "auto"`` trains with:
      tests/privacy/test_certificate.py::test_the_plan_keeps_what_was_asked_for.
    """
    if (epsilon is None) == (central is None):
        raise ValueError(f"set either epsilon = {epsilon} or central = {central}")

    def make(local: float) -> Scheme:
        name = automatic_scheme(dim=dim, epsilon=local, bytes=bytes)
        return make_scheme(name, dim=dim, epsilon=local, bytes=bytes)

    if epsilon is None:
        epsilon = local_epsilon_for(make, checks.positive("central", central), users, delta)
    scheme = make(epsilon)
    return OncePlan(
        scheme=scheme.name,
        dim=dim,
        users=users,
        epsilon=scheme.privacy.epsilon,
        message_bytes=scheme.bits // 8,
        nmse=scheme.nmse,
        nmse_mean=scheme.nmse / users,
        warning=once_outlook(scheme, users),
        central=central_guarantee(scheme, users, delta),
    )
