"""``sqsgd report``: one page about one or more runs, and its content as files for a paper."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sqsgd.cli._failures import Ended, explained
from sqsgd.cli._tables import print_result
from sqsgd.cli.options import Json


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain some.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder for the results as CSV.")] = None,
    pdf: Annotated[Path | None, typer.Option(help="Folder for PDF figures.")] = None,
    png: Annotated[Path | None, typer.Option(help="Folder for PNG figures.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Folder for SVG figures.")] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained page about runs: results, curves, privacy statement, configuration."""
    from sqsgd.report.charts import all_charts, write_charts
    from sqsgd.report.groups import group_runs
    from sqsgd.report.page import write_page, write_tables
    from sqsgd.training.reading import read_runs

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"out = {str(out)!r} must end in .html; an existing file is overwritten")
    wanted = {"csv": csv, "pdf": pdf, "png": png, "svg": svg}
    folders = {kind: folder for kind, folder in wanted.items() if folder is not None}
    for name, folder in folders.items():
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{name} = {str(folder)!r} is a file; name a folder")
    readable, unreadable = read_runs(runs)
    groups = group_runs(readable)
    written = [write_page(groups, unreadable, runs, out, title)]
    for each in unreadable:
        typer.echo(f"not shown: {each.reason}", err=True)
    for kind, folder in folders.items():
        if kind == "csv":
            written += write_tables(groups, folder)
        else:
            written += write_charts(all_charts(groups), folder, kind)
    print_result(as_json, [str(path) for path in written], *(f"written to {path}" for path in written))


def final_page(folder: Path, out: Path, title: str | None = None) -> None:
    """Write the page of finished runs; if that fails, say how to write it later, and end with status 1."""
    from sqsgd.report.page import write_report

    try:
        write_report([folder], out, title)
    except (OSError, ImportError) as error:
        again = ["sqsgd", "report", str(folder), "--out", str(out), *(["--title", title] if title else [])]
        reason = explained(error)[0]
        raise Ended(f"{reason} (the runs are complete; write the page with: {shlex.join(again)})") from error
