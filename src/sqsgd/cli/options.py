"""Options that several commands share, their values, progress, and stopping between rounds."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from click.core import ParameterSource

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


def complete_scheme() -> list[str]:
    """Names of the schemes, for shell completion."""
    from sqsgd.schemes import SCHEMES

    return list(SCHEMES)


def complete_dataset() -> list[str]:
    """Names of the built-in datasets, for shell completion."""
    from sqsgd.learning.files import DATASETS

    return list(DATASETS)


def complete_fetchable() -> list[str]:
    """Names of the datasets that can be downloaded, for shell completion."""
    from sqsgd.learning.files import FETCHABLE

    return list(FETCHABLE)


def complete_ablation() -> list[str]:
    """Names of the paper's ablations, for shell completion."""
    from sqsgd.training.sweep import FIGURES

    return list(FIGURES)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the datasets.", show_default="$SQSGD_DATA")
]
Epsilon = Annotated[float, typer.Option(help="Privacy budget of one report.")]
Bytes = Annotated[int, typer.Option("--bytes", help="Bytes for the packed codes of one report.")]
Rounds = Annotated[int, typer.Option(help="Number of rounds.")]
SchemeName = Annotated[str, typer.Option(help="See sqsgd schemes.", autocompletion=complete_scheme)]
Dataset = Annotated[
    str, typer.Option(help="mnist5k, mnist, ... or package.module:factory.", autocompletion=complete_dataset)
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


def scheme_options(pairs: list[str]) -> dict[str, object]:
    """Parse name=value pairs such as levels=8 or reach=1.5; values that are not valid TOML stay text."""
    import tomllib

    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"option = {pair!r} must look like name=value")
        try:
            read = tomllib.loads(f"{name} = {value}")
        except tomllib.TOMLDecodeError:
            read = {name.strip(): value}
        twice = values.keys() & read.keys()
        if twice:
            raise ValueError(f"option {sorted(twice)[0]} is given twice; give it once")
        values |= read
    return values


def own_options(pairs: list[str], own: dict[str, str]) -> dict[str, object]:
    """As ``scheme_options``, but rejects names for which the command has a dedicated option."""
    values = scheme_options(pairs)
    for name in own.keys() & values.keys():
        raise ValueError(f"option {name} = {values[name]!r} is not a scheme option; use {own[name]}")
    return values


class Pace:
    """Says when it is time again: at once, and then when ``seconds`` have passed since the last time.

    >>> pace = Pace(60, clock=iter([0.0, 1.0, 60.0, 61.0]).__next__)
    >>> [pace.due() for _ in range(4)]
    [True, False, True, False]
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self._last = seconds, clock, -math.inf

    def due(self) -> bool:
        """Whether it is time; the answer True starts a new wait."""
        now = self._clock()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar with these columns and the time that is left; it becomes shorter, so that no text is cut."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    bar = BarColumn(None, table_column=Column(ratio=1))
    return Progress(bar, *columns, TimeRemainingColumn(), TextColumn("{task.description}"), expand=True)


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
