"""Options that several commands share, their values, progress, and stopping between rounds."""

import contextlib
import dataclasses
import importlib
import inspect
import logging
import math
import os
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Self, get_args, get_origin, get_type_hints

import click
import typer
from click.core import ParameterSource

_Command = Callable[..., None]


def names_of(module: str, table: str) -> Callable[[], list[str]]:
    """Lists the names in a table, for shell completion. The module is imported when asked."""
    return lambda: list(getattr(importlib.import_module(module), table))


def group(about: str) -> typer.Typer:
    return typer.Typer(help=about, no_args_is_help=True, suggest_commands=False)


SCHEME_NAMES = names_of("sqsgd.schemes", "SCHEMES")
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the datasets.", show_default="$SQSGD_DATA")
]
Epsilon = Annotated[float, typer.Option(help="Privacy budget of one report.")]
Bytes = Annotated[
    int, typer.Option("--bytes", help="Bytes for the packed codes of one report.", min=1, max=2**37)
]
SchemeName = Annotated[str, typer.Option(help="See sqsgd schemes.", autocompletion=SCHEME_NAMES)]
Dim = Annotated[int, typer.Option(help="Length of the vectors.")]
Small = Annotated[bool, typer.Option("--small", help="Use the file's small version, which takes minutes.")]
Jobs = Annotated[int, typer.Option(help="Number of parallel runs; 0 uses one per core.", min=0, max=1024)]
Out = Annotated[Path | None, typer.Option(help="Folder for all runs.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the sweep in --out and keep finished runs.")]
Title = Annotated[str | None, typer.Option(help="Title of the table and of the page.")]
SchemeOption = Annotated[
    list[str] | None, typer.Option(help="An option of the scheme, such as levels=8; repeatable.")
]
Column = Annotated[
    list[str] | None,
    typer.Option(help="Table column: name=low:high (public range) or name=a,b (categories); repeatable."),
]

_SILENT = 1.5  # seconds after which a step is shown again
COMPLETED = {"scheme": SCHEME_NAMES, "dataset": names_of("sqsgd.learning.files", "DATASETS")}


def takes(
    settings: type, without: Container[str] = (), panel: str | None = None, **changed: Any
) -> Callable[[_Command], _Command]:
    """Give a command the fields of a dataclass as options. It takes them as ``**_settings``.

    ``panel``: options of this panel of the help have no default. ``changed``: other defaults.
    """

    def extended(command: _Command) -> _Command:
        own = inspect.signature(command, eval_str=True)
        kept = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        hints = get_type_hints(settings, include_extras=True)
        texts = {name: text for cls in reversed(settings.__mro__) for name, text in _texts(cls).items()}
        for field in dataclasses.fields(settings):
            name, hint = field.name, hints[field.name]
            kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            if name in without or name not in texts or not field.init:
                continue
            default = changed.get(name, field.default)
            if panel is not None:
                kind, default = kind | None, None
            flag = f"--{name.replace('_', '-')}"
            if field.default is True:
                flag += f"/--no-{flag[2:]}"
            option = typer.Option(
                flag,
                help=texts[name],
                autocompletion=COMPLETED.get(name),
                show_default="the cost of all rounds" if name == "max_epsilon" else True,
                rich_help_panel=panel,
            )
            annotation: Any = Annotated[kind, option]
            default = inspect.Parameter.empty if default is dataclasses.MISSING else default
            keyword = inspect.Parameter.KEYWORD_ONLY
            kept.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))
        command.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
        return command

    return extended


def _texts(settings: type) -> dict[str, str]:
    """What help says of the fields that a class annotates. A subclass may leave it out."""
    hints = get_type_hints(settings, include_extras=True) if dataclasses.is_dataclass(settings) else {}
    return {name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated}


def given(context: click.Context, names: Container[str] | None = None) -> dict[str, Any]:
    """Return the options given on the command line: only these ``names``, or all of them."""
    typed = {
        name.removesuffix("_"): str(value) if isinstance(value, Path) else value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return {name: value for name, value in typed.items() if names is None or name in names}


def listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in listed(text)]
    except ValueError:
        raise ValueError(f"{name} = {text!r} must be comma-separated numbers, such as 0.01,0.1") from None


