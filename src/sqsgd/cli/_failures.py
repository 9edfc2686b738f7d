"""How every command fails: one line on standard error, JSON with ``--json``, and an exit status.

0: success. 1: a privacy promise is broken, or the work failed. 2: wrong usage, nothing was done.
70: internal error, with a traceback. 128 plus the signal's number: stopped by a signal.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import click
import typer

from sqsgd.cli._tables import print_json, print_note

FAILED, WRONG_USAGE, INTERNAL_ERROR = 1, 2, 70
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_EXTRAS = {
    "vl_convert": "report", "scipy": "audit", "torch": "train", "safetensors": "train",
    "flwr": "flower", "ray": "flower", "starlette": "collect", "uvicorn": "collect", "httptools": "collect",
    "psycopg": "collect",
}  # fmt: skip


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
    as_json = wants_json(arguments)
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
        except OSError:  # standard output may be what failed; the reason is told below
            _discard_output()
    print_note(f"sqsgd: {reason}")
    return status


def _discard_output() -> None:
    """Send what is left for standard output nowhere, or Python would fail again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether --json is among the options, which end at ``--``.

    >>> wants_json(["plan", "--json"]), wants_json(["report", "--", "--json"])
    (True, False)
    """
    ends = arguments.index("--") if "--" in arguments else len(arguments)
    return "--json" in arguments[:ends]


def explained(error: Exception) -> tuple[str, int]:
    """The message for an exception, and the exit status.

    >>> explained(ValueError("dim = 0 must be a whole number from 1 to 9"))
    ('dim = 0 must be a whole number from 1 to 9', 2)
    """
    from sqsgd.privacy.ledger import ReportRefused

    if isinstance(error, ReportRefused):
        return str(error), FAILED
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get(error.name or "")
        how = f"pip install 'sqsgd[{extra}]'" if extra else "install it"
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
