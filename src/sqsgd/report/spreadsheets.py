"""The results as CSV, for spreadsheets and scripts: one row per run, per arm, and per point of a figure.

Numbers are written in full. A share is a number from 0 to 1, a missing value is empty, infinity is ``inf``.
docs/how-to/read-the-report.md describes every column.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from sqsgd.files.durable import write_atomically
from sqsgd.report.charts import Chart, SplitChart
from sqsgd.report.groups import Group
from sqsgd.training.reading import RunData

RUN = (
    "arm", "seed", "state", "rounds", "metric", "value", "best", "scheme", "dataset", "model", "clients",
    "participation", "partition", "notion", "epsilon", "epsilon_total", "bytes", "bytes_per_report", "lr",
    "seconds", "folder",
)  # fmt: skip
ARM = (
    "arm", "runs", "state", "metric", "mean", "half_width_95", "best", "notion", "epsilon", "epsilon_total",
    "bytes_per_report", "share_of_float32", "lr", "seconds",
)  # fmt: skip
POINT = ("figure", "arm", "x_title", "x", "y_title", "mean", "half_width_95")

Cell = str | float


def write_spreadsheets(
    groups: Sequence[Group], charts: Sequence[Chart | SplitChart], folder: str | Path
) -> list[Path]:
    """Write ``runs.csv``, ``arms.csv`` and ``figures.csv`` to the folder."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    lines = [chart for chart in charts if isinstance(chart, Chart)]
    files: dict[str, tuple[Sequence[str], Iterable[Sequence[Cell]]]] = {
        "runs": (RUN, (_run(group, run) for group in groups for run in group.runs)),
        "arms": (ARM, map(_arm, groups)),
        "figures": (POINT, (row for chart in lines for row in _points(chart))),
    }
    written = []
    for name, (columns, rows) in files.items():
        written.append(target / f"{name}.csv")
        write_atomically(written[-1], _csv(columns, rows).encode())
    return written


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_text(cell) for cell in row])
    return buffer.getvalue()


def _text(cell: Cell) -> str:
    if isinstance(cell, str):
        # A spreadsheet would compute what begins like a formula.
        return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t")) else cell
    return "" if math.isnan(cell) else repr(cell)


def _run(group: Group, run: RunData) -> list[Cell]:
    config, columns = run.config, run.columns
    last = {name: float(columns[name][-1]) if run.rounds else math.nan for name in columns}
    values, best = run.accuracies, run.headline.best(run.accuracies)
    return [
        group.label,
        config.seed,
        run.state,
        run.rounds,
        run.headline.name,
        float(values[-1]) if values.size else math.nan,
        math.nan if best is None else float(best),
        config.scheme,
        config.dataset,
        config.model,
        config.clients,
        config.participation,
        config.partition,
        group.notion,
        last["epsilon"],
        last["epsilon_total"],
        config.bytes,
        last["bytes_up"],
        run.rate,
        float(columns["seconds"].sum()) if run.rounds else math.nan,
        str(run.folder),
    ]


def _arm(group: Group) -> list[Cell]:
    mean, half = group.accuracy
    return [
        group.label,
        len(group.counted),
        group.state,
        group.headline.name,
        mean,
        half,
        group.best_accuracy,
        group.notion,
        group.last("epsilon"),
        group.last("epsilon_total"),
        group.last("bytes_up"),
        1 / group.summary.bytes_up_ratio if group.summary else math.nan,
        group.lr,
        group.seconds,
    ]


def _points(chart: Chart) -> list[list[Cell]]:
    return [
        [chart.name, curve.label, chart.x_title, float(x), chart.y_title, float(mean), float(half)]
        for curve in chart.curves
        for x, mean, half in zip(curve.x, curve.mean, curve.half, strict=True)
    ]
