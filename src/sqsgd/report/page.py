"""The report: one self-contained HTML file."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import math
import shlex
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from sqsgd import __version__
from sqsgd.files.durable import write_atomically
from sqsgd.report import figures, tables
from sqsgd.report.charts import Chart, SplitChart, all_charts
from sqsgd.report.groups import Group, group_runs
from sqsgd.report.statement import MEANINGS, promises
from sqsgd.report.styles import DARK, LIGHT, style_sheet
from sqsgd.report.text import counted, escape, listed
from sqsgd.report.wording import Wording
from sqsgd.training.reading import RunData, Unreadable, read_runs, sweep_title
from sqsgd.training.run_folder import SWEEP


def write_report(
    paths: Sequence[str | Path], out: str | Path, title: str | None = None, *, refresh: int = 0
) -> Path:
    """Write the page of all runs in or below ``paths`` to the file ``out``, atomically.

    ValueError if there is nothing to show; runs that failed or cannot be read are listed as such. A page
    with ``refresh`` reloads itself after so many seconds.
    """
    runs, unreadable = read_runs(paths)
    return write_page(group_runs(runs), unreadable, paths, out, title, refresh=refresh)


def write_page(
    groups: Sequence[Group],
    unreadable: Sequence[Unreadable],
    paths: Sequence[str | Path],
    out: str | Path,
    title: str | None = None,
    *,
    wording: Wording = Wording(),  # noqa: B008, it is frozen
    refresh: int = 0,
) -> Path:
    """As ``write_report``, for runs that have been read from ``paths`` already, in these words."""
    target = Path(out)
    if target.is_dir():
        raise ValueError(f"out = {out} is a folder; name a file such as {target / 'report.html'}")
    words = ["sqsgd", "report", *map(str, paths), "--out", str(out)]
    words += [*(["--title", title] if title else []), *wording.arguments]
    named = wording.renamed(groups)
    charts = wording.titled(all_charts(named))
    title = title or title_of(groups, paths)
    page = _page(named, charts, unreadable, title, _again(named, shlex.join(words), paths), refresh)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode())
    return target


def _page(
    groups: Sequence[Group],
    charts: Sequence[Chart | SplitChart],
    unreadable: Sequence[Unreadable],
    title: str,
    again: str,
    refresh: int,
) -> str:
    drawn = {chart.name: figures.figure(chart) for chart in charts if not chart.empty}
    packed, script = _packed_plotly(), _closed(_part("page.js"))
    return Template(_part("page.html")).substitute(
        title=escape(title),
        refresh=f'<meta http-equiv="refresh" content="{refresh}">' if refresh else "",
        policy=_policy(gzip.decompress(packed), script.encode()),
        style=style_sheet(),
        lead=_lead(groups) + (f" This page reloads itself every {refresh} seconds." if refresh else ""),
        notices=_notices(groups, unreadable),
        privacy=_privacy(groups),
        interval=_interval(groups),
        results=tables.results_table(groups),
        choice=_choice(groups),
        figures=f'<div class="panels">{"".join(_figure(each) for each in charts)}</div>',
        configuration=tables.configuration(groups),
        again=again,
        footer=time.strftime(f"Written by sqsgd {__version__} on %Y-%m-%d at %H:%M UTC.", time.gmtime()),
        data=_data(drawn),
        plotly=base64.b64encode(packed).decode(),
        script=script,
    )


def _part(name: str) -> str:
    return resources.files("sqsgd.report").joinpath(name).read_text(encoding="utf-8")


def _packed_plotly() -> bytes:
    """The basic bundle of plotly.js (lines and bars), a quarter of the whole; the page unpacks it."""
    return resources.files("sqsgd.report").joinpath("plotly-basic.min.js.gz").read_bytes()


def _closed(script: str) -> str:
    """Escape what would end a script element; in a string literal both forms mean the same."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _data(drawn: dict[str, figures.Figure]) -> str:
    """Figures and colours as JSON, escaped so that it contains no tags."""
    themes = {"light": dataclasses.asdict(LIGHT), "dark": dataclasses.asdict(DARK)}
    content = json.dumps({"themes": themes, "figures": drawn}, separators=(",", ":"), allow_nan=False)
    return content.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(*scripts: bytes) -> str:
    """A content security policy: the browser runs these scripts only, and loads nothing."""
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"


def title_of(groups: Sequence[Group], paths: Sequence[str | Path]) -> str:
    """The title of a report without one: that of the sweep, or what the runs are about."""
    if title := sweep_title(paths):
        return title
    datasets = listed(sorted({group.config.dataset for group in groups}))
    if len(groups) == 1:
        return f"{groups[0].config.scheme} on {datasets}"
    return f"{len(groups)} groups on {datasets}"


