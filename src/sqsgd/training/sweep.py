"""Sweeps: every arm in every panel, each at the best of the same learning rates, several runs at a time.

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

import contextlib
import dataclasses
import fcntl
import itertools
import json
import math
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqsgd._internal import checks
from sqsgd._internal.files import read_toml, write_atomically
from sqsgd.schemes import check_name
from sqsgd.training import train
from sqsgd.training.run_folder import CONFIG, METRICS, SUMMARY, SWEEP, RunFolder
from sqsgd.training.settings import FIELDS, RunConfig, load_config, make_config
from sqsgd.training.summary import ACCURACY, Headline, mean_interval, read_headline

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
    shown = [str(flat["scheme"])] if "scheme" in flat else []
    for key, value in flat.items():
        if key not in ("scheme", "options"):
            shown.append(f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}")
    return ", ".join(shown)


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
    known: dict[str, type] = {entry.name: list for entry in dataclasses.fields(Sweep)}
    known |= {"title": str, "base": dict, "validation": float, "tuning_rounds": int, "choose_by": str}
    for name in values:
        if name in FIELDS and name not in known:
            raise ValueError(
                f"{where}: {name} is a key of a run, which belongs under [base], or use: "
                f"sqsgd train --config {where}"
            )
    values = checks.fields(values, known, where)
    for name in ("panels", "arms"):
        if not all(isinstance(each, dict) for each in values.get(name, [])):
            raise ValueError(f"{where}: write each of {name} as a table [[{name}]]")
    if "title" not in values:
        raise ValueError(f"{where}: the key 'title' is missing")
    panels = []
    for panel in values.get("panels", [{}]):
        of_small = panel.get("small", {}) if small else {}
        panels.append({key: value for key, value in panel.items() if key != "small"} | of_small)
    values["panels"] = panels
    parts: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in values.items()
    }
    return Sweep(**parts)


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
    """The file of an experiment of the package, such as ``figure1-communication``."""
    return experiment_file(Path("experiments") / name)


def experiment_file(path: Path) -> Path:
    """The path itself, or the experiment of this name in the installed package or the checkout."""
    if path.exists():
        return path
    folders = (Path(__file__).parents[3] / "experiments", Path(__file__).parent / "figures")
    names = {file.stem: file for folder in folders for file in sorted(folder.glob("*.toml"))}
    short = {file.partition("-")[0]: names[file] for file in FIGURES.values() if file in names}
    names = {**short, **names}  # figure1 is short for figure1-communication
    if path.stem in names and (str(path) == path.stem or path.parent.name == "experiments"):
        return names[path.stem]
    known = ", ".join(sorted(names))
    raise ValueError(f"{path} does not exist{checks.meant(path.stem, names)} (the package has {known})")


OF_PROBLEM = (
    "model", "loss", "clients", "partition", "batch", "minibatch", "validation", "test_images", "seed",
    "device", "participants",
)  # fmt: skip
"""What decides, with a run's data, what ``load_problem`` makes and checks."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """The progress of a sweep."""

    stage: str
    rounds: int
    of_rounds: int
    runs: int
    of_runs: int
    failed: int


class Interrupted(Exception):
    """The sweep was asked to stop; it can be resumed."""


def check_folder(sweep: Sweep, out: Path, *, resume: bool) -> None:
    """Raise ValueError unless ``out`` is free, or is to be resumed and of the same sweep."""
    taken = next((place for place in (out, *out.parents) if place.is_file()), None)
    if taken is not None:
        raise ValueError(f"{taken} is a file: --out names a folder")
    if (out / SWEEP).exists():
        if not resume:
            raise ValueError(f"{out} holds a sweep already: --resume it, or choose another --out")
        if load_sweep(out / SWEEP) != sweep:
            raise ValueError(f"{out / SWEEP} is another sweep: choose another --out")
        return
    if resume:
        raise ValueError(f"{out} holds no {SWEEP}: there is nothing to resume")
    if (out / CONFIG).exists() or (out / METRICS).exists():
        raise ValueError(f"{out} holds a training run: choose another --out")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: choose a new or an empty folder as --out")


def open_folder(sweep: Sweep, out: Path, *, resume: bool) -> None:
    """Make a sweep's folder, or check that the folder to resume is of the same sweep."""
    check_folder(sweep, out, resume=resume)
    if not resume:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / SWEEP, sweep.to_toml().encode())


