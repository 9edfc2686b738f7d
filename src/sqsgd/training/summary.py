"""The summary of a run: accuracy or another metric, guarantee (also the central one), bytes and time."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sqsgd._internal.files import NUMBERS, worded
from sqsgd.core import Scheme
from sqsgd.mechanisms.gaussian_account import spent
from sqsgd.privacy.certificate import Order, central_guarantee, document
from sqsgd.training.settings import Settings
from sqsgd.training.state import Record

DELTA = 1e-6  # of the central guarantee in summaries


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The metric that a run is judged by, accuracy unless its loss has other metrics."""

    name: str = "accuracy"
    better: str = "higher"

    @property
    def is_share(self) -> bool:
        return self.name == "accuracy"

    @property
    def title(self) -> str:
        return self.name[:1].upper() + self.name[1:]

    def best(self, values: Iterable[float]) -> float | None:
        return (min if self.better == "lower" else max)(values, default=None)

    def rank(self, value: float) -> float:
        return value if self.better == "lower" else -value

    def shown(self, value: float) -> str:
        return f"{value:.2%}" if self.is_share else f"{value:.4g}"


ACCURACY = Headline()


def read_headline(line: Mapping[str, Any]) -> tuple[Headline, Any] | None:
    """The headline of a round's record or of a summary, and its value, or None if nothing was measured."""
    name, metrics = line.get("metric"), line.get("metrics")
    if isinstance(name, str) and isinstance(metrics, Mapping):
        value = metrics.get(name, line.get("test_loss"))
        value = NUMBERS.get(value, value) if isinstance(value, str) else value
        return Headline(name=name, better="lower" if line.get("better") == "lower" else "higher"), value
    return None if line.get("accuracy") is None else (ACCURACY, line["accuracy"])


def reached(record: Record, before: str = "") -> str:
    """What a round measured on held-out data, in words; else ``before``."""
    found = read_headline(record.to_dict())
    return f"{found[0].name} {found[0].shown(found[1])}, " if found else before


def told(record: Record, rounds: int, measured: str) -> str:
    """Return a round in a line of a log; ``measured``: see ``reached``."""
    spent = f"epsilon {record.epsilon_total:,g}, {record.bytes_up:,} bytes per report"
    return f"round {record.round + 1:,} of {rounds:,}: {measured}{spent}"


def summarise(
    lines: Sequence[Mapping[str, Any]], scheme: Scheme, settings: Settings, *, reports: int = 0, **about: Any
) -> dict[str, Any]:
    """Return the summary of a run from the metrics of its rounds, with ``about``.

    ``reports``: the most that a user sent; 0: one in every round.
    """
    measured = [(line, *found) for line in lines if (found := read_headline(line))]
    last, headline, value = measured[-1] if measured else ({}, ACCURACY, None)
    best = headline.best(value for _, _, value in measured)
    accuracies = [line["accuracy"] for line, _, _ in measured if "accuracy" in line]
    seconds = sum(line["seconds"] for line in lines)
    bytes_up = max((line["bytes_up"] for line in lines), default=0)
    values = {
        **settings.about,
        **about,
        **({"reports": reports} if reports else {}),
        "scheme": scheme.name,
        "dim": scheme.dim,
        "rounds": len(lines),
        "accuracy": last.get("accuracy"),
        "best_accuracy": max(accuracies, default=None),
        "test_loss": last.get("test_loss"),
        "metric": headline.name,
        "better": headline.better,
        "metrics": last.get("metrics", {} if value is None else {headline.name: value}),
        "best": worded(best),
        "notion": scheme.privacy.notion,
        "epsilon": worded(spent(scheme.privacy, 1)),
        "delta": scheme.privacy.delta,
        "epsilon_total": lines[-1]["epsilon_total"] if lines else 0.0,
        "epsilon_all_rounds": worded(spent(scheme.privacy, reports or len(lines))),
        "refused": sum(line.get("refused", 0) for line in lines),
        "bytes_up": bytes_up,
        "bytes_up_ratio": 4 * scheme.dim / bytes_up if bytes_up else None,
        "seconds": seconds,
        "finished": len(lines) >= settings.rounds,
    }
    # The model goes down to everyone who is asked, whether an answer comes or not.
    sizes = [(line["bytes_down"], line.get("asked", line["clients"])) for line in lines]
    messages = max(1, sum(count for _, count in sizes))
    values["bytes_down"] = round(sum(size * count for size, count in sizes) / messages)
    for part in ("gradient", "encode", "aggregate"):
        if taken := [line[f"seconds_{part}"] for line in lines if f"seconds_{part}" in line]:
            values[f"share_{part}"] = sum(taken) / seconds
    return values


