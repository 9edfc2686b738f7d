"""Run folders as they are found: finished, unfinished, failed or damaged."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd.files import json_numbers as json_words
from sqsgd.runs.config import RunConfig, load_config

Numbers = npt.NDArray[np.float64]

ALWAYS = (
    "round", "loss", "epsilon", "epsilon_total", "bytes_up", "bound",
    "seconds", "seconds_gradient", "seconds_encode", "seconds_aggregate",
)  # fmt: skip
SOMETIMES = ("accuracy", "test_loss", "clip_rate")
MARKS = ("metrics.jsonl", "error.txt", "summary.json")
LONGEST_ERROR = 400


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What only a finished run knows."""

    notion: str
    held_out: str
    bytes_up_ratio: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class RunData:
    """A run as its folder tells it."""

    folder: Path
    config: RunConfig
    columns: Mapping[str, Numbers]
    """One number a round for each name; NaN where it was not measured."""
    summary: Summary | None = None
    error: str = ""
    """Why it failed."""
    damage: str = ""
    """What of the folder could not be read."""

    @property
    def rounds(self) -> int:
        """Rounds that are complete."""
        return len(self.columns["round"])

    @property
    def state(self) -> str:
        """``finished``, ``unfinished``, ``failed`` or ``damaged``."""
        if self.damage:
            return "damaged"
        if self.summary is not None:
            return "finished"
        return "failed" if self.error else "unfinished"

    @property
    def progress(self) -> str:
        """The state, and how far the run came."""
        far = "" if self.state == "finished" else f" at round {self.rounds} of {self.config.rounds}"
        return self.state + far

    @property
    def status(self) -> str:
        """The progress with the reason."""
        reason = {"failed": self.error, "damaged": self.damage}.get(self.state)
        return f"{self.progress}: {reason}" if reason else self.progress

    @property
    def accuracies(self) -> Numbers:
        """The measured ones, in order."""
        values = self.columns["accuracy"]
        return values[~np.isnan(values)]


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A folder that looks like a run and tells too little."""

    folder: Path
    reason: str


def read_run(folder: Path) -> RunData:
    """One run; ValueError if its configuration cannot be read."""
    error = _error(folder)
    if not (folder / "config.toml").is_file():
        reason = f"; it failed before that was written: {error}" if error else ""
        raise ValueError(f"{folder} holds no run: there is no config.toml{reason}")
    config = load_config(folder / "config.toml")
    columns, damage = _metrics(folder)
    summary, summary_damage = _summary(folder)
    if summary is not None and not damage and len(columns["round"]) != config.rounds:
        damage = f"there is a summary, but metrics.jsonl ends at round {len(columns['round'])}"
    return RunData(
        folder=folder,
        config=config,
        columns=columns,
        summary=summary,
        error=error,
        damage=damage or summary_damage,
    )


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run folders that are given or lie below what is given, each once, in order of their names.

    A folder with a config.toml alone is a run where no runs lie below it.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ValueError(f"{path} is no folder" if path.exists() else f"{path} does not exist")
        below = sorted(_runs_below(path), key=_in_natural_order)
        if not below and not (path / "config.toml").is_file():
            raise ValueError(f"{path} holds no run: neither it nor a folder below it has a config.toml")
        for folder in below or [path]:
            found.setdefault(folder.resolve(), folder)
    if not found:
        raise ValueError("there is nothing to report: name at least one folder of a run")
    return list(found.values())


def read_runs(paths: Iterable[str | Path]) -> tuple[list[RunData], list[Unreadable]]:
    """All runs that can be read, and the others with the reason; ValueError if none can."""
    runs, unreadable = [], []
    for folder in find_runs(paths):
        try:
            runs.append(read_run(folder))
        except (ValueError, OSError) as error:
            unreadable.append(Unreadable(folder=folder, reason=str(error)))
    if not runs:
        raise ValueError("no run can be read: " + "; ".join(each.reason for each in unreadable))
    return runs, unreadable


def _runs_below(path: Path) -> Iterable[Path]:
    for place, names, files in os.walk(path):
        names[:] = [name for name in names if not name.startswith(".")]
        if any(mark in files for mark in MARKS) or ("config.toml" in files and not names):
            yield Path(place)


def _in_natural_order(folder: Path) -> list[tuple[int, str]]:
    """seed-2 before seed-10."""
    pieces = re.split("([0-9]+)", str(folder))
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces]


def _error(folder: Path) -> str:
    path = folder / "error.txt"
    if not path.is_file():
        return ""
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[0][:LONGEST_ERROR] if lines else "no reason was written down"


def _metrics(folder: Path) -> tuple[dict[str, Numbers], str]:
    """The complete rounds up to the first that cannot be read, and what is wrong with that one.

    A last line without an end is no damage: it is still being written, or was when the run was stopped.
    """
    path, rows, damage = folder / "metrics.jsonl", [], ""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    for number, line in enumerate(lines):
        row = _row(line)
        if row is None or row["round"] != number:
            damage = f"line {number + 1} of metrics.jsonl cannot be read; what follows is left out"
            break
        rows.append(row)
    names = (*ALWAYS, *SOMETIMES)
    return {name: np.array([row[name] for row in rows], dtype=np.float64) for name in names}, damage


def _row(line: bytes) -> dict[str, float] | None:
    """A line's numbers, or None if it is not what a round writes."""
    values = _json_object(line)
    if values is None:
        return None
    row = {name: _number(values.get(name)) for name in ALWAYS}
    row |= {name: _number("nan" if values.get(name) is None else values[name]) for name in SOMETIMES}
    complete = {name: value for name, value in row.items() if value is not None}
    return complete if len(complete) == len(row) else None


def _json_object(content: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return json_words.NUMBERS.get(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _summary(folder: Path) -> tuple[Summary | None, str]:
    path = folder / "summary.json"
    if not path.is_file():
        return None, ""
    values = _json_object(path.read_bytes()) or {}
    notion, held_out = values.get("notion"), values.get("held_out")
    ratio, delta = _number(values.get("bytes_up_ratio")), _number(values.get("delta", 0.0))
    if isinstance(notion, str) and isinstance(held_out, str) and ratio and delta is not None:
        return Summary(notion=notion, held_out=held_out, bytes_up_ratio=ratio, delta=delta), ""
    return None, "summary.json cannot be read"
