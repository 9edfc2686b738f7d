"""The command line: one file per command, named after it."""

from sqsgd.cli.program import app, main

__all__ = ["app", "main"]
