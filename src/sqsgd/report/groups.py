"""Runs that differ in their seed alone, under labels that name what tells the groups apart."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqsgd.numerics.intervals import mean_interval
from sqsgd.report.text import clean
from sqsgd.runs.config import FIELDS, RunConfig
from sqsgd.runs.reading import RunData, Summary
from sqsgd.schemes import make_scheme

STATES = ("finished", "unfinished", "failed", "damaged")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs with one configuration but for the seed."""

    label: str
    runs: tuple[RunData, ...]

    @property
    def config(self) -> RunConfig:
        """That of the first run."""
        return self.runs[0].config

    @property
    def counted(self) -> tuple[RunData, ...]:
        """The runs that means are over: the finished ones, or else the best of the others that began."""
        for state in STATES:
            chosen = tuple(run for run in self.runs if run.state == state and run.rounds)
            if chosen:
                return chosen
        return ()

    @property
    def rounds(self) -> int:
        """Rounds that all counted runs have."""
        return min((run.rounds for run in self.counted), default=0)

    @property
    def summary(self) -> Summary | None:
        """That of the first finished run."""
        return next((run.summary for run in self.counted if run.summary), None)

    @property
    def accuracy(self) -> tuple[float, float]:
        """Mean of the last measured ones and half its 95 % interval; NaN for what cannot be said."""
        return mean_interval([float(run.accuracies[-1]) for run in self.counted if run.accuracies.size])

    @property
    def best_accuracy(self) -> float:
        """The highest of any counted run at any time; NaN if there is none."""
        return max(
            (float(run.accuracies.max()) for run in self.counted if run.accuracies.size), default=math.nan
        )

    def last(self, column: str) -> float:
        """The largest last value of a column among the counted runs; NaN if there is none."""
        return max((float(run.columns[column][-1]) for run in self.counted), default=math.nan)

    @property
    def seconds(self) -> float:
        """Mean time of a counted run."""
        totals = [float(run.columns["seconds"].sum()) for run in self.counted]
        return math.fsum(totals) / len(totals) if totals else math.nan

    @property
    def notion(self) -> str:
        """Of privacy: local, per-weight, central, none, or unknown."""
        if self.summary is not None:
            return self.summary.notion
        if self.last("epsilon") == math.inf:
            return "none"
        return _promised_notion(self.config)

    @property
    def states(self) -> str:
        """How many runs are in which state."""
        amounts = Counter(run.state for run in self.runs)
        return ", ".join(f"{amounts[state]} {state}" for state in STATES if amounts[state])


def _promised_notion(config: RunConfig) -> str:
    """What the scheme says of itself; its notion does not depend on the model's size."""
    try:
        scheme = make_scheme(
            config.scheme, dim=65536, epsilon=config.epsilon, bits=8 * config.bytes, **config.options
        )
    except (ValueError, TypeError):
        return "unknown"
    return scheme.privacy.notion


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Groups with their labels, the most accurate first and those without accuracy last."""
    together: dict[str, list[RunData]] = {}
    for run in runs:
        together.setdefault(json.dumps(_settings(run.config), sort_keys=True, default=str), []).append(run)
    unlabelled = [Group(label="", runs=tuple(members)) for members in together.values()]
    named = zip(_labels(unlabelled), unlabelled, strict=True)
    groups = [dataclasses.replace(group, label=label) for label, group in named]
    return sorted(groups, key=_worst_last)


def _worst_last(group: Group) -> float:
    mean, _ = group.accuracy
    return math.inf if math.isnan(mean) else -mean


def _settings(config: RunConfig) -> dict[str, Any]:
    """All but the seed; the scheme's options beside the others."""
    values = {name: value for name, value in dataclasses.asdict(config).items() if name != "seed"}
    options = values.pop("options")
    return values | {f"option {name}": value for name, value in options.items()}


def _labels(groups: Sequence[Group]) -> list[str]:
    """Short and different from each other: what is left to a default is named only where it must be."""
    settings = [_settings(group.config) for group in groups]
    names = [name for name in FIELDS if name in settings[0]]
    names += sorted({name for values in settings for name in values} - set(names))
    differing = [name for name in names if len({repr(values.get(name)) for values in settings}) > 1]
    short, full = [], []
    for group, values in zip(groups, settings, strict=True):
        ignored = _ignored_budgets(group)
        parts = {name: _part(name, values.get(name)) for name in differing if name not in ignored}
        chosen = [part for name, part in parts.items() if not _by_default(name, values.get(name))]
        short.append(clean(", ".join(chosen)))
        full.append(clean(", ".join(parts.values()) or group.config.scheme))
    if all(short) and len(set(short)) == len(short):
        return short
    taken = Counter[str]()
    for index, label in enumerate(full):
        taken[label] += 1
        full[index] = label if taken[label] == 1 else f"{label} ({taken[label]})"
    return full


def _by_default(name: str, value: Any) -> bool:
    return value is None or (name in ("lr", "bound", "clip", "secure") and not value)


def _ignored_budgets(group: Group) -> set[str]:
    """What was asked for and not kept, because the scheme is a yardstick without it: no name for it."""
    largest = 2 * group.config.bytes + 64  # codes that the budget counts, and an envelope
    return {
        name
        for name, ignored in (
            ("epsilon", group.notion == "none"),
            ("bytes", group.last("bytes_up") > largest),
        )
        if ignored
    }


def _part(name: str, value: Any) -> str:
    """A setting as a label says it."""
    if name in ("scheme", "dataset", "model", "partition", "optimizer"):
        return str(value)
    if name == "epsilon":
        return f"ε {value:g}"
    if name == "bytes":
        return f"{value} bytes"
    if name in ("lr", "bound") and value == 0:
        return f"{name} by rule"
    if name == "clip" and value == 0:
        return "no clip"
    if name == "participation":
        words = {"all": "all clients", "once": "one report a client"}
        return words.get(value, f"{value} clients a round")
    if name == "secure":
        return "secure noise" if value else "seeded noise"
    if name.startswith("option "):
        option = name.removeprefix("option ")
        return f"{option} default" if value is None else f"{option} {_plain(value)}"
    return f"{name} {_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
