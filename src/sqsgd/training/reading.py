"""Reading run folders: finished, unfinished, failed or damaged, of local runs and of federations."""

import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd._internal.files import NUMBERS, read_toml
from sqsgd.training.run_folder import CONFIG, METRICS, SUMMARY, SWEEP, read_lines, read_object
from sqsgd.training.settings import FEDERATIONS, RunConfig, load_config
from sqsgd.training.summary import ACCURACY, Headline, read_headline

Numbers = npt.NDArray[np.float64]

ALWAYS = ("round", "epsilon", "epsilon_total", "bytes_up", "bound", "seconds", "seconds_aggregate")
SOMETIMES = (
    "loss", "seconds_gradient", "seconds_encode", "accuracy", "test_loss", "clip_rate", "asked",
    "epsilon_evaluations",
)  # fmt: skip
ERROR = "error.txt"


@dataclass(frozen=True, kw_only=True)
class Central:
    """The central guarantee of a run whose users reported in secret orders."""

    epsilon: float
    note: str  # the guarantee, against whom it holds
    assumptions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Values that only a finished run has."""

    notion: str
    held_out: str
    bytes_up_ratio: float
    delta: float
    central: Central | None
    lr: float  # in use; a rule may have chosen it


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The content of a run's folder."""

    folder: Path
    config: RunConfig
    columns: Mapping[str, Numbers]  # a number per round for each name; NaN where it was not measured
    summary: Summary | None = None
    headline: Headline = ACCURACY  # what the column ``accuracy`` holds
    error: str = ""  # why the run failed
    damage: str = ""  # what could not be read

    @property
    def federation(self) -> bool:
        """Whether nodes or devices trained it, with their own data and model."""
        return self.config.engine in FEDERATIONS

    @property
    def rounds(self) -> int:
        return len(self.columns["round"])

    @property
    def state(self) -> str:
        begun = "failed" if self.error else "unfinished"
        return "damaged" if self.damage else "finished" if self.summary else begun

    @property
    def progress(self) -> str:
        far = "" if self.state == "finished" else f" at round {self.rounds} of {self.config.rounds}"
        return self.state + far

    @property
    def status(self) -> str:
        reason = {"failed": f": {self.error}", "damaged": f": {self.damage}"}.get(self.state, "")
        return self.progress + reason

    @property
    def rate(self) -> float:
        return self.summary.lr if self.summary else self.config.lr or math.nan

    @property
    def accuracies(self) -> Numbers:
        """The measured accuracies, or values of the run's headline, in order."""
        values = self.columns["accuracy"]
        return values[~np.isnan(values)]