def _lead(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    models = listed(sorted({group.config.model for group in groups}))
    finished = sum(run.state == "finished" for run in runs)
    clients = listed([f"{amount:,}" for amount in sorted({group.config.clients for group in groups})])
    return (
        f"{counted(len(runs), 'run')} in {counted(len(groups), 'group')}, {finished} finished. "
        f"Model {escape(models)}, {clients} clients. Runs that differ only in their seed form a group."
    )


def _notices(groups: Sequence[Group], unreadable: Sequence[Unreadable]) -> str:
    """The runs that are not finished, by folder."""
    runs = [run for group in groups for run in group.runs if run.state != "finished"]
    lines = [f"<li><code>{escape(run.folder)}</code>: {escape(run.status)}</li>" for run in runs]
    lines += [f"<li>not shown: {escape(each.reason)}</li>" for each in unreadable]
    if not lines:
        return ""
    return (
        '<section class="notice" aria-labelledby="notice-title"><h2 id="notice-title">Not finished</h2>'
        f"<ul>{''.join(lines)}</ul></section>"
    )


def _privacy(groups: Sequence[Group]) -> str:
    cards, made_all = [], promises(groups)
    for made, members in made_all:
        names = "".join(f"<li>{tables.sample(each)} {escape(groups[each].label)}</li>" for each in members)
        text = "".join(f"<p>{escape(sentence)}</p>" for sentence in made.sentences)
        cards.append(
            f'<div class="promise"><div><h3>{escape(made.short)}</h3>'
            f'<ul class="who" aria-label="Groups">{names}</ul></div><div>{text}</div></div>'
        )
    notions = {group.notion for group in groups}
    meanings = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
        for notion, (name, text) in MEANINGS.items()
        if notion in notions and notion not in ("none", "unknown")
    )
    several = sum(len(group.runs) for group in groups) > 1
    too = " Central ε and δ add up too." if any(made.central for made, _ in made_all) else ""
    apart = (
        "<p>Every total is that of one run. A client whose data was used in several of these runs has spent "
        f"the sum of their totals.{too}</p>"
    )
    explained = f'<dl class="meanings">{meanings}</dl>' if meanings else ""
    return f'<div class="promises">{"".join(cards)}</div>{explained}{apart if several else ""}'


def _interval(groups: Sequence[Group]) -> str:
    if not all(math.isnan(group.accuracy[1]) for group in groups):
        return "± is half the width of its 95 % confidence interval (Student's t), from three runs on."
    return "No group has the three runs that a confidence interval (±) takes."


def _choice(groups: Sequence[Group]) -> str:
    """Check boxes that hide groups in all figures; none for a single group."""
    if len(groups) == 1:
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" value="{series}" checked>{tables.sample(series)}'
        f"<span>{escape(group.label)}</span></label>"
        for series, group in enumerate(groups)
    )
    return f'<fieldset class="choice"><legend>Groups in the curves</legend>{boxes}</fieldset>'


def _figure(chart: Chart | SplitChart) -> str:
    if isinstance(chart, Chart):
        table = tables.chart_table(chart)
        entries = "".join(
            f'<li data-series="{curve.series}">{tables.sample(curve.series)} {escape(curve.label)}</li>'
            for curve in chart.curves
        )
        keys = f'<ul class="key" aria-label="Key">{entries}</ul>'
    else:
        table, keys = tables.split_table(chart), ""
    heading = f'<h3 id="title-{chart.name}">{escape(chart.title)}</h3>'
    caption = f"<figcaption>{escape(chart.caption)}</figcaption>"
    wide = ' class="wide"' if isinstance(chart, SplitChart) else ""
    if chart.empty:
        body = f'<p class="empty">There is nothing to draw.</p>{caption}'
    else:
        body = (
            f'<div class="plot" id="plot-{chart.name}" role="img" '
            f'aria-label="{escape(chart.alternative)}"></div>{keys}{caption}'
            f"<details><summary>Data of this figure</summary>{table}</details>"
        )
    return f'<figure{wide} aria-labelledby="title-{chart.name}">{heading}{body}</figure>'


def _again(groups: Sequence[Group], command: str, paths: Sequence[str | Path]) -> str:
    runs = [run for group in groups for run in group.runs if not run.federation]
    trained = "\n".join(
        escape(
            shlex.join(
                ["sqsgd", "train", "--config", f"{run.folder}/config.toml", "--out", _elsewhere(run, paths)]
            )
        )
        for run in runs
    )
    exact = "Their seeds reproduce them exactly."
    if any(run.config.secure for run in runs):
        exact = "Runs with secure noise cannot be reproduced exactly."
    page = f'<p>To write this page from the folders of the runs:</p><pre tabindex="0">{escape(command)}</pre>'
    return page + (f'<p>To train them again. {exact}</p><pre tabindex="0">{trained}</pre>' if runs else "")


def _elsewhere(run: RunData, paths: Sequence[str | Path]) -> str:
    """A folder to train a run again in, outside of those that this page, or its sweep's, is made from."""
    path = next((Path(path) for path in paths if run.folder.is_relative_to(path)), run.folder)
    whole = path.parent if (path.parent / SWEEP).is_file() else path
    named = whole.resolve() if whole.name in ("", "..") else whole
    return str(named.with_name(f"{named.name}-again") / run.folder.relative_to(whole))