def about_once(
    scheme: Scheme,
    order: Order,
    lines: Sequence[Mapping[str, Any]],
    *,
    seeded: bool,
    slots: int | None = None,
    reports: int = 1,
    one_visit: int | None = None,
) -> dict[str, Any]:
    """Return the users, their order and the central guarantee, from the metrics of all rounds.

    Args:
        scheme: The scheme of the reports.
        order: Users fill all slots of a pass (``"run"``) or of a round (``"round"``) in random order.
        lines: The metrics.
        seeded: The order came from a public seed.
        slots: Their number, if users may come and go; if one is empty, no order over a pass is uniform.
        reports: Of each user: one in each pass, all of the same number of rounds.
        one_visit: The users of a round, if each sends all reports in it.

    Returns:
        Entries of the summary.

    Guarantees
    ----------
    * Users who are counted are in every pass, or in every part of a round, for any missing reports:
      tests/training/test_several_reports.py::test_missing_reports_are_subtracted_where_they_hurt_most.
    * ``central_epsilon`` is None unless it is certified for the users whose reports were averaged:
      tests/training/test_summary.py::test_no_number_where_none_holds.
    * With empty slots in a federation, only the smallest round is counted:
      tests/training/test_summary.py::test_empty_slots_leave_the_order_within_rounds.
    """
    counts = [int(line["clients"]) for line in lines]
    if one_visit is None:
        passes = np.array_split(counts, reports)
        users, gaps = min(int(sum(each)) for each in passes), slots is not None and sum(counts) < slots
    else:  # all reports that are missing may be of one part of the round
        order, gaps = "round", False
        counts = [max(0, count - (reports - 1) * one_visit) for count in counts if count]
        users = sum(counts)
    fewest = min((count for count in counts if count or one_visit), default=0)
    where = "over the whole run" if order == "run" else "within each round"
    again = ", another order for each report" if reports > 1 else ""
    secret = f"secret: random {where}{again}, known to the server alone"
    credited: Order = "round" if gaps else order
    counted = users if credited == "run" else fewest
    return {
        "users": users,
        "fewest_users": fewest,
        "order": order,
        "order_seeded": seeded,
        "order_note": "seeded: the central figure is a simulation's" if seeded else secret,
        **central(scheme, counted, credited, reports, seeded=seeded),
    }


def central(scheme: Scheme, users: int, order: Order, reports: int, *, seeded: bool) -> dict[str, Any]:
    """Return the certified guarantee, or a note that says why there is none."""
    try:
        if scheme.privacy.is_pure_local and scheme.privacy.arithmetic != "exact":
            raise ValueError(f"the reports of {scheme.name!r} are private in real arithmetic only")
        if users < 2:
            raise ValueError("no report had another to hide behind")
        found = central_guarantee(scheme, users, DELTA, order, reports=reports)
        if found.bound == "local":
            raise ValueError(found.sentence)
    except ValueError as error:
        return {"central_epsilon": None, "central_note": f"none: {error}"}
    would = " (seeded: what the same run would guarantee with a secret order and secure noise)"
    return {
        "central_epsilon": found.epsilon,
        "central_delta": found.delta,
        "central_users": found.users,
        "central_order": found.order,
        "central_assumptions": list(found.assumptions),
        "central_note": found.sentence + (would if seeded else ""),
    }


def certificate(scheme: Scheme, summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the document of a summary's central guarantee, or None if it has none."""
    if summary.get("central_epsilon") is None:
        return None
    users, order = summary["central_users"], summary["central_order"]
    found = central_guarantee(scheme, users, summary["central_delta"], order, summary["reports"])
    seeded = "orders and noise are secret: those of this run, a simulation, came from a public seed"
    assumed = (*summary["central_assumptions"], *([seeded] if summary["order_seeded"] else []))
    return document(dataclasses.replace(found, assumptions=assumed), scheme)


FEWEST = 3  # values with an interval: the one of two is so wide (t = 12.7) that it misleads


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and the half-width of its 95 % Student t interval (NaN for fewer than ``FEWEST``
    values).

    >>> mean_interval([1.0, 2.0, 3.0])
    (2.0, 2.484...)
    """
    if len(values) < FEWEST:
        return statistics.fmean(values) if values else math.nan, math.nan
    from scipy.stats import t

    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), float(t.ppf(0.975, len(values) - 1)) * error