def read_run(folder: Path) -> RunData:
    """Read one run. Raises ValueError if its configuration cannot be read."""
    error = ""
    if (folder / ERROR).is_file():
        lines = (folder / ERROR).read_text(errors="replace").strip().splitlines()
        error = next(iter(lines), "no reason was given")[:400]
    if not (folder / CONFIG).is_file():
        reason = f"; it failed before that was written: {error}" if error else ""
        raise ValueError(f"{folder} holds no run: config.toml is missing{reason}")
    config, summary = load_config(folder / CONFIG), _summary(folder / SUMMARY)
    columns, headline, damage = _metrics(folder / METRICS)
    rounds = len(columns["round"])
    if summary is not None and not damage and rounds != config.rounds:
        damage = f"there is a summary, but metrics.jsonl ends at round {rounds}"
    if summary is None and (folder / SUMMARY).is_file():
        damage = damage or "summary.json cannot be read"
    about: dict[str, Any] = {"folder": folder, "config": config, "columns": columns, "summary": summary}
    return RunData(**about, headline=headline, error=error, damage=damage)


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """Return the run folders among and below ``paths``, each once, sorted by name.

    Of a sweep, the runs that chose its learning rates are omitted, unless it has no others yet.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ValueError(f"{path} is not a folder" if path.exists() else f"{path} does not exist")
        below = sorted(_runs_below(path), key=_in_natural_order)
        if not below and not (path / CONFIG).is_file():
            raise ValueError(f"{path} holds no run: no config.toml in it or its subfolders")
        for folder in below or [path]:
            found.setdefault(folder.resolve(), folder)
    if not found:
        raise ValueError("nothing to report: name at least one run folder")
    return list(found.values())


def read_runs(paths: Iterable[str | Path]) -> tuple[list[RunData], list[str]]:
    """All runs that can be read, and why the others cannot; ValueError if none can be read."""
    runs, unreadable = [], []
    for folder in find_runs(paths):
        try:
            runs.append(read_run(folder))
        except (ValueError, OSError) as error:
            unreadable.append(str(error))
    if not runs:
        raise ValueError("no run can be read: " + "; ".join(unreadable))
    return runs, unreadable


def sweep_title(paths: Sequence[str | Path]) -> str:
    if len(paths) != 1 or not (file := Path(paths[0]) / SWEEP).is_file():
        return ""
    try:
        title = read_toml(file).get("title")
    except ValueError:  # the runs below are worth a page even so
        return ""
    return title if isinstance(title, str) else ""


def _runs_below(path: Path) -> Iterator[Path]:
    for place, names, files in os.walk(path):
        names[:] = [name for name in names if not name.startswith(".")]
        if SWEEP in files and "tuning" in names and any(_runs_below(Path(place) / "runs")):
            names.remove("tuning")
        if {METRICS, ERROR, SUMMARY}.intersection(files) or (CONFIG in files and not names):
            yield Path(place)


def _in_natural_order(folder: Path) -> list[tuple[int, str]]:
    """seed-2 before seed-10."""
    pieces = re.split("([0-9]+)", str(folder))
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def _metrics(path: Path) -> tuple[dict[str, Numbers], Headline, str]:
    """The complete rounds up to the first that cannot be read, their headline, and what is wrong."""
    names, rows, damage, headline = (*ALWAYS, *SOMETIMES), [], "", ACCURACY
    with path.open("rb") if path.is_file() else io.BytesIO() as file:
        for number, line in enumerate(read_lines(file)):
            values = dict(line or {})
            if (measured := read_headline(values)) is not None:
                headline, values["accuracy"] = measured
            row = {name: _number(values.get(name)) for name in names}
            if row["round"] != number or any(math.isnan(row[name]) for name in ALWAYS):
                damage = f"line {number + 1} of metrics.jsonl cannot be read; later lines are ignored"
                break
            rows.append(row)
    columns = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in names}
    return columns, headline, damage


def _number(value: Any) -> float:
    """Return a number, or the word that stands for it, or NaN for anything else."""
    if isinstance(value, str):
        return NUMBERS.get(value, math.nan)
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (OverflowError, TypeError):
        return math.nan


def _summary(path: Path) -> Summary | None:
    values = (read_object(path.read_bytes()) if path.is_file() else None) or {}
    notion, held_out = values.get("notion"), values.get("held_out", "data held out by the server")
    delta = _number(values.get("delta", 0.0))
    readable = isinstance(notion, str) and isinstance(held_out, str) and not math.isnan(delta)
    if not readable or "bytes_up_ratio" not in values:
        return None
    ratio = _number(values["bytes_up_ratio"])  # null if no report came
    about = {"bytes_up_ratio": ratio, "delta": delta, "lr": _number(values.get("lr"))}
    return Summary(notion=str(notion), held_out=str(held_out), central=_central(values), **about)


def _central(values: Mapping[str, Any]) -> Central | None:
    """The central guarantee, or None unless the statement and what it rests on are there and make sense."""
    epsilon, local = (_number(values.get(name)) for name in ("central_epsilon", "epsilon_all_rounds"))
    note, assumptions = values.get("central_note"), values.get("central_assumptions")
    known = values.get("notion") == "local" and isinstance(note, str) and isinstance(assumptions, list)
    if not (known and note and assumptions and 0 <= epsilon < local < math.inf):
        return None
    return Central(epsilon=epsilon, note=str(note), assumptions=tuple(map(str, assumptions or ())))
