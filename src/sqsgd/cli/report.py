"""``sqsgd report``: one page about one or more runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sqsgd.cli._options import Json
from sqsgd.cli._tables import print_result


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain some.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    png: Annotated[Path | None, typer.Option(help="Folder for PNG figures.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Folder for SVG figures.")] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained page about runs: curves, privacy statement, results, configuration."""
    from sqsgd.report.groups import group_runs
    from sqsgd.report.page import write_page
    from sqsgd.runs.reading import read_runs

    if out.suffix not in (".html", ".htm"):
        raise ValueError(f"out = {str(out)!r} must end in .html; an existing file is overwritten")
    readable, unreadable = read_runs(runs)
    groups = group_runs(readable)
    written = [write_page(groups, unreadable, runs, out, title)]
    for each in unreadable:
        typer.echo(f"not shown: {each.reason}", err=True)
    for kind, folder in (("png", png), ("svg", svg)):
        if folder is not None:
            from sqsgd.report.images import write_charts

            written += write_charts(groups, folder, kind)
    print_result(as_json, [str(path) for path in written], *(f"written to {path}" for path in written))


def try_write_report(paths: Sequence[Path], out: Path, title: str | None = None) -> Path | None:
    """Write the page of finished runs; if plotly is not installed, say so and return None."""
    try:
        from sqsgd.report.page import write_report

        return write_report(paths, out, title)
    except ModuleNotFoundError as error:
        typer.echo(f"no report.html: {error.name} is not installed (pip install 'sqsgd[report]')", err=True)
        return None
