"""A group of commands whose answer to a word that is none names the commands that there are."""

from __future__ import annotations

import click
from typer.core import TyperGroup


class Commands(TyperGroup):
    """Says what was meant, once; click and typer each say it, so that together they say it twice."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from sqsgd.checks import meant

        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            ctx.fail(f"No such command {args[0]!r}{meant(args[0], known)} (there are {', '.join(known)})")
        return super().resolve_command(ctx, args)