def check_runs(sweep: Sweep) -> list[str]:
    """Check every arm in every panel as its runs would, without training; ValueError naming the first wrong.

    Returns a line for those that are predicted to learn nothing, whatever the rate. Data are loaded once, and
    runs that share data, clients and model share the problem.
    """
    cells, lines = {cell.name: cell for cell in sweep.cells()}, dict[str, str]()
    first = [cell.job("runs", sweep.rates[0], sweep.seeds[0]) for cell in cells.values()]
    todo = [*first, *sweep.tuning_jobs()]
    for job in todo:
        with _naming(cells[job.cell]):
            train.check_parts(job.config)
            _source(job)
    for _, jobs in itertools.groupby(sorted(todo, key=_source), key=_source):
        data, problems = None, dict[tuple[object, ...], tuple[int, int]]()
        for job in jobs:
            config, shared = job.config, tuple(getattr(job.config, name) for name in OF_PROBLEM)
            with _naming(cells[job.cell]):
                data = data or train.load_data(config)
                if shared not in problems:
                    problem = train.load_problem(config, loaded=data)
                    problems[shared] = problem.dim, problem.clients
                if job in first:  # the others differ in data, rate and rounds alone
                    dim, clients = problems[shared]
                    config = dataclasses.replace(config, clients=clients)
                    train.fitted(config, dim)
                    lines[job.cell] = train.outlook(config, dim)
    told: dict[str, list[str]] = {}
    for name, cell in cells.items():
        told.setdefault(lines[name], []).append(_place(cell))
    return [f"{'; '.join(places)}: {line}" for line, places in told.items() if line]


def _source(job: Job) -> tuple[str, str, str]:
    """What decides the data of a run."""
    from sqsgd.learning.features import extractor_and_model

    features, _ = extractor_and_model(job.config.features, job.config.model)
    return job.config.dataset, job.config.data_dir, features


def _place(cell: Cell) -> str:
    """The arm, and the panel if there is more than one."""
    return f"arm {cell.arm!r}" + (f", panel {cell.panel!r}" if cell.panel else "")


@contextlib.contextmanager
def _naming(cell: Cell) -> Iterator[None]:
    """Errors name the arm, and the panel if there is one."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{_place(cell)}: {error}") from None


def run_sweep(sweep: Sweep, out: Path, *, jobs: int, stop: Sequence[object] = ()) -> Iterator[Tick]:
    """Choose learning rates, do the final runs, write table.json; stops once ``stop`` is not empty."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    rounds, stopping = context.Value("Q", 0), context.Event()
    with (
        (out / SWEEP).open("rb") as held,
        ProcessPoolExecutor(jobs, context, _begin, (rounds, stopping)) as pool,
    ):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is running the sweep in {out}") from None

        def run_all(stage: str, todo: list[Job]) -> Iterator[Tick]:
            rounds.value, failed = 0, 0
            waiting: set[Future[bool]] = {pool.submit(_run_job, job, out) for job in todo}
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                failed += sum(not future.result() for future in done)
                if stop and not stopping.is_set():
                    stopping.set()
                yield Tick(
                    stage=stage,
                    rounds=rounds.value,
                    of_rounds=sum(job.config.rounds for job in todo),
                    runs=len(todo) - len(waiting),
                    of_runs=len(todo),
                    failed=failed,
                )
            if stopping.is_set():
                raise Interrupted

        try:
            yield from run_all("choosing learning rates", sweep.tuning_jobs())
            chosen = choose(sweep, out)
            yield from run_all("training", sweep.jobs(chosen))
        except BrokenProcessPool:
            raise OSError("a process of the sweep died (out of memory?)") from None
    write_atomically(out / "table.json", json.dumps(table(sweep, out, chosen), indent=2).encode())


