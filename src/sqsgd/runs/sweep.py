"""Sweeps: every arm in every panel, each at the best of the same learning rates, several runs at a time."""

from __future__ import annotations

import dataclasses
import fcntl
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
from sqsgd.runs import train
from sqsgd.training.run_folder import CONFIG, SUMMARY, SWEEP, RunFolder, read_object
from sqsgd.training.settings import FIELDS, USUAL_ROUNDS, RunConfig, load_config, make_config
from sqsgd.training.summary import ACCURACY, mean_interval, read_headline

TUNING_SEED = 1000
FIGURES = {
    name.partition("-")[2]: name
    for name in ("figure1-communication", "figure2-subsampling", "figure3-tradeoff", "figure4-privacy")
}
UNNAMED = ("rounds", "batch", "evaluate_every", "checkpoint_every", "test_images", "data_dir", "workers")
"""Keys that a panel's name omits: how long it runs and how it is measured."""

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One arm in one panel: the values that its runs have in common."""

    name: str
    panel: str
    arm: str
    values: Values

    def job(self, kind: str, lr: float, seed: int, **more: Any) -> Job:
        folder = f"{kind}/{self.name}/" + (f"lr-{lr:g}" if kind == "tuning" else f"seed-{seed}")
        values = {"workers": 1, **self.values, "lr": lr, "seed": seed, **more}
        if values.get("ledgers"):  # a ledger is capped at the cost of one run
            values["ledgers"] = str(Path(values["ledgers"]) / folder)
        return Job(folder=folder, cell=self, config=make_config(values, where=self.name))


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a sweep. Its folder is relative to the sweep's."""

    folder: str
    cell: Cell
    config: RunConfig


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
                raise ValueError(f"{name} is empty, so nothing can run")
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
            reserved = f"{TUNING_SEED} is reserved for the tuning runs"
            raise ValueError(f"seeds: {reserved}; use other seeds, or one rate")
        names = [cell.name for cell in cells]
        for cell in cells:
            if names.count(cell.name) > 1:
                raise ValueError(f"two arms or panels are the same: {cell.name}; list each once")
            for name, instead in (("lr", "rates"), ("seed", "seeds")):
                if name in cell.values:
                    raise ValueError(f"{name} = {cell.values[name]!r}: all arms and panels share {instead}")
            cell.job("runs", self.rates[0], self.seeds[0])  # all are checked before any runs

    def cells(self) -> list[Cell]:
        """Return every arm in every panel. A panel's name shows the keys in which the panels differ."""
        cells, first = [], self.panels[0] if self.panels else {}
        differing = {
            key
            for panel in self.panels
            for key in panel.keys() | first.keys()
            if key not in UNNAMED and panel.get(key) != first.get(key)
        }
        for panel in self.panels:
            common = {key: value for key, value in panel.items() if key != "arms"}
            own = {key: value for key, value in common.items() if key == "name" or key in differing}
            for arm in panel.get("arms", self.arms):
                name = "_".join(filter(None, (slug(own), slug(arm))))
                values = merged(self.base, common, arm)
                if "name" in common or "name" in arm:
                    values["name"] = ": ".join(filter(None, (words(own), words(arm))))
                cells.append(Cell(name=name, panel=words(own), arm=words(arm), values=values))
        return cells

    def tuning_jobs(self) -> list[Job]:
        """One run per learning rate of each cell, measured once, on training images that were held out."""
        if len(self.rates) == 1:
            return []
        return [self.tuning_job(cell, rate) for cell in self.cells() for rate in self.rates]

    def tuning_job(self, cell: Cell, rate: float) -> Job:
        rounds = self.tuning_rounds or cell.values.get("rounds") or USUAL_ROUNDS
        keys = {"validation": self.validation, "rounds": rounds, "evaluate_every": rounds}
        return cell.job("tuning", rate, TUNING_SEED, **keys)

    def jobs(self, chosen: Mapping[str, float]) -> list[Job]:
        cells = [cell for cell in self.cells() if cell.name in chosen]
        return [cell.job("runs", chosen[cell.name], seed) for seed in self.seeds for cell in cells]

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(dataclasses.asdict(self))


