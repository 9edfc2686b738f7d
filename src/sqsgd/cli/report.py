"""``sqsgd report``: one page about one or more runs, and its content as files for a paper."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sqsgd.cli._tables import print_result
from sqsgd.cli.options import Json

REFRESH = 5
"""Seconds between two pages of runs that go on."""

if TYPE_CHECKING:
    from sqsgd.report.wording import Wording


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain some.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page and of the LaTeX table.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Rename a group everywhere: OLD=NEW; repeatable.")
    ] = None,
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Title or axis of a figure, such as loss.title=TEXT, loss.x=TEXT; repeatable."),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder for the results as CSV.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Folder for a LaTeX table and its figures.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Folder for PDF figures, and the table as PDF.")] = None,
    png: Annotated[Path | None, typer.Option(help="Folder for PNG figures.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Folder for SVG figures.")] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Write the page again and again until all runs have ended.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write one self-contained page about runs: results, curves, privacy statement, configuration."""
    from sqsgd.report.charts import all_charts
    from sqsgd.report.groups import group_runs
    from sqsgd.report.page import title_of, write_page
    from sqsgd.report.wording import Wording
    from sqsgd.training.reading import read_runs

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"out = {str(out)!r} must end in .html; an existing file is overwritten")
    for name, folder in (("csv", csv), ("latex", latex), ("pdf", pdf), ("png", png), ("svg", svg)):
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ValueError(f"{name} = {str(folder)!r} is a file; name a folder")
    wording = Wording(labels=tuple(label or ()), figures=tuple(figure or ()))
    if live:
        _refresh(runs, out, title, wording)
    readable, unreadable = read_runs(runs)
    groups = group_runs(readable)
    written = [write_page(groups, unreadable, runs, out, title, wording=wording)]
    for each in unreadable:
        typer.echo(f"not shown: {each.reason}", err=True)
    title, groups = title or title_of(groups, runs), wording.renamed(groups)
    charts = wording.titled(all_charts(groups))
    if csv is not None:
        from sqsgd.report.spreadsheets import write_spreadsheets

        written += write_spreadsheets(groups, charts, csv)
    if latex is not None:
        from sqsgd.report.latex import write_latex

        written += write_latex(groups, charts, latex, title)
    for kind, folder in (("pdf", pdf), ("png", png), ("svg", svg)):
        if folder is not None:
            from sqsgd.report.images import write_charts, write_table

            written += write_charts(charts, folder, kind)
            written += [write_table(groups, folder, title)] if kind == "pdf" else []
    print_result(as_json, [str(path) for path in written], *(f"written to {path}" for path in written))


def _refresh(runs: list[Path], out: Path, title: str | None, wording: Wording) -> None:
    """Write the page every few seconds until no run is unfinished, or until Ctrl-C."""
    from sqsgd.report.groups import group_runs
    from sqsgd.report.page import write_page
    from sqsgd.training.reading import read_runs

    typer.echo(f"{out} is written every {REFRESH} seconds until the runs have ended; Ctrl-C stops", err=True)
    try:
        while True:
            readable, unreadable = read_runs(runs)
            if all(run.state != "unfinished" for run in readable):
                return
            write_page(group_runs(readable), unreadable, runs, out, title, wording=wording, refresh=REFRESH)
            time.sleep(REFRESH)
    except KeyboardInterrupt:
        typer.echo("stopped: the runs are shown as they are now", err=True)