def choose(sweep: Sweep, out: Path) -> dict[str, float]:
    """The best learning rate of each cell, except for cells where all of them failed."""
    if len(sweep.rates) == 1:
        return dict.fromkeys((cell.name for cell in sweep.cells()), sweep.rates[0])
    chosen: dict[str, float] = {}
    for cell in sweep.cells():
        ranks: dict[float, float] = {}
        for rate in sweep.rates:
            summary = summary_of(out / f"tuning/{cell.name}/lr-{rate:g}")
            if summary and (measured := read_headline(summary)) and not math.isnan(measured[1]):
                headline, value = measured
                ranks[rate] = summary["test_loss"] if sweep.choose_by == "loss" else headline.rank(value)
        if ranks:
            chosen[cell.name] = min(ranks, key=ranks.__getitem__)
    return chosen


def summary_of(folder: Path) -> dict[str, Any] | None:
    """The summary of a run; None if it did not finish."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
        seconds, measured = summary["seconds"], read_headline(summary)
        if measured is None or not isinstance(measured[1], int | float) or seconds < 0:
            raise ValueError("no metric was measured")
        return summary
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and --resume writes it again") from None


def table(sweep: Sweep, out: Path, chosen: dict[str, float]) -> list[dict[str, Any]]:
    """One row per cell, the best first within its panel."""
    rows = []
    for cell in sweep.cells():
        folders = [out / f"runs/{cell.name}/seed-{seed}" for seed in sweep.seeds]
        found = [summary for folder in folders if (summary := summary_of(folder))]
        stage = "runs" if cell.name in chosen else "tuning"
        errors = sorted((out / stage / cell.name).glob("*/error.txt"))
        first = found[0] if found else {}
        headline, _ = read_headline(first) or (ACCURACY, None)
        values = [measured[1] for summary in found if (measured := read_headline(summary))]
        value, half_width = mean_interval(values)
        losses = [summary["test_loss"] for summary in found if summary.get("test_loss") is not None]
        rows.append(
            {
                "panel": cell.panel,
                "arm": cell.arm,
                "accuracy": None if math.isnan(value) or not headline.is_share else value,
                "metric": headline.name,
                "better": headline.better,
                "value": None if math.isnan(value) else value,
                "test_loss": sum(losses) / len(losses) if losses else None,
                "half_width": None if math.isnan(half_width) else half_width,
                "runs": len(found),
                "lr": first.get("lr", chosen.get(cell.name)),
                "lr_by_rule": chosen.get(cell.name) == 0,
                "decay": first.get("decay"),
                "epsilon": first.get("epsilon"),
                "notion": first.get("notion"),
                "bytes_up": first.get("bytes_up"),
                "seconds": sum(summary["seconds"] for summary in found) / max(len(found), 1),
                "failed": [path.read_text().strip() for path in errors],
            }
        )
    panels = [row["panel"] for row in rows]

    def place(row: Mapping[str, Any]) -> tuple[int, float]:
        headline = Headline(name=row["metric"], better=row["better"])
        return panels.index(row["panel"]), math.inf if row["value"] is None else headline.rank(row["value"])

    return sorted(rows, key=place)


# ---------------------------------------------------------------- processes

_rounds: Any = None  # shared between the processes: the number of rounds done
_stopping: Any = None  # shared: set when the runs must stop


def _begin(rounds: Any, stopping: Any) -> None:
    """In each process: ignore signals, which the parent handles, and end when the parent ends."""
    global _rounds, _stopping
    _rounds, _stopping = rounds, stopping
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Without this, the processes of a killed parent would keep training, and then wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # safe at any time, like a kill: there are checkpoints


def _run_job(job: Job, out: Path) -> bool:
    """One run from the start or from its checkpoint; returns whether it succeeded."""
    folder = out / job.folder
    if RunFolder(folder).finished:
        with _rounds.get_lock():
            _rounds.value += job.config.rounds
        return True
    try:
        if _stopping.is_set():
            return True
        if RunFolder(folder).begun and (folder / CONFIG).exists():
            run, state = train.prepare(load_config(folder / CONFIG), folder).resumed()
        else:
            run, state = train.prepare(job.config, folder).started()
        with _rounds.get_lock():
            _rounds.value += state.round
        for _ in run.rounds(state, stop=_stopping.is_set):
            with _rounds.get_lock():
                _rounds.value += 1
        (folder / "error.txt").unlink(missing_ok=True)
    except (ValueError, ArithmeticError, RuntimeError, MemoryError, TypeError) as error:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "error.txt", f"{type(error).__name__}: {error}\n".encode())
        return False
    return True