def merged(*parts: Values) -> dict[str, Any]:
    """Return the keys of all parts, the last first; options of the scheme are merged one by one."""
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
    found = re.sub(r"(?:[^\w.]|_)+", "-", words(values)).strip("-.")
    if values and not found:
        raise ValueError(f"name = {words(values)!r} must hold a letter or a digit")
    return found


def make_sweep(given: Values, where: str, *, small: bool = False) -> Sweep:
    """Return a sweep from a file's keys and values; ``small``: its table [small] takes precedence."""
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
            instead = f"which belongs under [base], or use: sqsgd train --config {where}"
            raise ValueError(f"{where}: {name} is a key of a run, {instead}")
    values = checks.fields(values, known, where)
    for name in ("panels", "arms"):
        if not all(isinstance(each, dict) for each in values.get(name, [])):
            raise ValueError(f"{where}: write each of {name} as a table [[{name}]]")
    if "title" not in values:
        raise ValueError(f"{where}: the key 'title' is missing")
    panels = [dict(panel) for panel in values.get("panels", [{}])]
    for panel in panels:
        smaller = panel.pop("small", {})
        panel.update(smaller if small else {})
    values["panels"] = panels
    values = {name: tuple(each) if isinstance(each, list) else each for name, each in values.items()}
    return Sweep(**values)


def load_sweep(path: Path, *, small: bool = False) -> Sweep:
    if path.is_dir():
        raise ValueError(f"config = {str(path)!r} is a folder; name a TOML file")
    return make_sweep(read_toml(path), str(path), small=small)


def experiment_file(path: Path) -> Path:
    """Return the path itself, or the experiment of this name in the installed package or the checkout."""
    if path.exists():
        return path
    folders = (Path(__file__).parents[3] / "experiments", Path(__file__).parent / "figures")
    names = {file.stem: file for folder in folders for file in sorted(folder.glob("*.toml"))}
    short = {file.partition("-")[0]: names[file] for file in FIGURES.values() if file in names}
    names = {**short, **names}  # figure1 is short for figure1-communication
    if path.stem in names and (str(path) == path.stem or path.parent.name == "experiments"):
        return names[path.stem]
    known = f"{checks.meant(path.stem, names)} (the package has {', '.join(sorted(names))})"
    raise ValueError(f"{path} does not exist{known}")


class Interrupted(Exception):
    """The sweep was asked to stop. It can be resumed."""


def check_folder(out: Path) -> None:
    """Raise ValueError unless a new sweep can use this folder."""
    RunFolder(out).check_free()
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: choose a new or an empty folder as --out")


def begin_sweep(sweep: Sweep, out: Path) -> None:
    """Write the file of a new sweep, from which it is resumed."""
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / SWEEP, sweep.to_toml().encode())


def check_runs(sweep: Sweep) -> list[str]:
    """Check every arm in every panel. Returns a line for those that are predicted to learn nothing."""
    from sqsgd.learning.features import extractor_and_model

    finals = [cell.job("runs", sweep.rates[0], sweep.seeds[0]) for cell in sweep.cells()]
    tuning = {job.cell.name: job for job in sweep.tuning_jobs()}  # one of each cell: only rates differ
    data, told = dict[tuple[str, ...], Any](), dict[str, list[str]]()
    for job in (*finals, *tuning.values()):
        config, cell = job.config, job.cell
        place = f"arm {cell.arm!r}" + (f", panel {cell.panel!r}" if cell.panel else "")
        try:
            train.check_parts(config)
            source = (config.dataset, config.data_dir, extractor_and_model(config.features, config.model)[0])
            if source not in data:
                data[source] = train.load_data(config)
            problem = train.load_problem(config, loaded=data[source])
            if job in finals:
                config = config.on(problem.dataset.owners, len(problem.dataset.train_labels))
                _, scheme, _ = train.fitted(config, problem.dim)
                told.setdefault(train.outlook(config, scheme), []).append(place)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
    return [f"{'; '.join(places)}: {line}" for line, places in told.items() if line]


