"""Plans for users who report in secret orders: one report, or as many as two limits allow."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from sqsgd._internal import checks
from sqsgd.core import Scheme
from sqsgd.mechanisms.gaussian_account import most_rho
from sqsgd.privacy.certificate import (
    MOST_REPORTS,
    CentralGuarantee,
    Order,
    central_guarantee,
    local_epsilon_for,
)
from sqsgd.privacy.planner import CLOSE, automatic_scheme, outlook
from sqsgd.schemes import make_scheme

_TRIED = tuple(2.0**i for i in range(-2, 4))  # local ε of a report; near the best, others too
_CENTRAL = "privunit-index"  # the scheme whose near set may be chosen for the central ε
_CLOSE = 0.99  # of the central limit: more reports would hardly matter
_FIRST, _TRIES = 64, 12  # the first number of reports whose central ε is computed, and the most numbers


@dataclass(frozen=True, kw_only=True)
class Split:
    """``reports`` of each user at one local ε, and what they guarantee."""

    scheme: str
    nearest: str
    """``central``: the scheme's option of this name, for a near set chosen for the central ε; else empty."""
    users: int
    epsilon: float
    """Local, of one report."""
    reports: int
    message_bytes: int
    nmse: float
    """The error of one report, relative to |x| = bound."""
    nmse_mean: float
    """The error of the mean over all reports of all users."""
    warning: str
    """If little or nothing will be learned by a softmax on features of unit length; else empty."""
    central: CentralGuarantee

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "central": self.central.to_dict()}

    @property
    def local(self) -> float:
        """The local ε of all reports of a user."""
        return self.central.local_epsilon


