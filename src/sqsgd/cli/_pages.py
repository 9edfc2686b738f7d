"""The page that ``train``, ``compare`` and ``ablate`` write: at the end, and with ``--live`` on the way."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from sqsgd.cli._failures import Ended, explained
from sqsgd.cli._progress import Pace

REFRESH = 5
"""Seconds between two pages of runs that go on."""


def final_page(folder: Path, out: Path, title: str | None = None) -> Path:
    """Write the page of finished runs; if that fails, say how to write it later, and end with status 1."""
    from sqsgd.report.page import write_report

    try:
        return write_report([folder], out, title)
    except OSError as error:
        again = ["sqsgd", "report", str(folder), "--out", str(out), *(["--title", title] if title else [])]
        reason = explained(error)[0]
        raise Ended(f"{reason} (the runs are complete; write the page with: {shlex.join(again)})") from error


@contextlib.contextmanager
def live_page(
    wanted: bool, folders: Callable[[], list[Path]], out: Path, title: str | None = None
) -> Iterator[Callable[[], None]]:
    """A function to call in the loop of the runs, which writes their page every few seconds if it is wanted.

    The first page is written at once, or as soon as there is a run. The pages refresh themselves; when the
    loop ends, also by an error, one that does not replaces them.
    """
    pace, failed, empty = Pace(REFRESH), False, False

    def write(refresh: int) -> None:
        nonlocal failed, empty
        from sqsgd.report.page import write_report

        try:
            write_report(folders(), out, title, refresh=refresh)
            empty = False
        except ValueError:  # nothing to show yet
            empty = True
        except OSError as error:  # training is worth more than its page
            if not failed:
                typer.echo(f"no live page: {explained(error)[0]}", err=True)
            failed = True

    def update() -> None:
        if wanted and (pace.due() or empty):
            write(REFRESH)

    if wanted:
        typer.echo(f"live page: {out}", err=True)
        update()
    try:
        yield update
    finally:
        if wanted:
            write(0)