def run_sweep(
    sweep: Sweep, out: Path, *, jobs: int, stop: Sequence[object] = ()
) -> Iterator[tuple[str, int, int]]:
    """Choose learning rates, do the final runs, write table.json. Stops once ``stop`` is not empty.

    Yields what is done, its rounds and the rounds of all of it.
    """
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

        def run_all(stage: str, todo: list[Job]) -> Iterator[tuple[str, int, int]]:
            rounds.value, failed, of_rounds = 0, 0, sum(job.config.rounds for job in todo)
            waiting: set[Future[bool]] = {pool.submit(_run_job, job, out) for job in todo}
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                failed += sum(not future.result() for future in done)
                if stop and not stopping.is_set():
                    stopping.set()
                told = f"{stage}: {len(todo) - len(waiting)} of {len(todo)} runs, "
                told += f"{failed} failed, " if failed else ""
                yield f"{told}round {rounds.value:,} of {of_rounds:,}", rounds.value, of_rounds
            if stopping.is_set():
                raise Interrupted

        try:
            todo = sweep.tuning_jobs()
            while todo:
                yield from run_all("choosing learning rates", todo)
                todo = wider(sweep, out)
            chosen = choose(sweep, out)
            yield from run_all("training", sweep.jobs(chosen))
        except BrokenProcessPool:
            raise OSError("a process of the sweep died (out of memory?)") from None
    write_atomically(out / "table.json", json.dumps(table(sweep, out, chosen), indent=2).encode())


def choose(sweep: Sweep, out: Path) -> dict[str, float]:
    """Return the best learning rate of each cell, except for cells where all of them failed."""
    if len(sweep.rates) == 1:
        return dict.fromkeys((cell.name for cell in sweep.cells()), sweep.rates[0])
    chosen: dict[str, float] = {}
    for cell in sweep.cells():
        rank, _, asked = min(tried(sweep, cell, out), default=(math.inf, 0.0, 0.0))
        if rank < math.inf:
            chosen[cell.name] = asked
    return chosen


def tried(sweep: Sweep, cell: Cell, out: Path) -> list[tuple[float, float, float]]:
    """Return the rank, the rate and the rate as asked for (0: by the rule) of each tuning run that has ended.

    The best run has the least rank. A run that failed has an infinite one.
    """
    found = []
    for folder in (out / "tuning" / cell.name).glob("lr-*"):
        asked, summary = float(folder.name.removeprefix("lr-")), summary_of(folder)
        if summary and (measured := read_headline(summary)) and not math.isnan(measured[1]):
            headline, value = measured
            rank = summary["test_loss"] if sweep.choose_by == "loss" else headline.rank(value)
            found.append((rank, float(summary.get("lr", asked)), asked))
        elif summary or (folder / "error.txt").exists():
            found.append((math.inf, asked, asked))
    return sorted(found)


def wider(sweep: Sweep, out: Path) -> list[Job]:
    """Tuning runs at the next rate beyond the grid, for cells whose best rate is at its edge.

    The grid goes on with 1 and 3 times powers of ten, until a rate on each side of the best is worse.
    """
    jobs = []
    for cell in sweep.cells():
        if len({rank for rank, *_ in tried(sweep, cell, out)}) < 2:
            continue  # all failed, or all are as good: rates decide nothing
        down, up = edges(sweep, cell, out)
        steps = [factor * 10.0**power for power in range(-6, 6) for factor in (1, 3)]
        jobs += [sweep.tuning_job(cell, step) for step in steps if step > 1.01 * up > 0][:1]
        jobs += [sweep.tuning_job(cell, step) for step in steps if step < 0.99 * down][-1:]
    return jobs


