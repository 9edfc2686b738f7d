"""The central (ε, δ) of a run whose users report in secret orders, and its certificate."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, Literal, get_args

from sqsgd._internal import checks, exact
from sqsgd._internal.exact import three_digits
from sqsgd.core import Scheme
from sqsgd.privacy.blanket import TOLERANCE, BlanketBound, blanket_bound, generic_bound
from sqsgd.privacy.passes import Profile, Table, negligible, randomized_response, table

Order = Literal["run", "round"]
Bound = Literal["blanket", "generic", "local"]
MOST_USERS, MOST_COUNTED = 2**53, 10**9  # more users hide better; the bound is computed for at most so many
_MOST_LOCAL = 64.0  # no number of users that is counted lowers a larger ε
MOST_REPORTS = 10**5  # of a user
_LEAST_DELTA = 1e-100  # smaller ones count as zero
LEAST = 0.01  # the least local ε that schemes accept


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass in which each user sends ``reports`` reports of ``scheme``, as in ``central_guarantee``.

    >>> from sqsgd import make_scheme
    >>> scheme = make_scheme("privunit-index", dim=3920, epsilon=2.0)
    >>> Pass(scheme=scheme, users=60000, reports=4, dropouts=500).local
    8.0
    """

    scheme: Scheme
    users: int
    order: Order = "run"
    reports: int = 1
    dropouts: int = 0
    colluding: int = 0

    def __post_init__(self) -> None:
        checks.integer("reports", self.reports, 1, MOST_REPORTS)
        _ = self.counted

    @property
    def counted(self) -> int:
        """The number of users that are shuffled together. Raises ValueError if no guarantee holds."""
        return _counted(self.scheme, self.users, self.order, self.dropouts, self.colluding)

    @property
    def local(self) -> float:
        """The local ε of a user for all reports in this pass."""
        return exact.total(self.scheme.privacy.epsilon, self.reports)


