"""Sweeps: every arm in every panel, each at the best of the same learning rates.

A sweep's file:

    title = "..."            seeds = [1, 2, 3]            rates = [0.01, 0.1]
    tuning_rounds = 188      # rounds of the runs that choose the rates; 0: as many as the others
    validation = 0.1         # share of the training images that chooses the rates
    choose_by = "metric"     # what chooses them: the headline metric, or "loss"
    [base]                   # any keys of a run's configuration
    [[panels]]               # keys of one picture, such as epsilon = 400.0; may hold small and arms
    [[arms]]                 # keys of one curve, such as scheme = "sqsgd", in panels without arms
                             # name = "..." in either: what the table, figures and page call it
    [small]                  # for --small: other seeds, rates, validation, and keys under base
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqsgd import checks
from sqsgd.files.toml_reader import read_toml
from sqsgd.schemes import check_name
from sqsgd.training.settings import FIELDS, RunConfig, make_config

TUNING_SEED = 1000
FIGURES = {
    "communication": "figure1-communication",
    "subsampling": "figure2-subsampling",
    "tradeoff": "figure3-tradeoff",
    "privacy": "figure4-privacy",
}
"""The paper's ablations by name."""

UNNAMED = ("rounds", "batch", "evaluate_every", "checkpoint_every", "test_images", "data_dir", "workers")
"""Keys that are left out of a panel's name: how long it runs and how it is measured."""

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep: its folder, relative to the sweep's, and its configuration."""

    folder: str
    cell: str
    """The name of its cell."""
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One arm in one panel: what its runs have in common."""

    name: str
    panel: str
    arm: str
    values: Values

    def job(self, kind: str, lr: float, seed: int, **more: Any) -> Job:
        """A run of this cell."""
        end = f"lr-{lr:g}" if kind == "tuning" else f"seed-{seed}"
        folder = f"{kind}/{self.name}/{end}"
        values = {"workers": 1, **self.values, "lr": lr, "seed": seed, **more}
        if values.get("ledgers"):  # a ledger is capped at the cost of one run
            values["ledgers"] = str(Path(values["ledgers"]) / folder)
        return Job(folder=folder, cell=self.name, config=make_config(values, where=self.name))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Panels times arms times seeds, at learning rates chosen on held-out training images."""

    title: str
    arms: tuple[Values, ...] = ()
    base: Values = field(default_factory=dict)
    panels: tuple[Values, ...] = ({},)
    rates: tuple[float, ...] = (0.0,)
    seeds: tuple[int, ...] = (1, 2, 3)
    validation: float = 0.1
    tuning_rounds: int = 0
    choose_by: str = "metric"

    def __post_init__(self) -> None:
        cells = self.cells()
        lists = {"panels": self.panels, "rates": self.rates, "seeds": self.seeds, "arms": cells}
        for name, given in lists.items():
            if not given:
                raise ValueError(f"{name} is empty: there is nothing to run")
            if name in ("rates", "seeds") and len(set(given)) < len(given):
                raise ValueError(f"{name} = {list(given)} holds a value twice")
        for rate in self.rates:
            checks.real("rates", rate, 0.0, 1e6)
        for seed in self.seeds:
            checks.integer("seeds", seed, 0, 2**64 - 1)
        checks.real("validation", self.validation, 0.01, 0.9)
        checks.integer("tuning_rounds", self.tuning_rounds, 0, 2**31)
        if self.choose_by not in ("metric", "loss"):
            raise ValueError(f"choose_by = {self.choose_by!r} must be one of metric, loss")
        if TUNING_SEED in self.seeds and len(self.rates) > 1:
            raise ValueError(
                f"seeds: {TUNING_SEED} is reserved for the tuning runs; use other seeds, or one rate"
            )
        names = [cell.name for cell in cells]
        for cell in cells:
            if names.count(cell.name) > 1:
                raise ValueError(f"two arms or panels are the same: {cell.name}; list each once")
            for name, instead in (("lr", "rates"), ("seed", "seeds")):
                if name in cell.values:
                    raise ValueError(f"{name} = {cell.values[name]!r}: all arms and panels share {instead}")
            job = cell.job("runs", self.rates[0], self.seeds[0])  # all are checked before any runs
            if job.config.scheme != "auto":
                check_name("scheme", job.config.scheme)

    def cells(self) -> list[Cell]:
        """Every arm in every panel."""
        cells = []
        for panel in self.panels:
            common = {key: value for key, value in panel.items() if key != "arms"}
            own = {key: value for key, value in common.items() if key == "name" or self._differs(key)}
            for arm in panel.get("arms", self.arms):
                name = "_".join(filter(None, (slug(own), slug(arm))))
                values = merged(self.base, common, arm)
                if "name" in common or "name" in arm:
                    values["name"] = ": ".join(filter(None, (words(own), words(arm))))
                cells.append(Cell(name=name, panel=words(own), arm=words(arm), values=values))
        return cells

    def _differs(self, key: str) -> bool:
        """Whether the panels differ in this key, so that their names must show it."""
        return key not in UNNAMED and any(panel.get(key) != self.panels[0].get(key) for panel in self.panels)

    def tuning_jobs(self) -> list[Job]:
        """One run per learning rate of each cell, measured once, on training images that were held out."""
        if len(self.rates) == 1:
            return []
        jobs = []
        for cell in self.cells():
            rounds = self.tuning_rounds or cell.values.get("rounds", RunConfig.rounds)
            keys = {"validation": self.validation, "rounds": rounds, "evaluate_every": rounds}
            jobs += [cell.job("tuning", rate, TUNING_SEED, **keys) for rate in self.rates]
        return jobs

    def jobs(self, chosen: Mapping[str, float]) -> list[Job]:
        """The final runs, for the cells that have a chosen learning rate."""
        cells = [cell for cell in self.cells() if cell.name in chosen]
        return [cell.job("runs", chosen[cell.name], seed) for seed in self.seeds for cell in cells]

    def to_toml(self) -> str:
        """The complete sweep as TOML."""
        import tomli_w

        return tomli_w.dumps(dataclasses.asdict(self))