def edges(sweep: Sweep, cell: Cell, out: Path) -> tuple[float, float]:
    """The least and the largest rate that was tried, where it is the best or as good; 0 where it is worse."""
    ranks = {rate: rank for rank, rate, _ in tried(sweep, cell, out) if rate > 0}
    best = min(ranks.values(), default=math.inf)
    low, high = (end(ranks) if best < math.inf else 0.0 for end in (min, max))
    return low if ranks.get(low) == best else 0.0, high if ranks.get(high) == best else 0.0


def summary_of(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a run, or None if it did not finish."""
    path = folder / SUMMARY
    if not path.exists():
        return None
    summary = read_object(path.read_bytes()) or {}
    measured = read_headline(summary)
    if measured is None or not isinstance(measured[1], int | float) or "seconds" not in summary:
        raise ValueError(f"{path} is damaged (no metric or time): delete it, and --resume writes it again")
    return summary


def table(sweep: Sweep, out: Path, chosen: dict[str, float]) -> list[dict[str, Any]]:
    """One row per cell, the best first within its panel."""
    rows, ranks = [], dict[str, int]()
    for place, cell in enumerate(sweep.cells()):
        folders = [out / f"runs/{cell.name}/seed-{seed}" for seed in sweep.seeds]
        found = [summary for folder in folders if (summary := summary_of(folder))]
        stage = "runs" if cell.name in chosen else "tuning"
        first = found[0] if found else {}
        headline, _ = read_headline(first) or (ACCURACY, None)
        mean, half = mean_interval([measured[1] for each in found if (measured := read_headline(each))])
        value = None if math.isnan(mean) else mean
        losses = [summary["test_loss"] for summary in found if summary.get("test_loss") is not None]
        ranks[cell.panel] = ranks.get(cell.panel, place)
        row = {
            "panel": cell.panel,
            "arm": cell.arm,
            "accuracy": value if headline.is_share else None,
            "metric": headline.name,
            "better": headline.better,
            "value": value,
            "test_loss": sum(losses) / len(losses) if losses else None,
            "half_width": None if math.isnan(half) else half,
            "runs": len(found),
            "lr": first.get("lr", chosen.get(cell.name)),
            "lr_by_rule": chosen.get(cell.name) == 0,
            "lr_at_edge": any(edges(sweep, cell, out)),
            **{name: first.get(name) for name in ("decay", "epsilon", "notion", "bytes_up")},
            "seconds": sum(summary["seconds"] for summary in found) / max(len(found), 1),
            "failed": [
                path.read_text().strip() for path in sorted((out / stage / cell.name).glob("*/error.txt"))
            ],
        }
        rows.append((ranks[cell.panel], math.inf if value is None else headline.rank(value), place, row))
    return [row for *_, row in sorted(rows, key=lambda each: each[:3])]


_rounds: Any = None  # shared between the processes: the number of rounds done
_stopping: Any = None  # shared: set when the runs must stop


def _begin(rounds: Any, stopping: Any) -> None:
    """In each process: the parent handles signals, and when it ends, so does this."""
    global _rounds, _stopping
    _rounds, _stopping = rounds, stopping
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)

    def end_with_parent() -> None:
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        os._exit(1)  # safe at any time, like a kill: there are checkpoints

    threading.Thread(target=end_with_parent, daemon=True).start()


def _run_job(job: Job, out: Path) -> bool:
    """Run a job from the start or from its checkpoint. Returns whether it succeeded."""
    folder, files = out / job.folder, RunFolder(out / job.folder)

    def done(rounds: int) -> None:
        with _rounds.get_lock():
            _rounds.value += rounds

    if files.finished or _stopping.is_set():
        done(job.config.rounds if files.finished else 0)
        return True
    try:
        if files.begun and (folder / CONFIG).exists():
            run = train.prepare(load_config(folder / CONFIG), folder)
        else:
            run = train.prepare(job.config, folder).started()
        done(run.config.rounds - len(run))
        for _ in run.rounds(stop=_stopping.is_set):
            done(1)
        (folder / "error.txt").unlink(missing_ok=True)
    except (ValueError, ArithmeticError, RuntimeError, MemoryError, TypeError) as error:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "error.txt", f"{type(error).__name__}: {error}\n".encode())
        return False
    return True
