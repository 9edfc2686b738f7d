"""The summary of a run: accuracy or another metric, guarantee, bytes and time.

Where each user reports once it also says who is counted, and the central ε.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqsgd._internal.exact import total
from sqsgd._internal.files import NUMBERS, worded
from sqsgd.core import Scheme
from sqsgd.privacy.certificate import Order, central_guarantee
from sqsgd.training.settings import Settings

DELTA = 1e-6
"""δ of the central guarantee in summaries; ``central_guarantee`` gives it for others."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The metric that a run is judged by, accuracy unless its loss has metrics of its own.

    >>> error = Headline(name="RMSE", better="lower")
    >>> error.best([0.5, 0.25]), error.shown(0.25), Headline().shown(0.925)
    (0.25, '0.25', '92.50%')
    """

    name: str = "accuracy"
    better: str = "higher"

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent."""
        return self.name == "accuracy"

    @property
    def title(self) -> str:
        """The name at the beginning of a sentence."""
        return self.name[:1].upper() + self.name[1:]

    def best(self, values: Iterable[float]) -> float | None:
        """The best of the values; None if there is none."""
        return (min if self.better == "lower" else max)(values, default=None)

    def rank(self, value: float) -> float:
        """A number that is lower for better values."""
        return value if self.better == "lower" else -value

    def shown(self, value: float) -> str:
        """A value as text."""
        return f"{value:.2%}" if self.is_share else f"{value:.4g}"


ACCURACY = Headline()


def read_headline(line: Mapping[str, Any]) -> tuple[Headline, Any] | None:
    """The headline of a round's record or of a summary, and its value; None if nothing was measured."""
    name, metrics = line.get("metric"), line.get("metrics")
    if isinstance(name, str) and isinstance(metrics, Mapping):
        better = "lower" if line.get("better") == "lower" else "higher"
        value = metrics.get(name, line.get("test_loss"))
        value = NUMBERS.get(value, value) if isinstance(value, str) else value
        return Headline(name=name, better=better), value
    return None if line.get("accuracy") is None else (ACCURACY, line["accuracy"])


def summarise(
    lines: Sequence[Mapping[str, Any]], scheme: Scheme, settings: Settings, *, once: bool, **about: Any
) -> dict[str, Any]:
    """The summary of a run.

    Args:
        lines: The metrics, one mapping per round.
        scheme: The scheme of the reports.
        settings: The settings, with the rate that was used.
        once: Whether no client sent two reports.
        **about: Further keys and their values.
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
        "epsilon": worded(scheme.privacy.epsilon),
        "delta": scheme.privacy.delta,
        "epsilon_total": lines[-1]["epsilon_total"] if lines else 0.0,
        "epsilon_all_rounds": worded(total(scheme.privacy.epsilon, 1 if once else len(lines))),
        "refused": sum(line.get("refused", 0) for line in lines),
        "bytes_up": bytes_up,
        "bytes_up_ratio": 4 * scheme.dim / bytes_up if bytes_up else None,
        "seconds": seconds,
        "finished": len(lines) >= settings.rounds,
    }
    for name in ("bytes_down", "bytes_up_serialised", "bytes_down_serialised"):
        # The model goes down to everyone who is asked, whether an answer comes or not.
        counts = [line.get("asked", line["clients"]) if "down" in name else line["clients"] for line in lines]
        sizes = [(line[name], count) for line, count in zip(lines, counts, strict=True) if name in line]
        if sizes or name == "bytes_down":
            messages = sum(count for _, count in sizes)
            values[name] = round(sum(size * count for size, count in sizes) / max(messages, 1))
    for part in ("gradient", "encode", "aggregate"):
        taken = [line[f"seconds_{part}"] for line in lines if f"seconds_{part}" in line]
        if taken:
            values[f"share_{part}"] = sum(taken) / seconds
    return values


def about_once(
    scheme: Scheme,
    order: Order,
    lines: Sequence[Mapping[str, Any]],
    *,
    seeded: bool,
    slots: int | None = None,
) -> dict[str, Any]:
    """The users, their order and the central guarantee, from the metrics of all rounds.

    Args:
        scheme: The scheme of the reports.
        order: ``"run"``, users fill all slots in random order, or ``"round"``, only those of a round.
        lines: The metrics of all rounds.
        seeded: Whether the order follows from a public seed, so that the guarantee protects nobody.
        slots: Their number, if users may come and go. If one is empty, some user was absent from a round and
            cannot have had a slot there: the order over the run is not uniform, and only that within rounds
            counts.

    Guarantees
    ----------
    * ``central_epsilon`` is None unless it is certified for the users whose reports were averaged:
      tests/training/test_summary.py::test_no_number_where_none_holds.
    * With empty slots in a federation, only the smallest round is counted:
      tests/training/test_summary.py::test_empty_slots_leave_the_order_within_rounds.
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
    """The certified guarantee, or a note that says why there is none."""
    try:
        if scheme.privacy.is_pure_local and scheme.privacy.arithmetic != "exact":
            raise ValueError(f"the reports of {scheme.name!r} are private in real arithmetic only")
        if users < 2:
            raise ValueError("no report had another to hide behind")
        found = central_guarantee(scheme, users, DELTA, order)
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


FEWEST = 3
"""The fewest values with an interval: the one of two values is so wide (t = 12.7) that it misleads."""


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the half-width of its 95 % Student t interval (NaN for fewer than ``FEWEST`` values).

    >>> mean_interval([1.0, 2.0, 3.0])
    (2.0, 2.484...)
    """
    if not values:
        return math.nan, math.nan
    mean = statistics.fmean(values)
    if len(values) < FEWEST:
        return mean, math.nan
    from scipy.stats import t

    error = statistics.stdev(values) / math.sqrt(len(values))
    return mean, float(t.ppf(0.975, len(values) - 1)) * error
