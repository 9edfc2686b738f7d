"""The report: one self-contained HTML file, and its tables as CSV."""

import base64
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import importlib.metadata
import math
import os
import shlex
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqsgd import __version__
from sqsgd._internal.files import write_atomically
from sqsgd.report import tables
from sqsgd.report.charts import COLOURS, PAGE, SERIES, all_charts
from sqsgd.report.groups import Group, group_runs
from sqsgd.report.statement import MEANINGS, statements
from sqsgd.report.tables import MISSING, Row, Shown, counted, interval, listed
from sqsgd.training.reading import read_runs, sweep_title
from sqsgd.training.summary import Headline

LAST = {"epsilon": "epsilon", "epsilon_total": "epsilon_total", "bytes_per_report": "bytes_up"}
"""Columns of the tables that hold the last value of a column of the records."""


def write_report(paths: Sequence[str | Path], out: str | Path, title: str | None = None) -> Path:
    """Write the page of all runs in or below ``paths`` to the file ``out``, atomically.

    Runs that failed or cannot be read are listed as such.

    Raises:
        ValueError: nothing to show, or ``out`` is a folder.
    """
    runs, unreadable = read_runs(paths)
    return write_page(group_runs(runs), unreadable, paths, out, title)


def write_page(
    groups: Sequence[Group],
    unreadable: Sequence[str],
    paths: Sequence[str | Path],
    out: str | Path,
    title: str | None = None,
) -> Path:
    """As ``write_report``, for runs that have been read from ``paths`` already."""
    target = Path(out)
    if target.is_dir():
        raise ValueError(f"out = {out} is a folder; name a file such as {target / 'report.html'}")
    command = ["sqsgd", "report", *map(str, paths), "--out", str(out), *(["--title", title] if title else [])]
    runs = [run for group in groups for run in group.runs]
    local = [run for run in runs if not run.federation]
    again = [
        ["sqsgd", "train", "--config", f"{run.folder}/config.toml", "--out", f"again/{number}"]
        for number, run in enumerate(local, start=1)
    ]
    unfinished = [(str(run.folder), run.status) for run in runs if run.state != "finished"]
    headlines = {group.headline for group in groups}
    (measured,) = headlines if len(headlines) == 1 else [Headline(name="result")]
    charts, notions = all_charts(groups), {group.notion for group in groups} - {"none", "unknown"}
    page = render(
        Path(__file__).with_name("report.html"),
        title=title or _title(groups, paths),
        kind="training report",
        specs={f"#plot-{chart.name}": chart.spec() for chart in charts if chart.points},
        lead=_lead(groups),
        notices=[*unfinished, *(("", f"not shown: {each}") for each in unreadable)],
        banded=not all(math.isnan(group.accuracy[1]) for group in groups),
        headings={**HEADINGS, "mean": measured.title},
        results=arms(groups),
        charts=[chart for chart in charts if chart.points],
        seeded=any(not group.config.secure and group.notion != "none" for group in groups),
        statements=statements(groups),
        meanings=[MEANINGS[notion] for notion in MEANINGS if notion in notions],
        runs=runs,
        configurations={
            f"{group.label} ({counted(len(group.runs), 'run')})": _configuration(group) for group in groups
        },
        command=shlex.join(command),
        again=[shlex.join(words) for words in again],
        secure=any(run.config.secure for run in local),
        measured=measured.title,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode())
    return target


def write_tables(groups: Sequence[Group], folder: str | Path) -> list[Path]:
    """Write runs.csv, arms.csv and figures.csv; docs/how-to/read-the-report.md describes the columns."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    files = {"runs": _runs(groups), "arms": arms(groups), "figures": _points(groups)}
    for name, rows in files.items():
        write_atomically(target / f"{name}.csv", tables.csv_text(rows).encode())
    return [target / f"{name}.csv" for name in files]


def render(template: Path, *, specs: Mapping[str, object] | None = None, **values: Any) -> str:
    """Return a self-contained page from a template that extends page.html; everything it shows is escaped.

    ``specs``: charts in Vega-Lite, by the selector of their place. Browsers run the page's scripts only, and
    load nothing.
    """
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, here]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: tables.clean(value) if type(value) is str else value,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters |= {"text": tables.text, "key": tables.sort_key, "digest": _digest, "packed": _packed}
    return environment.get_template(template.name).render(
        **values,
        colours={**COLOURS, **{f"series-{i}": pair for i, pair in enumerate(SERIES)}},
        style=(here / "page.css").read_text(),
        script=(here / "page.js").read_text(),
        vega=_vega() if specs else "",
        data={"charts": specs or {}, "config": PAGE},
        footer=time.strftime(f"Written by sqsgd {__version__} on %Y-%m-%d at %H:%M UTC.", time.gmtime()),
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _packed(script: str) -> str:
    return base64.b64encode(gzip.compress(script.encode(), mtime=0)).decode()


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed as one script, from vl-convert; cached: making it takes seconds."""
    import vl_convert

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sqsgd" / "report"
    kept = folder / f"vega-{importlib.metadata.version('vl-convert-python')}.js.gz"
    with contextlib.suppress(OSError, EOFError, zlib.error):
        return gzip.decompress(kept.read_bytes()).decode()
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with contextlib.suppress(OSError):  # a page is worth more than a later one's time
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, gzip.compress(script.encode()))
    return script


