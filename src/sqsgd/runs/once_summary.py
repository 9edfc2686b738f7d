"""What a summary says about a run in which each user reports once: who is counted, and the central ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqsgd.core import Scheme
from sqsgd.privacy.certificate import CentralGuarantee, Order, central_guarantee

DELTA = 1e-6
"""δ of the central guarantee in summaries; ``central_guarantee`` gives it for others."""


def about_once(
    scheme: Scheme,
    order: Order,
    lines: Sequence[Mapping[str, Any]],
    *,
    seeded: bool,
    slots: int | None = None,
) -> dict[str, Any]:
    """The users, their order and the central guarantee, from the metrics of all rounds.

    ``order``: ``"run"``, users fill all slots in random order, or ``"round"``, only those of a round.
    ``seeded``: the order follows from a public seed, so the guarantee protects nobody.

    ``slots``: their number, if users may come and go. If one is empty, some user was absent from a round and
    cannot have had a slot there: the order over the run is not uniform, and only that within rounds counts.

    Guarantees
    ----------
    * ``central_epsilon`` is None unless it is certified for the users whose reports were averaged:
      tests/runs/test_once_summary.py::test_no_number_where_none_holds.
    * With empty slots in a federation, only the smallest round is counted:
      tests/runs/test_once_summary.py::test_empty_slots_leave_the_order_within_rounds.
    """
    counts = [line["clients"] for line in lines if line["clients"]]
    users, fewest = sum(counts), min(counts, default=0)
    where = "over the whole run" if order == "run" else "within each round"
    secret = f"secret: random {where}, known to the server alone"
    credited: Order = "round" if slots is not None and users < slots else order
    return {
        "users": users,
        "fewest_users": fewest,
        "order": order,
        "order_seeded": seeded,
        "order_note": "seeded: the central figure is a simulation's" if seeded else secret,
        **_central(scheme, users if credited == "run" else fewest, credited, seeded=seeded),
    }


def _central(scheme: Scheme, users: int, order: Order, *, seeded: bool) -> dict[str, Any]:
    found = _certified(scheme, users, order)
    if isinstance(found, str):
        return {"central_epsilon": None, "central_note": f"none: {found}"}
    would = " (seeded: what the same run would guarantee with a secret order and secure noise)" * seeded
    return {
        "central_epsilon": found.epsilon,
        "central_delta": found.delta,
        "central_users": found.users,
        "central_order": found.order,
        "central_assumptions": list(found.assumptions),
        "central_note": found.sentence + would,
    }


def _certified(scheme: Scheme, users: int, order: Order) -> CentralGuarantee | str:
    """The guarantee, or why there is none."""
    if scheme.privacy.is_pure_local and scheme.privacy.arithmetic != "exact":
        return f"the reports of {scheme.name!r} are private in real arithmetic only"
    if users < 2:
        return "no report had another to hide behind"
    try:
        found = central_guarantee(scheme, users, DELTA, order)
    except ValueError as error:
        return str(error)
    return found if found.bound != "local" else found.sentence