def scheme_options(pairs: Iterable[str], own: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Parse name=value pairs such as levels=8 or reach=1.5. Values that are not valid TOML stay text.

    ``own``: names that raise an error, and the command's own option for each.
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


def columns(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the ranges and categories in pairs such as age=0:120 or sex=f,m."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        ends = text.split(":")
        try:
            values = listed(text) if len(ends) == 1 else [float(end) for end in ends]
        except ValueError:
            values = []
        if not name or not values or len(ends) > 2:
            raise ValueError(f"column = {pair!r} must look like name=low:high or name=a,b")
        if any(name in facts for facts in found.values()):
            raise ValueError(f"column {name} is given twice; give it once")
        found.setdefault("categories" if len(ends) == 1 else "ranges", {})[name] = values
    return found


class Progress(logging.Handler):
    """What a command is doing: a bar on a terminal, elsewhere lines on standard error.

    It also shows what the library logs. A step that says nothing for two seconds is shown again with its
    seconds, after four minutes more rarely: tests/cli/test_options.py::test_nothing_is_silent.
    """

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self._lines, self._bar = not (quiet or sys.stdout.isatty()), None if quiet else _bar()
        self._text, self._shown, self._counted = "starting", "", False
        self._began = self._since = time.monotonic()
        self._due, self._ended, self._guard = self._began + _SILENT, threading.Event(), threading.RLock()

    def __enter__(self) -> Self:
        log = logging.getLogger("sqsgd")
        self._level = log.level
        log.addHandler(self)
        log.setLevel(logging.DEBUG)
        if self._bar is not None:
            self._bar.start()
        elif self._lines:
            threading.Thread(target=self._repeat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        log = logging.getLogger("sqsgd")
        log.removeHandler(self)
        log.setLevel(self._level)
        if self._bar is not None:
            self._bar.stop()

    def emit(self, record: logging.LogRecord) -> None:
        self.show(record.getMessage())

    def show(self, text: str, done: int = 0, total: int | None = None, *, now: bool = False) -> None:
        """Show a step, and how much of how much is done. The first that counts is shown now."""
        with self._guard:
            if text != self._text:
                self._text, self._since = text, time.monotonic()
            now = now or (total is not None and not self._counted)
            self._counted = self._counted or total is not None
            if self._bar is not None:
                counts = {} if total is None else {"completed": done, "total": total}
                self._bar.update(self._bar.task_ids[0], description=text, **counts)
            elif self._lines and (now or time.monotonic() >= self._due):
                self._print()

    def _repeat(self) -> None:
        while not self._ended.wait(0.1):
            with self._guard:
                if time.monotonic() >= self._due and not self._ended.is_set():
                    self._print()

    def _print(self) -> None:
        now = time.monotonic()
        waited = f" ({now - self._since:.0f} s)" if self._text == self._shown else ""
        typer.echo(f"{self._text}{waited}", err=True)
        self._shown, self._due = self._text, now + min(30.0, max(_SILENT, (now - self._began) / 120))


def _bar() -> Any:
    """Return a bar on a terminal; else None."""
    if not sys.stdout.isatty():
        return None
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    bar = BarColumn(None, table_column=Column(ratio=1))  # it becomes shorter, so that no text is cut
    columns = (bar, TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    shown = Progress(*columns, expand=True, transient=True)
    shown.add_task("starting", total=None)
    return shown


@contextlib.contextmanager
def stopping_between_rounds() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in the yielded list. A second one, later, has its usual effect.

    Python would raise KeyboardInterrupt at any point: in a destructor, where it is lost, or in a
    callback from torch's C++, which then aborts. We have seen both.
    """
    seen: list[int] = []
    again = math.inf

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal again
        if not seen:
            again = time.monotonic() + 0.5  # timeout(1) signals the command, and then its group
            seen.append(number)
            os.write(2, b"stopping after this round; press again to stop now\n")  # print may be under way
        elif time.monotonic() > again:
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
