"""What commands print, as wide as the terminal or as JSON; and how they fail, with an exit status.

0: success. 1: a privacy promise is broken, or the work failed. 2: wrong usage, or nothing to audit.
70: internal error, with a traceback. 128 plus the signal's number: stopped by a signal.
"""

import errno
import itertools
import json
import os
import shutil
import sys
import textwrap
import time
import traceback
from collections.abc import Iterable, Sequence

import click
import typer

EXTRAS = {
    "report": ("vl_convert",),
    "audit": ("scipy",),
    "train": ("torch", "safetensors", "tomli_w"),
    "flower": ("flwr", "ray", "honcho"),
    "nvflare": ("nvflare",),
    "collect": ("starlette", "uvicorn", "httptools", "psycopg"),
}
"""What each extra must be able to import."""
INSTALL = "pip install 'sqsgd[{}]'"
FAILED, WRONG_USAGE, INTERNAL_ERROR = 1, 2, 70
_began = [time.perf_counter()]  # of this command; in tests, of the last that was run
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def print_json(value: object) -> None:
    """Print JSON. Raises ValueError for infinity and NaN, which JSON cannot represent."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def seconds() -> float:
    """Since the command began, with the time in which Python loaded it."""
    return time.perf_counter() - _began[0]


def print_result(as_json: bool, value: object, *lines: str) -> None:
    if as_json:
        print_json(value)
    else:
        typer.echo("\n".join(lines))


def cell(value: object) -> str:
    """Return a value as text for a table; empty for None."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def wrapped(text: str, indent: int = 0) -> str:
    """The text with every line broken between words at the terminal's width. What follows is indented."""
    wrapper = textwrap.TextWrapper(shutil.get_terminal_size().columns, subsequent_indent=" " * indent)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return "\n".join("\n".join(wrapper.wrap(line)) for line in text.splitlines())


def print_fields(fields: Iterable[tuple[str, object]], wide: int) -> None:
    """Print a name and a text per line, the texts below each other from this column on."""
    for name, text in fields:
        typer.echo(wrapped(f"{name:{wide - 1}} {text}", wide))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table that fits the terminal; without control characters: some cells quote a server."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sqsgd.report.tables import clean

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(clean(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(text)) for text in row))
    if title is not None:
        typer.secho(wrapped(clean(title)), bold=True)
    Console(width=shutil.get_terminal_size().columns).print(table)


class Ended(SystemExit):
    """A command ends early, for a reason that is not the user's mistake."""

    def __init__(self, reason: str, status: int = FAILED) -> None:
        super().__init__(status)
        self.reason, self.status = reason, status


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command and return its exit status. With ``--json``, a failure prints {"error": ...}.

    Guarantees
    ----------
    * No command fails in JSON mode without JSON: tests/cli/test_cli_failures.py.
    """
    if len(_began) > 1:
        _began[:] = [time.perf_counter()]
    _began.append(0.0)
    as_json = "--json" in itertools.takewhile("--".__ne__, arguments)  # options end at --
    try:
        # In standalone mode click itself shows usage errors and ends the process.
        result = app(list(arguments), standalone_mode=not as_json)
        return result if type(result) is int else 0
    except Ended as error:
        reason, status = error.reason, error.status
    except click.ClickException as error:
        reason, status = error.format_message(), error.exit_code
    except Exception as error:
        reason, status = explained(error)
        if status == INTERNAL_ERROR:
            traceback.print_exc()
    if as_json:
        try:
            print_json({"error": reason})
        except OSError:  # standard output may be what failed; what is left for it goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    typer.echo(f"sqsgd: {reason}", err=True)
    return status


def explained(error: Exception) -> tuple[str, int]:
    from sqsgd.privacy.ledger import ReportRefused
    from sqsgd.training.algorithm import Diverged

    if isinstance(error, ReportRefused | Diverged):
        return str(error), FAILED
    if isinstance(error, ModuleNotFoundError):
        extra = next((extra for extra, modules in EXTRAS.items() if error.name in modules), "")
        how = INSTALL.format(extra) if extra else "install it"
        return f"the module {error.name} is not installed: {how}", WRONG_USAGE
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; free some space, or write to another disk", FAILED
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}", WRONG_USAGE
    if isinstance(error, ValueError | OSError):
        return str(error), WRONG_USAGE
    if isinstance(error, MemoryError):
        return f"not enough memory: {error or 'use smaller values'}", WRONG_USAGE
    return f"internal error, please report it: {type(error).__name__}: {error}", INTERNAL_ERROR
