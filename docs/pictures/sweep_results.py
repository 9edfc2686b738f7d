"""The results of sweeps, small enough to be kept next to the pages that show them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqsgd.runs.sweep import Cell, Sweep, choose, load_sweep, summary_of, wider
from sqsgd.training.summary import mean_interval

FOLDER = Path(__file__).parents[1] / "assets" / "reproduction"
FEWEST = 3  # seeds for an interval


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One arm of a panel: accuracies in percent, by seed and round, as far as they have been run."""

    panel: str
    arm: str
    rate: float | None
    tried: Mapping[str, float | None]
    """The accuracy of each rate in the runs that choose one; None if it diverged."""
    epsilon: float | None
    bytes: int | None
    rounds: tuple[int, ...]
    accuracies: Mapping[str, tuple[float, ...]]
    failed: int

    @property
    def seeds(self) -> int:
        """Finished runs."""
        return len(self.accuracies)

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean over the seeds after each of ``rounds``."""
        return tuple(statistics.fmean(column) for column in zip(*self.accuracies.values(), strict=True))

    @property
    def final(self) -> float:
        """The mean after the last round."""
        return self.mean[-1]

    @property
    def half_widths(self) -> tuple[float, ...]:
        """Half the width of the 95 % Student t interval of each mean; empty below three seeds."""
        if self.seeds < FEWEST:
            return ()
        columns = zip(*self.accuracies.values(), strict=True)
        return tuple(mean_interval(list(column))[1] for column in columns)


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a sweep has given so far."""

    name: str
    title: str
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    rounds: int
    tuning_rounds: int
    runs_done: int
    runs: int
    cpu_minutes: float
    curves: tuple[Curve, ...]

    @property
    def panels(self) -> list[str]:
        """The names of the panels, in order."""
        return list(dict.fromkeys(curve.panel for curve in self.curves))

    def panel(self, name: str) -> list[Curve]:
        """The curves of a panel."""
        return [curve for curve in self.curves if curve.panel == name]

    @property
    def complete(self) -> bool:
        """Whether every run of the sweep was tried."""
        return self.runs_done == self.runs


def read(name: str) -> Results:
    """The kept results of a sweep."""
    kept: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    curves = [
        Curve(**{**each, "rounds": tuple(each["rounds"]), "accuracies": _tuples(each["accuracies"])})
        for each in kept.pop("curves")
    ]
    lists = {key: tuple(kept.pop(key)) for key in ("seeds", "rates")}
    return Results(**kept, **lists, curves=tuple(curves))


def keep(results: Mapping[str, Any]) -> None:
    """Write results, one line per curve."""
    rest = {key: value for key, value in results.items() if key != "curves"}
    lines = ",\n".join(json.dumps(curve) for curve in results["curves"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = f'{json.dumps(rest)[:-1]}, "curves": [\n{lines}\n]}}\n'
    (FOLDER / f"{results['name']}.json").write_text(text)


def collect(folder: Path, times: Path | None = None) -> dict[str, Any]:
    """The results in a sweep's folder; ``times`` has a line "wall user system" in seconds for every start."""
    sweep = load_sweep(folder / "sweep.toml")
    planned = {folder / job.folder for job in sweep.tuning_jobs()} | set(folder.glob("tuning/*/lr-*"))
    tuned = sum(map(_ended, planned))
    chosen = choose(sweep, folder) if tuned == len(planned) and not wider(sweep, folder) else {}
    curves = [_curve(sweep, cell, folder, chosen.get(cell.name)) for cell in sweep.cells()]
    trained = sum(len(curve["accuracies"]) + curve["failed"] for curve in curves)
    return {
        "name": folder.name,
        "title": sweep.title,
        "seeds": list(sweep.seeds),
        "rates": list(sweep.rates),
        "rounds": sweep.base["rounds"],
        "tuning_rounds": sweep.tuning_rounds,
        "runs_done": tuned + trained,
        "runs": len(planned) + len(sweep.seeds) * len(curves),
        "cpu_minutes": round(_cpu_seconds(times) / 60, 1),
        "curves": curves,
    }


def _curve(sweep: Sweep, cell: Cell, folder: Path, rate: float | None) -> dict[str, Any]:
    places = {str(seed): folder / f"runs/{cell.name}/seed-{seed}" for seed in sweep.seeds}
    summaries = {seed: summary for seed, place in places.items() if (summary := summary_of(place))}
    first = next(iter(summaries.values()), {})
    measured = {seed: dict(_measured(places[seed])) for seed in summaries}
    return {
        "panel": cell.panel,
        "arm": cell.arm,
        "rate": rate,
        "tried": {
            place.name.removeprefix("lr-"): round(100 * found["accuracy"], 2) if found else None
            for place in sorted(folder.glob(f"tuning/{cell.name}/lr-*"))
            if (found := summary_of(place)) or _ended(place)
        },
        "epsilon": _finite(first.get("epsilon")),
        "bytes": first.get("bytes_up"),
        "rounds": list(next(iter(measured.values()), {})),
        "accuracies": {
            seed: [round(100 * each, 2) for each in one.values()] for seed, one in measured.items()
        },
        "failed": sum((place / "error.txt").exists() for place in places.values()),
    }


def _measured(run: Path) -> Iterable[tuple[int, float]]:
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record.get("accuracy") is not None:
            yield record["round"] + 1, record["accuracy"]


def _finite(epsilon: float | str | None) -> float | None:
    """None for a scheme without a guarantee, whose epsilon is infinite."""
    return epsilon if isinstance(epsilon, float) and epsilon < float("inf") else None


def _ended(run: Path) -> bool:
    return summary_of(run) is not None or (run / "error.txt").exists()


def _cpu_seconds(times: Path | None) -> float:
    lines = times.read_text().splitlines() if times and times.exists() else []
    timed = [line.split() for line in lines if len(line.split()) == 3]
    return sum(float(user) + float(system) for _, user, system in timed)


def _tuples(lists: Mapping[str, list[float]]) -> dict[str, tuple[float, ...]]:
    return {key: tuple(values) for key, values in lists.items()}