@dataclass(frozen=True, kw_only=True)
class SeveralPlan:
    """For rising local ε of a report, the most reports within both limits; the best of these splits."""

    dim: int
    users: int
    best: Split
    splits: tuple[Split, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        splits = [each.to_dict() for each in self.splits]
        return {"dim": self.dim, "users": self.users, "best": self.best.to_dict(), "splits": splits}


def plan_several(
    *,
    dim: int,
    bytes: int,
    users: int,
    delta: float,
    central: float,
    local: float = math.inf,
    visit: int = 0,
) -> SeveralPlan:
    """Return the splits of a budget into reports, of which the best has the least error of the mean.

    Args:
        dim: The number of weights.
        bytes: The budget for the packed codes of a report.
        users: Of the run; each reports once in each pass.
        delta: The δ of the central guarantee.
        central: The limit of the central ε.
        local: The limit of the local ε of all reports of a user.
        visit: The users of a round, if each sends all reports in one visit; 0: passes.

    Raises:
        ValueError: If a value is out of range, or no number of reports keeps the limits.

    Guarantees
    ----------
    * Every split keeps both limits, and some more reports would not:
      tests/privacy/test_several.py::test_every_split_keeps_the_limits_and_some_more_reports_would_not.
    * A near set for the central ε is taken where it gains 3 % or more in the error:
      tests/privacy/test_several.py::test_the_near_set_is_for_the_central_figure_where_that_gains_three_percent.

    >>> plan = plan_several(dim=3920, bytes=48, users=60000, delta=1e-6, central=0.3, local=16.0)
    >>> plan.best.epsilon * plan.best.reports <= 16, plan.best.central.epsilon <= 0.3
    (True, True)
    """
    checks.positive("central", central)
    if not local > 0:
        raise ValueError(f"local = {local!r} must be positive")
    checks.integer("users", users, 2, 2**53)
    if checks.integer("visit", visit, 0, 2**53) > users:
        raise ValueError(f"a round cannot have {visit:,} users: there are {users:,}")
    limits: dict[str, Any] = {"dim": dim, "bytes": bytes, "users": users, "delta": delta}
    limits |= {"central": central, "local": local, "visit": visit}
    found = [split for epsilon in _TRIED if (split := _least(epsilon, **limits))]
    if not found:
        raise ValueError(
            f"central = {central:g} with local = {local:g} allows no report of epsilon {_TRIED[0]:g} or more "
            f"from {visit or users:,} users"
        )
    for step in (2**0.5, 2**0.25, 1.0):
        best = min(found, key=lambda each: each.nmse_mean)
        near = [best.epsilon / step, best.epsilon * step, *(local / (best.reports + i) for i in (0, 1))]
        near = [epsilon * (1 - 2**-40) for epsilon in near if _TRIED[0] <= epsilon <= 2 * _TRIED[-1]]
        for epsilon in near:
            if not any(math.isclose(epsilon, each.epsilon) for each in found):
                found += [split for split in [_least(epsilon, **limits)] if split]
    splits = tuple(sorted(found, key=lambda each: each.epsilon))
    best = min(splits, key=lambda each: each.nmse_mean)
    return SeveralPlan(dim=dim, users=users, best=best, splits=splits)


def _least(epsilon: float, **limits: Any) -> Split | None:
    """Return the split at one local ε, with the near set that has the least error of the mean."""
    split = _most(epsilon, **limits)
    if split is None or split.scheme != _CENTRAL or epsilon * (split.reports + 1) > limits["local"]:
        return split  # a larger error of each report, but no more reports
    other = _most(epsilon, nearest="central", guess=round(1.2 * split.reports), **limits)
    return other if other and other.nmse_mean * CLOSE <= split.nmse_mean else split


def _most(
    epsilon: float,
    *,
    dim: int,
    bytes: int,
    users: int,
    delta: float,
    central: float,
    local: float,
    visit: int,
    nearest: str = "",
    guess: int = _FIRST,
) -> Split | None:
    """Return the most reports within the limits, up to about two percent where the central one decides."""
    if epsilon > local:
        return None
    scheme = _automatic(dim, epsilon, bytes, nearest)
    order: Order = "round" if visit else "run"
    kept: CentralGuarantee | None = None
    low, high = 0, min(MOST_REPORTS, math.floor(min(local / scheme.privacy.epsilon, MOST_REPORTS))) + 1
    guess = min(guess, high - 1)
    for _ in range(_TRIES):
        if high - low < 2 or (kept and kept.epsilon > _CLOSE * central):
            break
        found = central_guarantee(scheme, visit or users, delta, order, guess)
        if found.epsilon <= central and found.local_epsilon <= local:
            low, kept = guess, found
        else:
            high = guess
        # As if the privacy loss were Gaussian: its square grows with the number of reports.
        ratio = float(most_rho(central, delta) / most_rho(found.epsilon, delta))
        guess = min(max(math.floor(guess * ratio * (1 + _CLOSE) / 2), low + 1), high - 1)
    if kept is None:
        return None
    return _split(scheme, users, kept, nearest)


def _automatic(dim: int, epsilon: float, bytes: int, nearest: str = "") -> Scheme:
    name, _ = automatic_scheme(dim=dim, epsilon=epsilon, bytes=bytes)
    options = {"nearest": nearest} if nearest else {}
    return make_scheme(name, dim=dim, epsilon=epsilon, bytes=bytes, **options)


def _split(scheme: Scheme, users: int, central: CentralGuarantee, nearest: str = "") -> Split:
    reports = users * central.reports
    return Split(
        scheme=scheme.name,
        nearest=nearest,
        users=users,
        epsilon=scheme.privacy.epsilon,
        reports=central.reports,
        message_bytes=scheme.bits // 8,
        nmse=scheme.nmse,
        nmse_mean=scheme.nmse / reports,
        warning=outlook(scheme, reports, softmax=True),
        central=central,
    )


def plan_once(
    *,
    dim: int,
    bytes: int,
    users: int,
    delta: float,
    epsilon: float | None = None,
    central: float | None = None,
) -> Split:
    """One report: the automatic scheme at a local ``epsilon``, or at the largest that keeps a ``central`` ε.

    Guarantees
    ----------
    * The central ε is at most ``central``, and the scheme is the one that ``scheme = "auto"`` trains with:
      tests/privacy/test_certificate.py::test_the_plan_keeps_what_was_asked_for.
    """
    if (epsilon is None) == (central is None):
        raise ValueError(f"set either epsilon = {epsilon} or central = {central}")
    if epsilon is None:
        wanted = checks.positive("central", central)
        epsilon = local_epsilon_for(lambda local: _automatic(dim, local, bytes), wanted, users, delta)
    scheme = _automatic(dim, epsilon, bytes)
    return _split(scheme, users, central_guarantee(scheme, users, delta))
