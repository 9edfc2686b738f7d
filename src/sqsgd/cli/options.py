"""Options that several commands share, their values, progress, and stopping between rounds."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TypeVar

import click
import typer
from click.core import ParameterSource

_T = TypeVar("_T")


def names_of(module: str, table: str) -> Callable[[], list[str]]:
    """A function that lists the names in a table, for shell completion; the module is imported when asked."""
    return lambda: list(getattr(importlib.import_module(module), table))


SCHEME_NAMES = names_of("sqsgd.schemes", "SCHEMES")
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the datasets.", show_default="$SQSGD_DATA")
]
Epsilon = Annotated[float, typer.Option(help="Privacy budget of one report.")]
Bytes = Annotated[int, typer.Option("--bytes", help="Bytes for the packed codes of one report.")]
Rounds = Annotated[int, typer.Option(help="Number of rounds.")]
SchemeName = Annotated[str, typer.Option(help="See sqsgd schemes.", autocompletion=SCHEME_NAMES)]
Dataset = Annotated[
    str,
    typer.Option(
        help="mnist5k, mnist, ... or package.module:factory.",
        autocompletion=names_of("sqsgd.learning.files", "DATASETS"),
    ),
]
Model = Annotated[str, typer.Option(help="lenet5, resnet110, ... or package.module:factory.")]
Clients = Annotated[int, typer.Option(help="Number of clients.")]
Rate = Annotated[float, typer.Option(help="Learning rate; 0: computed from the budget.")]
Dim = Annotated[int, typer.Option(help="Length of the vectors.")]
Small = Annotated[bool, typer.Option("--small", help="The file's small version: minutes, not hours.")]
Jobs = Annotated[int, typer.Option(help="Runs at the same time; 0: one per core.")]
Out = Annotated[Path | None, typer.Option(help="Folder for all runs.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the sweep in --out; finished runs are kept.")]
Title = Annotated[str | None, typer.Option(help="Title of the table and of the page.")]
SchemeOption = Annotated[
    list[str] | None, typer.Option(help="An option of the scheme, such as levels=8; repeatable.")
]


def given(context: click.Context, names: Container[str] | None = None) -> dict[str, Any]:
    """The options given on the command line, without defaults; only these ``names``, or all of them."""
    typed = {
        name.removesuffix("_"): str(value) if isinstance(value, Path) else value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return {name: value for name, value in typed.items() if names is None or name in names}


def listed(text: str) -> list[str]:
    """The names in a comma-separated text."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(name: str, text: str) -> list[float]:
    """The numbers in a comma-separated text; ``name`` is the option, for the error message."""
    try:
        return [float(part) for part in listed(text)]
    except ValueError:
        raise ValueError(f"{name} = {text!r} must be comma-separated numbers, such as 0.01,0.1") from None


def scheme_options(pairs: Iterable[str], own: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Parse name=value pairs such as levels=8 or reach=1.5; values that are not valid TOML stay text.

    ``own``: names that are rejected, and the command's own option for each.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"option = {pair!r} must look like name=value")
        try:
            read = tomllib.loads(f"{name} = {value}")
        except tomllib.TOMLDecodeError:
            read = {name.strip(): value}
        for key in read:
            if key in values:
                raise ValueError(f"option {key} is given twice; give it once")
            if own and key in own:
                raise ValueError(f"option {key} = {read[key]!r} is not a scheme option; use {own[key]}")
        values |= read
    return values


def show_progress(
    items: Iterable[_T], describe: Callable[[_T], tuple[int, int, str]], *, quiet: bool, seconds: float
) -> None:
    """Use up the items; show a bar on a terminal, elsewhere a line on standard error, the first at once.

    Args:
        items: What happens, in order.
        describe: How much of how much is done after an item, and a text.
        quiet: Show nothing.
        seconds: The time between two lines.
    """
    if quiet or not sys.stdout.isatty():
        due = 0.0
        for item in items:
            text = describe(item)[2]
            if not quiet and time.monotonic() >= due:
                due = time.monotonic() + seconds
                typer.echo(text, err=True)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    bar = BarColumn(None, table_column=Column(ratio=1))  # it becomes shorter, so that no text is cut
    with Progress(bar, TimeRemainingColumn(), TextColumn("{task.description}"), expand=True) as progress:
        task = progress.add_task("starting", total=None)
        for item in items:
            done, total, text = describe(item)
            progress.update(task, completed=done, total=total, description=text)


_ONE_REQUEST = 0.5  # seconds; timeout(1) signals the command, and then its group with the command in it


@contextlib.contextmanager
def stopping_between_rounds() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in the yielded list; a second one, later, has its usual effect.

    Python would raise KeyboardInterrupt at any point: in a destructor, where it is lost, or in a
    callback from torch's C++, which then aborts. We have seen both.
    """
    seen: list[int] = []
    first = 0.0

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        if not seen:
            first = time.monotonic()
            seen.append(number)
            os.write(2, b"stopping after this round; press again to stop now\n")  # print may be under way
        elif time.monotonic() - first > _ONE_REQUEST:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for each, usual in before.items():
            signal.signal(each, usual)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        restore()
