"""Groups of runs that differ only in their seed, with labels that name how the groups differ."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from sqsgd.core import Notion
from sqsgd.report.tables import clean
from sqsgd.schemes import make_scheme
from sqsgd.training.reading import RunData, Summary
from sqsgd.training.settings import FIELDS, RunConfig
from sqsgd.training.summary import ACCURACY, Headline, mean_interval

StatedNotion = Notion | Literal["unknown"]
STATES = ("finished", "unfinished", "failed", "damaged")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs with the same configuration except for the seed."""

    label: str
    runs: tuple[RunData, ...]

    @property
    def config(self) -> RunConfig:
        return self.runs[0].config

    @property
    def counted(self) -> tuple[RunData, ...]:
        """The runs that means are taken over: the finished ones, else those in the next best state.

        Of seeded runs with the same seed one counts, the longest: the others are the same run again.
        """
        for state in STATES:
            chosen = [run for run in self.runs if run.state == state and run.rounds]
            if chosen:
                longest_first = sorted(chosen, key=lambda run: -run.rounds)
                once = {_sample(run): run.folder for run in reversed(longest_first)}
                return tuple(run for run in chosen if once[_sample(run)] == run.folder)
        return ()

    @property
    def repeated(self) -> tuple[RunData, ...]:
        """The runs that do not count because a counted one has their seed."""
        counted = {run.folder: _sample(run) for run in self.counted}
        samples = set(counted.values())
        return tuple(run for run in self.runs if run.folder not in counted and _sample(run) in samples)

    @property
    def rounds(self) -> int:
        """Those that all counted runs have completed."""
        return min((run.rounds for run in self.counted), default=0)

    @property
    def summary(self) -> Summary | None:
        """The summary of the first finished run."""
        return next((run.summary for run in self.counted if run.summary), None)

    @property
    def headline(self) -> Headline:
        """What ``accuracy`` is: accuracy, or the first metric of the runs' own loss."""
        return next((run.headline for run in self.counted if run.accuracies.size), ACCURACY)

    @property
    def accuracy(self) -> tuple[float, float]:
        """Mean of the last measured accuracies and half the width of its 95 % interval, or NaN if unknown."""
        return mean_interval([float(run.accuracies[-1]) for run in self.counted if run.accuracies.size])

    def last(self, column: str) -> float:
        """Return the largest last value of a column among the counted runs, or NaN if none is known."""
        return float(np.fmax.reduce([run.columns[column][-1] for run in self.counted], initial=math.nan))

    @property
    def seconds(self) -> float:
        """Mean time of a counted run, or NaN if it was not measured."""
        totals = [float(run.columns["seconds"].sum()) for run in self.counted]
        return math.fsum(totals) / len(totals) if totals else math.nan

    @property
    def notion(self) -> StatedNotion:
        """The notion of privacy; unknown if this version does not know it."""
        if self.summary is not None:
            return next((each for each in get_args(Notion) if each == self.summary.notion), "unknown")
        if self.last("epsilon") == math.inf:
            return "none"
        return _promised_notion(self.config)

    @property
    def states(self) -> str:
        """The number of runs in each state."""
        counts = Counter(run.state for run in self.runs)
        texts = [f"{counts[state]} {state}" for state in STATES if counts[state]]
        return ", ".join([*texts, *([f"{len(self.repeated)} with a repeated seed"] if self.repeated else [])])

    @property
    def state(self) -> str:
        """The state of the runs that means are taken over."""
        return (self.counted or self.runs)[0].state


def _sample(run: RunData) -> object:
    """What two runs of a group share if one repeats the other: the seed, unless their noise is secure."""
    return run.folder if run.config.secure or run.federation else run.config.seed


def _promised_notion(config: RunConfig) -> StatedNotion:
    """Return the scheme's notion, which does not depend on the size of the model."""
    budget: dict[str, Any] = {"dim": 65536, "epsilon": config.epsilon, "bytes": config.budget(65536)}
    try:
        return make_scheme(config.scheme, **budget, **config.options).privacy.notion
    except (ValueError, TypeError):
        return "unknown"


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Group runs and label the groups, the best first and those in which nothing was measured last."""
    together: dict[str, list[RunData]] = {}
    for run in runs:
        together.setdefault(json.dumps(_settings(run.config), sort_keys=True, default=str), []).append(run)
    unlabelled = [Group(label="", runs=tuple(members)) for members in together.values()]
    named = zip(_labels(unlabelled), unlabelled, strict=True)
    groups = [dataclasses.replace(group, label=label) for label, group in named]
    reached = [(group, group.accuracy[0]) for group in groups]
    reached.sort(key=lambda each: (math.isnan(each[1]), each[0].headline.rank(each[1])))
    return [group for group, _ in reached]


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return all settings except the seed, with the scheme's options as separate settings."""
    values = {name: value for name, value in dataclasses.asdict(config).items() if name != "seed"}
    options = values.pop("options")
    values["ledgers"] = bool(config.ledgers)  # each run of a sweep has its own folder of them
    return values | {f"option {name}": value for name, value in options.items()}


def _labels(groups: Sequence[Group]) -> list[str]:
    """Distinct labels: the names that runs were given, and for the others the settings that differ."""
    settings = [_settings(group.config) for group in groups]
    unnamed = [values for values in settings if not values["name"]]
    names = dict.fromkeys(["scheme", *FIELDS, *sorted({name for values in unnamed for name in values})])
    differing = [name for name in names if len({repr(values.get(name)) for values in unnamed}) > 1]
    taken, labels = Counter[str](), []
    for group, values in zip(groups, settings, strict=True):
        parts = [_part(name, values.get(name)) for name in differing]
        label = clean(values["name"] or ", ".join(parts) or group.config.scheme)
        taken[label] += 1
        labels.append(label if taken[label] == 1 else f"{label} ({taken[label]})")
    return labels


def _part(name: str, value: Any) -> str:
    name = name.removeprefix("option ")
    shown = "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, bool):
        shown = "on" if value else "off"
    if name in ("lr", "bound") and value == 0:
        shown = "by rule"
    if name in ("scheme", "dataset", "model", "loss", "partition", "optimizer"):
        return shown
    return f"ε {shown}" if name == "epsilon" else f"{shown} bytes" if name == "bytes" else f"{name} {shown}"
