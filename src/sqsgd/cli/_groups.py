"""Groups of commands that answer a mistyped word with what there is."""

from __future__ import annotations

from typing import Any

import click
from typer.core import TyperGroup

from sqsgd.checks import meant


class Commands(TyperGroup):
    """Says what was meant, once; click and typer each say it, so that together they say it twice."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            ctx.fail(f"No such command {args[0]!r}{meant(args[0], known)} (there are {', '.join(known)})")
        return super().resolve_command(ctx, args)


class Program(Commands):
    """The whole program: wrong options and words of any command are answered with what it takes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if error.ctx is None or not (answer := _answer(error, error.ctx)):
                raise
            raise click.UsageError(answer, error.ctx) from None


def _answer(error: click.UsageError, ctx: click.Context) -> str:
    """What is wrong, and what would be right; nothing where click says it well enough."""
    if isinstance(error, click.NoSuchOption):
        return f"No such option {error.option_name!r}{_instead(error.option_name.lstrip('-'), ctx)}"
    if isinstance(error, click.MissingParameter):
        return f"{error.format_message()} {getattr(error.param, 'help', '')}".strip()
    if "unexpected extra argument" in error.message:
        return f"{error.message.rstrip('.')}: {_taken(ctx)}"
    return ""


def _instead(name: str, ctx: click.Context) -> str:
    from sqsgd.runs.config import FIELDS

    options, key = _options(ctx), name.replace("-", "_")
    of_a_run = ctx.command.name == "train" and "--config" in options and key in FIELDS
    if of_a_run and f"--{key.replace('_', '-')}" not in options:
        return f": {key} is a key of the file that --config names"
    guess = meant(name, [option.removeprefix("--") for option in options]).replace("mean '", "mean '--")
    return f"{guess} (there are {', '.join(options)})"


def _taken(ctx: click.Context) -> str:
    """What a command takes, in words."""
    words = [str(each.name).upper() for each in ctx.command.params if isinstance(each, click.Argument)]
    takes = " and ".join(words) if words else "no words of its own"
    return f"it takes {takes}; all else follows an option ({', '.join(_options(ctx))})"


def _options(ctx: click.Context) -> list[str]:
    options = (each for each in ctx.command.params if isinstance(each, click.Option) and not each.hidden)
    return [each.opts[0] for each in options if each.name != "help"]
