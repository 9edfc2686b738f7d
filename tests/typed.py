"""A command as a person types it, through ``main``, but in this process: torch is loaded once for all."""

import contextlib
import io
import shlex
import sys
from dataclasses import dataclass
from unittest import mock


@dataclass(frozen=True)
class Done:
    """What a finished process would have left."""

    code: int
    out: str
    error: str


def typed(line):
    """Run ``sqsgd ...``, a line or a list of words; whatever it raises beyond what main answers is raised."""
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
