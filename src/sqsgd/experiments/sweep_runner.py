"""Runs a sweep in a folder, several runs at a time; finished runs are not repeated."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqsgd.experiments.sweep import Cell, Job, Sweep, best_rates, load_sweep
from sqsgd.files.durable import write_atomically
from sqsgd.numerics.intervals import mean_interval
from sqsgd.runs.headline import ACCURACY, Headline, read_headline
from sqsgd.runs.run_folder import CONFIG, METRICS, SWEEP
from sqsgd.training.run_folder import CHECKPOINT as CHECKPOINT

FILE = SWEEP
OF_PROBLEM = (
    "model",
    "loss",
    "clients",
    "partition",
    "batch",
    "minibatch",
    "validation",
    "test_images",
    "seed",
    "device",
)
"""Keys of a run that decide, with its data, what ``load_problem`` makes and checks."""


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
    if (out / FILE).exists():
        if not resume:
            raise ValueError(f"{out} holds a sweep already: --resume it, or choose another --out")
        if load_sweep(out / FILE) != sweep:
            raise ValueError(f"{out / FILE} is another sweep: choose another --out")
        return
    if resume:
        raise ValueError(f"{out} holds no {FILE}: there is nothing to resume")
    if (out / CONFIG).exists() or (out / METRICS).exists():
        raise ValueError(f"{out} holds a training run: choose another --out")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: choose a new or an empty folder as --out")


def open_folder(sweep: Sweep, out: Path, *, resume: bool) -> None:
    """Make a sweep's folder, or check that the folder to resume is of the same sweep."""
    check_folder(sweep, out, resume=resume)
    if not resume:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / FILE, sweep.to_toml().encode())


def check_data(sweep: Sweep) -> None:
    """Raise ValueError if a dataset of the sweep is missing or a model unknown."""
    from sqsgd.learning.files import SOURCES, find_dataset
    from sqsgd.learning.models import unknown_model

    wanted = {(cell.values.get("dataset", ""), cell.values.get("data_dir", "")) for cell in sweep.cells()}
    for name, folder in sorted(wanted):
        if name in SOURCES:
            find_dataset(name, folder or None)
    for name in sorted({cell.values.get("model", "lenet5") for cell in sweep.cells()}):
        if problem := unknown_model(name):
            raise ValueError(problem)


def check_runs(sweep: Sweep) -> list[str]:
    """Check every arm in every panel as its runs would, without training; ValueError naming the first wrong.

    Returns a line for those that are predicted to learn nothing, whatever the rate. Data are loaded once, and
    runs that share data, clients and model share the problem.
    """
    from sqsgd.experiments import runner
    from sqsgd.learning.features import extractor_and_model

    cells = {cell.name: cell for cell in sweep.cells()}
    first = [cell.job("runs", sweep.rates[0], sweep.seeds[0]) for cell in cells.values()]
    by_data: dict[tuple[str, ...], list[Job]] = {}
    lines: dict[str, str] = {}
    for job in [*first, *sweep.tuning_jobs()]:
        with _naming(cells[job.cell]):
            runner.check_parts(job.config)
            features, _ = extractor_and_model(job.config.features, job.config.model)
        by_data.setdefault((job.config.dataset, job.config.data_dir, features), []).append(job)
    for jobs in by_data.values():
        with _naming(cells[jobs[0].cell]):
            data = runner.load_data(jobs[0].config)
        problems: dict[tuple[object, ...], tuple[int, int]] = {}
        for job in jobs:
            config = job.config
            shared = (*(getattr(config, name) for name in OF_PROBLEM), config.participants)
            with _naming(cells[job.cell]):
                if shared not in problems:
                    problem = runner.load_problem(config, loaded=data)
                    problems[shared] = problem.dim, problem.clients
                if job in first:  # the others differ in data, rate and rounds alone
                    dim, clients = problems[shared]
                    config = dataclasses.replace(config, clients=clients)
                    runner.fitted(config, dim)
                    lines[job.cell] = runner.outlook(config, dim)
    told: dict[str, list[str]] = {}
    for name, cell in cells.items():
        told.setdefault(lines[name], []).append(_place(cell))
    return [f"{'; '.join(places)}: {line}" for line, places in told.items() if line]


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
        (out / FILE).open("rb") as held,
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
    results = []
    for cell in sweep.cells():
        for rate in sweep.rates:
            summary = summary_of(out / f"tuning/{cell.name}/lr-{rate:g}")
            if summary and (measured := read_headline(summary)) and not math.isnan(measured[1]):
                headline, value = measured
                rank = summary["test_loss"] if sweep.choose_by == "loss" else headline.rank(value)
                results.append((cell.name, rate, -rank))
    return best_rates(results)


def summary_of(folder: Path) -> dict[str, Any] | None:
    """The summary of a run; None if it did not finish."""
    path = folder / "summary.json"
    if not path.exists():
        return None
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
        timed, measured = summary["seconds"] >= 0, read_headline(summary)
        if measured is None or not isinstance(measured[1], int | float):
            raise ValueError("no metric was measured")
        return summary if timed else None
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
    return sorted(rows, key=lambda row: (panels.index(row["panel"]), _rank(row)))


def _rank(row: Mapping[str, Any]) -> float:
    """Lower for better results; those without any come last."""
    headline = Headline(name=row["metric"], better=row["better"])
    return math.inf if row["value"] is None else headline.rank(row["value"])


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
    from sqsgd.experiments import runner

    folder = out / job.folder
    if (folder / "summary.json").exists():
        with _rounds.get_lock():
            _rounds.value += job.config.rounds
        return True
    try:
        if _stopping.is_set():
            return True
        run = runner.prepare(job.config, folder)
        state = runner.resume(run) if (folder / CHECKPOINT).exists() else runner.start(run)
        with _rounds.get_lock():
            _rounds.value += state.round
        for _ in runner.train(run, state, stop=_stopping.is_set):
            with _rounds.get_lock():
                _rounds.value += 1
        (folder / "error.txt").unlink(missing_ok=True)
    except (ValueError, ArithmeticError, RuntimeError, MemoryError, TypeError) as error:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "error.txt", f"{type(error).__name__}: {error}\n".encode())
        return False
    return True