def _title(groups: Sequence[Group], paths: Sequence[str | Path]) -> str:
    if title := sweep_title(paths):
        return title
    datasets = listed(sorted({group.config.dataset for group in groups}))
    about = groups[0].config.scheme if len(groups) == 1 else f"{len(groups)} groups"
    return f"{about} on {datasets}"


def _lead(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    models = listed(sorted({group.config.model for group in groups}))
    finished = sum(run.state == "finished" for run in runs)
    clients = listed([f"{amount:,}" for amount in sorted({group.config.clients for group in groups})])
    return (
        f"{counted(len(runs), 'run')} in {counted(len(groups), 'group')}, {finished} finished. "
        f"Model {models}, {clients} clients."
    )


def _configuration(group: Group) -> list[Row]:
    """Return every setting of a group, and its runs."""
    settings, repeated = dataclasses.asdict(group.config), {run.folder for run in group.repeated}
    settings.pop("seed")
    rows: list[Row] = [{"name": name, "value": str(value)} for name, value in settings.items()]
    for run in group.runs:
        again = "; does not count, another run has its seed" if run.folder in repeated else ""
        rows.append({"name": f"seed {run.config.seed}", "value": f"{run.folder}: {run.status}{again}"})
    return rows


HEADINGS = {
    "arm": "Group", "runs": "Runs", "mean": "Accuracy", "notion": "Privacy", "epsilon": "ε per round",
    "epsilon_total": "Total ε", "bytes_per_report": "Bytes per round", "share_of_float32": "Of float32",
    "lr": "Learning rate", "seconds": "Seconds", "state": "Status",
}  # fmt: skip
"""The columns of ``arms`` that the page shows."""


def arms(groups: Sequence[Group]) -> list[Row]:
    """Return the results, one row per group: the page's first table and ``arms.csv``."""
    rows: list[Row] = []
    for group in groups:
        share, ratio = group.headline.is_share, group.summary.bytes_up_ratio if group.summary else math.nan
        mean, half = group.accuracy
        fraction = MISSING if math.isnan(ratio) else f"1/{ratio:,.0f}" if ratio >= 10 else f"1/{ratio:.2g}"
        progress = group.runs[0].progress if len(group.runs) == 1 else group.states
        rows.append(
            {
                "arm": group.label,
                "runs": len(group.counted),
                "metric": group.headline.name,
                "mean": Shown(mean, interval(mean, half, share=share)),
                "half_width_95": half,
                "lr": group.runs[0].rate,
                "notion": group.notion,
                **{name: group.last(column) for name, column in LAST.items()},
                "share_of_float32": Shown(1 / ratio, fraction),
                "seconds": group.seconds,
                "state": Shown(group.state, progress),
            }
        )
    return rows


def _runs(groups: Sequence[Group]) -> list[Row]:
    """Return the runs, one row each: ``runs.csv``."""
    settings = ("scheme", "dataset", "model", "clients", "participation", "partition", "bytes")
    rows: list[Row] = []
    for group, run in [(arm, run) for arm in groups for run in arm.runs]:
        rows.append(
            {
                "arm": group.label,
                "seed": run.config.seed,
                "state": run.state,
                "rounds": run.rounds,
                "metric": run.headline.name,
                "value": float(run.accuracies[-1]) if run.accuracies.size else math.nan,
                **{name: getattr(run.config, name) for name in settings},
                "notion": group.notion,
                **{
                    name: float(run.columns[column][-1]) if run.rounds else math.nan
                    for name, column in LAST.items()
                },
                "lr": run.rate,
                "seconds": float(run.columns["seconds"].sum()) if run.rounds else math.nan,
                "folder": str(run.folder),
            }
        )
    return rows


def _points(groups: Sequence[Group]) -> list[Row]:
    """Return the points of all curves: ``figures.csv``."""
    return [
        {
            "figure": chart.name, "arm": point["group"], "x_title": chart.x_title, "x": point["x"],
            "y_title": chart.y_title, "mean": point["mean"], "half_width_95": point["half"],
        }
        for chart in all_charts(groups)
        for point in chart.points
    ]  # fmt: skip
