"""Runs a command line through ``main`` in this process, so that torch is loaded only once."""

import contextlib
import io
import shlex
import sys
from dataclasses import dataclass
from unittest import mock


@dataclass(frozen=True)
class Done:
    """The result of a finished process."""

    code: int
    out: str
    error: str


def typed(line):
    """Run ``sqsgd ...``, a line or a list of arguments; errors that main does not handle are raised."""
    from sqsgd.cli import main

    words = shlex.split(line) if isinstance(line, str) else [str(word) for word in line]
    out, error, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(code, out.getvalue(), error.getvalue())