@dataclass(frozen=True, kw_only=True)
class CentralGuarantee:
    """An (``epsilon``, ``delta``)-DP guarantee of the published models for replacing the data of a user.

    It holds against observers of the models under the given ``assumptions``. In contrast, ``local_epsilon``
    covers all reports of a user against all observers, and does not depend on these assumptions.
    """

    epsilon: float
    delta: float
    users: int
    """The number of users in the smallest pass, excluding drop-outs and colluding users."""
    order: Order
    bound: Bound
    """The bound that was used. If there is none, ``epsilon`` is equal to the local ε."""
    local_epsilon: float
    assumptions: tuple[str, ...]
    reports: int = 1
    """The maximum number of reports of a user over all passes."""
    linked: str = ""
    """The reason why the reports of a user can be linked and count as a single report, or an empty string."""

    @property
    def sentence(self) -> str:
        """The guarantee in a sentence, with ε rounded up."""
        several = f" for the {self.reports:,} reports of a user" * (self.reports > 1)
        local = f"local {self.local_epsilon:g}{several} against everyone"
        users = f"{self.users:,} users{' of a round' * (self.order == 'round')}"
        linked = f" ({self.linked})" * bool(self.linked)
        if self.bound == "local":
            return f"{local}; for {users} nothing smaller is certified{linked}"
        delta = repr(self.delta).replace("e-0", "e-")
        order = "the orders" if self.reports > 1 and not self.linked else "the order"
        return (
            f"{local}; central ({three_digits(self.epsilon)}, {delta}) against readers of the models, if "
            f"the operator keeps {order} of the {users} and their reports to itself{linked}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary which can be serialized to JSON."""
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
    """Return the central guarantee of reports of ``scheme`` whose orders are uniform and secret.

    For one report it is the smaller of two bounds, for mechanisms with two densities and for all
    (docs/proofs/shuffled-reports.md); several are composed (docs/proofs/several-reports.md). It is at most
    the local ε.

    Args:
        scheme: A scheme with pure local privacy and without a residual.
        users: The number of reports in a secret order; for rounds, in the smallest round.
        delta: The δ of the guarantee, above 0 and below 1.
        order: An order covers a pass, which is the whole ``"run"`` if there is one pass; if rounds are known,
            it covers a ``"round"``.
        reports: The number of reports of each user. Each has an order that is independent of the others: one
            in each of several passes through all users or, with the orders of a ``"round"``, also all of
            them in one visit, in the round of the user.
        dropouts: The most users who may not answer in a pass, for reasons other than their data and slots;
            not counted.
        colluding: Users who reveal their slots and reports to the attacker; not counted either.
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
      tests/privacy/test_blanket.py::test_no_adaptive_choice_exceeds_the_bound,
      tests/privacy/test_passes.py::test_no_adaptive_passes_exceed_the_bound.

    >>> from sqsgd import make_scheme
    >>> scheme = make_scheme("privunit-index", dim=3920, epsilon=4.0)
    >>> found = central_guarantee(scheme, users=60000, delta=1e-6)
    >>> found.bound, round(found.epsilon, 3), found.local_epsilon
    ('blanket', 0.138, 4.0)
    >>> found = central_guarantee(scheme, users=60000, delta=1e-6, reports=16)
    >>> found.bound, round(found.epsilon, 2), found.local_epsilon
    ('blanket', 0.61, 64.0)
    """
    one = Pass(
        scheme=scheme, users=users, order=order, reports=reports, dropouts=dropouts, colluding=colluding
    )
    return composed_guarantee([one], delta, linked=linked)


def composed_guarantee(passes: Sequence[Pass], delta: float, *, linked: str = "") -> CentralGuarantee:
    """Compute the central guarantee for the composition of several passes, which may use different schemes,
    budgets or numbers of users.

    Args:
        passes: Each user takes part in all of them, or in some.
        delta: The δ of the guarantee, above 0 and below 1.
        linked: As in ``central_guarantee``. Passes that differ in their users or orders then add up to the
            local ε.

    Returns:
        As ``central_guarantee``, with the fewest users of a pass, and the reports and the local ε of all.

    Raises:
        ValueError: If a value is out of range.

    >>> from sqsgd import make_scheme
    >>> first, second = (make_scheme("privunit-index", dim=3920, epsilon=epsilon) for epsilon in (4.0, 2.0))
    >>> passes = [Pass(scheme=first, users=60000), Pass(scheme=second, users=50000, reports=3)]
    >>> found = composed_guarantee(passes, 1e-6)
    >>> found.users, found.reports, found.local_epsilon, round(found.epsilon, 2)
    (50000, 4, 10.0, 0.16)
    """
    if not passes:
        raise ValueError("passes = [] must be one or more")
    delta = checks.real("delta", delta, 0.0, 1.0, open_ends=True)
    users, reports = min(each.counted for each in passes), sum(each.reports for each in passes)
    checks.integer("the reports of all passes", reports, 1, MOST_REPORTS)
    linked = linked if reports > 1 else ""
    local = exact.add_up(*(each.local for each in passes))
    if reports == 1:
        epsilon, bound = _least(_bounds(passes[0].scheme, users, delta), local)
    elif not linked:
        epsilon, bound = _composed(passes, delta, local)
    else:
        alike = len({(each.users, each.order, each.dropouts, each.colluding) for each in passes}) == 1
        epsilon, bound = _least(_generic(local, users, delta) if alike else (), local)
    return CentralGuarantee(
        epsilon=epsilon,
        delta=delta,
        users=users,
        order="round" if any(each.order == "round" for each in passes) else "run",
        bound=bound,
        local_epsilon=local,
        assumptions=tuple(_assumptions(passes, reports, linked)),
        reports=reports,
        linked=linked,
    )


def _composed(passes: Sequence[Pass], delta: float, local: float) -> tuple[float, Bound]:
    made, sources = _table(tuple(passes), delta)
    kinds = {kind for _, kind in sources}
    epsilon = local if kinds == {"local"} else made.epsilon(delta)
    if epsilon is None or epsilon >= local * (1 - TOLERANCE):
        return local, "local"
    return epsilon, "generic" if "generic" in kinds else "blanket"


@lru_cache(maxsize=16)
def _table(passes: tuple[Pass, ...], delta: float) -> tuple[Table, tuple[tuple[Pass, Bound], ...]]:
    """Return the divergences of one report of each kind of pass; the passes and the names of their bounds."""
    counts: Counter[Pass] = Counter()
    for each in passes:
        counts[replace(each, reports=1)] += each.reports
    merged = [replace(one, reports=count) for one, count in counts.items()]
    profiles = [_profile(one, delta, counts.total()) for one in merged]
    sources = tuple((one, kind) for one, (_, kind) in zip(merged, profiles, strict=True))
    return table([profile for profile, _ in profiles], delta), sources


def _profile(one: Pass, delta: float, reports: int) -> tuple[Profile, Bound]:
    """Return the divergences of one report, by the bound that is smaller for a single report at δ."""
    local = one.scheme.privacy.epsilon
    fine = dict(_bounds(one.scheme, one.counted, negligible(delta, reports)))
    if not fine:
        return Profile(spent=partial(randomized_response, local), local=local, reports=one.reports), "local"
    kind = next(iter(fine))
    if len(fine) > 1:
        _, least = _least(_bounds(one.scheme, one.counted, delta), local)
        kind = least if least in fine else kind
    return Profile(spent=fine[kind].spent, local=local, reports=one.reports), kind


def _least(bounds: Iterable[tuple[Bound, BlanketBound]], local: float) -> tuple[float, Bound]:
    """Return the least ε of the bounds and of the local ε, and its name."""
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


def _counted(scheme: Scheme, users: int, order: str, dropouts: int, colluding: int) -> int:
    """Return the number of users that count. Raises ValueError where no guarantee holds."""
    if not isinstance(scheme, Scheme):
        raise ValueError(f"scheme = {scheme!r} must be a sqsgd.Scheme")
    if order not in get_args(Order):
        raise ValueError(f"order = {order!r} must be one of {', '.join(get_args(Order))}")
    if not scheme.privacy.is_pure_local:
        raise ValueError(
            f"scheme = {scheme.name!r} has no pure local guarantee (notion {scheme.privacy.notion!r}), "
            "from which a central one could follow"
        )
    if scheme.keeps_state:
        raise ValueError(
            f"scheme = {scheme.name!r} keeps a residual for later reports; for a central guarantee use "
            "one that sends the whole vector, such as 'privunit-index' or 'sqsgd-stateless'"
        )
    users = checks.integer("users", users, 1, MOST_USERS)
    dropouts = checks.integer("dropouts", dropouts, 0, MOST_USERS)
    colluding = checks.integer("colluding", colluding, 0, MOST_USERS)
    if dropouts + colluding >= users:
        raise ValueError(f"dropouts + colluding = {dropouts + colluding} leaves none of users = {users}")
    return min(users - dropouts - colluding, MOST_COUNTED)


def _assumptions(passes: Sequence[Pass], reports: int, linked: str) -> Iterator[str]:
    users, rounds = min(each.counted for each in passes), any(each.order == "round" for each in passes)
    where = "within each round" if rounds else "within each pass" if reports > 1 else "over the whole run"
    dropouts, colluding = max(each.dropouts for each in passes), max(each.colluding for each in passes)
    answers = f"at most {dropouts:,} do not answer" if dropouts else f"{users:,} or more do"
    slot = "slot"
    if reports == 1:
        yield "each user sends one report in all"
    elif linked:
        yield f"each user sends at most {reports:,} reports in all, which count as one because of {linked}"
        answers += ", every time"
    else:
        yield f"each user sends at most {reports:,} reports in all, and one in each order"
        yield "the orders are independent of each other, and nothing links two reports of a user"
        slot, answers = "slots", f"{answers}, every time"
    yield f"the order of {users:,} users or more {where} is uniform, independent of their data, and secret"
    yield "tasks, seeds and messages depend on the round and the slot, never on who fills the slot"
    yield "those who know an order or receive reports by user reveal neither; against them ε is local"
    yield "when a report arrives or is published does not reveal its sender"
    yield f"whether a user answers depends neither on the user's data nor on the {slot}, and {answers}"
    yield f"at most {colluding:,} other users reveal their slots" if colluding else "no user reveals a slot"
    real = {each.scheme.name for each in passes if each.scheme.privacy.arithmetic == "real"}
    for name in sorted(real):
        yield f"the reports of {name!r} are ε-private in real arithmetic only"


FORMAT = "sqsgd central certificate 1"


def document(guarantee: CentralGuarantee, source: Scheme | Sequence[Pass]) -> dict[str, Any]:
    """Return a central guarantee with the numbers that it rests on, which tools/check_certificate.py
    verifies.

    A scheme's identity implies the law of its reports. Its ``dots`` (i, d) are upper bounds of the divergence
    of one report: δ₁(i / 2^step_bits) <= d / 2^dot_bits.

    Args:
        guarantee: With a central ε below the local one.
        source: The scheme of ``central_guarantee``, or the passes of ``composed_guarantee``.

    Returns:
        Numbers, texts, lists and dictionaries, for JSON. ε is about 0.1 % larger than in ``guarantee``, so
        that computations of another kind confirm it.

    Raises:
        ValueError: If nothing is certified, or only in real arithmetic, or for other passes.

    Guarantees
    ----------
    * It is confirmed without this package, and refused if anything in it was changed:
      tests/privacy/test_document.py::test_each_changed_field_is_refused.
    """
    if isinstance(source, Scheme):
        users, order = guarantee.users, guarantee.order
        source = [Pass(scheme=source, users=users, order=order, reports=guarantee.reports)]
    passes, delta = tuple(source), guarantee.delta
    known = min(each.counted for each in passes), exact.add_up(*(each.local for each in passes))
    if known != (guarantee.users, guarantee.local_epsilon) or guarantee.bound == "local":
        raise ValueError(f"no central guarantee of these passes: {guarantee.sentence}")
    if any(each.scheme.privacy.arithmetic != "exact" for each in passes):
        raise ValueError("the reports are private in real arithmetic only, which certificates do not support")
    epsilon = float(three_digits(guarantee.epsilon * (1 + TOLERANCE), 4))
    if guarantee.reports > 1 and not guarantee.linked:
        made, sources = _table(passes, delta)
    else:
        step = 2.0 ** (math.floor(math.log2(epsilon)) - 20)
        made = Table(step=step, passes=((((math.floor(epsilon / step), delta * (1 - 2.0**-20)),), 1),))
        sources = ((passes[0], guarantee.bound),)
    bits = 54 - math.floor(math.log2(negligible(delta, guarantee.reports)))  # all dots are whole then
    content = {
        "format": FORMAT,
        "epsilon": epsilon,
        "delta": delta,
        "local_epsilon": guarantee.local_epsilon,
        "reports": guarantee.reports,
        "linked": guarantee.linked,
        "order": guarantee.order,
        "assumptions": list(guarantee.assumptions),
        "versions": {name: version(name) for name in ("sqsgd", "python-flint")},
        "step_bits": -round(math.log2(made.step)),
        "dot_bits": bits,
        "passes": [
            {
                "scheme": each.scheme.identity,
                "local_epsilon": guarantee.local_epsilon if guarantee.linked else each.scheme.privacy.epsilon,
                "bound": kind,
                "users": each.counted,
                "reports": count,
                "dots": [[place, int(Fraction(spent) * (1 << bits))] for place, spent in dots],
            }
            for (each, kind), (dots, count) in zip(sources, made.passes, strict=True)
        ],
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return {**content, "digest": hashlib.sha256(text.encode()).hexdigest()}


def local_epsilon_for(
    make: Callable[[float], Scheme], central: float, users: int, delta: float, *, most: float = 12.0
) -> float:
    """Return the largest local ε, up to 0.1 %, whose scheme ``make(ε)`` has a central ε of at most
    ``central``.

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

    >>> from sqsgd import make_scheme
    >>> make = lambda epsilon: make_scheme("privunit-index", dim=3920, epsilon=epsilon)
    >>> round(local_epsilon_for(make, 0.5, users=60000, delta=1e-6), 1)
    6.2
    """
    central, most = checks.positive("central", central), checks.positive("most", most)
    wanted = central * (1 - 2 * TOLERANCE)  # because the least central ε is found to that accuracy

    def enough(epsilon: float) -> bool:
        scheme = make(epsilon)
        bounds = _bounds(scheme, _counted(scheme, users, "run", 0, 0), delta)
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
