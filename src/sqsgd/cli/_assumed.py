"""What is assumed where an option is left out and no file says anything: in a command's help too."""

from __future__ import annotations

from typing import Any

import click
from typer.core import TyperCommand


def assumed(command: str, parameter: Any) -> str:
    """The default of a command's parameter, or that of the run or federation it sets; empty: none to tell."""
    from sqsgd.deploy.federation import Federation
    from sqsgd.runs.config import RunConfig

    value, whose = parameter.default, {"train": RunConfig, "compare": RunConfig, "init": Federation}
    if value is None and command in whose:
        value = getattr(whose[command](), parameter.name.removesuffix("_"), None)
    told = isinstance(value, int | float | str) and not isinstance(value, bool)
    return f"{value}" if told and "(default:" not in parameter.help else ""


class Assuming(TyperCommand):
    """A command whose options are None where they were not given, so that typer knows no defaults to show."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for each in self.params:
            if isinstance(each, click.Option) and each.default is None:
                each.show_default = assumed(self.name or "", each) or False
        super().format_help(ctx, formatter)