def merged(*parts: Values) -> dict[str, Any]:
    """The keys of all parts, the last first; options of the scheme are merged one by one."""
    values = {key: value for part in parts for key, value in part.items()}
    options = {key: value for part in parts for key, value in part.get("options", {}).items()}
    return {**values, "options": options} if options else values


def words(values: Values) -> str:
    """The name of an arm or panel, or a short description: its scheme, then the other keys and values."""
    if "name" in values:
        return str(values["name"])
    flat = {**values, **values.get("options", {})}
    scheme = [str(flat["scheme"])] if "scheme" in flat else []
    rest = {key: value for key, value in flat.items() if key not in ("scheme", "options")}
    shown = [
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in rest.items()
    ]
    return ", ".join(scheme + shown)


def slug(values: Values) -> str:
    """The name or description as the name of a folder."""
    found = re.sub(r"(?:[^\w.]|_)+", "-", words(values)).strip("-.")
    if values and not found:
        raise ValueError(f"name = {words(values)!r} must hold a letter or a digit")
    return found


def make_sweep(given: Values, where: str, *, small: bool = False) -> Sweep:
    """A sweep from a file's keys and values; ``small``: those of its table [small] take precedence."""
    values: dict[str, Any] = dict(given)
    smaller = values.pop("small", {})
    if small:
        if not smaller:
            raise ValueError(f"{where} has no table [small]: remove --small")
        values = {**values, **smaller, "base": {**values.get("base", {}), **smaller.get("base", {})}}
    values["panels"] = [_panel(panel, small=small) for panel in values.get("panels", [{}])]
    known = [entry.name for entry in dataclasses.fields(Sweep)]
    for name in values:
        if name in FIELDS and name not in known:
            raise ValueError(
                f"{where}: {name} is a key of a run, which belongs under [base], or use: "
                f"sqsgd train --config {where}"
            )
    kinds: dict[str, type] = {
        "title": str, "base": dict, "validation": float, "tuning_rounds": int, "choose_by": str
    }  # fmt: skip
    values = checks.fields(values, {name: kinds.get(name, list) for name in known}, where)
    for name in ("panels", "arms"):
        if not all(isinstance(each, dict) for each in values.get(name, [])):
            raise ValueError(f"{where}: write each of {name} as a table [[{name}]]")
    if "title" not in values:
        raise ValueError(f"{where}: the key 'title' is missing")
    parts: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in values.items()
    }
    return Sweep(**parts)


def _panel(panel: Any, *, small: bool) -> Any:
    """A panel with the keys of its table ``small`` applied, or without them."""
    if not isinstance(panel, dict):
        return panel
    smaller = panel.get("small", {})
    whole = {key: value for key, value in panel.items() if key != "small"}
    return {**whole, **smaller} if small else whole


def load_sweep(path: Path, *, small: bool = False) -> Sweep:
    """A sweep from a file."""
    if path.is_dir():
        raise ValueError(f"config = {str(path)!r} is a folder; name a TOML file")
    if not path.is_file():
        raise ValueError(f"{path} does not exist")
    return make_sweep(read_toml(path), str(path), small=small)


def figure_named(name: str) -> tuple[str, str]:
    """An ablation by its name or its figure: its name, and the name of its file.

    >>> figure_named("figure1")
    ('communication', 'figure1-communication')
    """
    for known, file in FIGURES.items():
        if name in (known, file, file.partition("-")[0]):
            return known, file
    files = [f"{known} ({file.partition('-')[0]})" for known, file in FIGURES.items()]
    hint = checks.meant(name, FIGURES)
    raise ValueError(f"unknown ablation {name!r}{hint} (there are {', '.join(files)})")


def figure_file(name: str) -> Path:
    """The file of an experiment of the package: ``figure1-communication``, or ``figure1`` for short."""
    names = figure_names()
    if name not in names:
        known = ", ".join(sorted(names))
        raise ValueError(f"there is no {name!r}{checks.meant(name, names)} (there are {known})")
    return names[name]


def experiment_file(path: Path) -> Path:
    """The path itself, or the package's experiment of this name; ValueError if there is neither."""
    names = figure_names()
    if path.exists():
        return path
    if path.stem in names and (str(path) == path.stem or path.parent.name == "experiments"):
        return names[path.stem]
    known = ", ".join(sorted(names))
    raise ValueError(f"{path} does not exist{checks.meant(path.stem, names)} (the package has {known})")


def figure_names() -> dict[str, Path]:
    """The files of the package's experiments, by name, and by the first word of it if no other has it.

    They are in the installed package, or in a checkout.
    """
    folders = (Path(__file__).parents[3] / "experiments", Path(__file__).parent / "figures")
    files = {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}
    firsts = Counter(stem.partition("-")[0] for stem in files)
    short = {stem.partition("-")[0]: path for stem, path in files.items()}
    return {**{first: path for first, path in short.items() if firsts[first] == 1}, **files}


def best_rates(results: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """The learning rate of the best result of each cell, from (cell, rate, result)."""
    best: dict[str, tuple[float, float]] = {}
    for name, rate, result in results:
        if name not in best or result > best[name][0]:
            best[name] = (result, rate)
    return {name: rate for name, (_, rate) in best.items()}
