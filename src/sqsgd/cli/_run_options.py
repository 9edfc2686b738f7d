"""The options of ``sqsgd train``, for the commands that train many runs, and arms and panels in words."""

from __future__ import annotations

import copy
import inspect
import shlex
from collections.abc import Callable, Container
from typing import Annotated, Any, get_args

import click

from sqsgd.cli._options import given, scheme_options
from sqsgd.cli.train import train
from sqsgd.training.settings import FIELDS, RunConfig

PANEL = "Options of every run"
OTHERWISE = {
    "lr": "One learning rate for all runs; 0: computed from the budget.",
    "seed": "The first seed; the others follow it.",
}
"""Options that mean something else where there are many runs."""

Command = Callable[..., None]


def run_options() -> dict[str, inspect.Parameter]:
    """The parameters of ``sqsgd train`` that are keys of a configuration, and ``option``."""
    parameters = inspect.signature(train, eval_str=True).parameters
    return {
        name: parameter
        for name, parameter in parameters.items()
        if name.removesuffix("_") in FIELDS or name == "option"
    }


def takes_run_options(*, defaults: bool, without: Container[str] = ()) -> Callable[[Command], Command]:
    """Add every option of ``sqsgd train`` to a command, in a panel of its help of their own.

    ``defaults``: whether the help shows their defaults; without, they change what a file says. The command
    takes them as ``**_run``, and reads those that were typed with ``typed_values``.
    """

    def extended(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        kept = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        names = {each.name for each in kept}
        added = [
            _as_option(parameter, shows_default=defaults)
            for name, parameter in run_options().items()
            if name not in names and name not in without
        ]
        command.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        return command

    return extended


def _as_option(parameter: inspect.Parameter, *, shows_default: bool) -> inspect.Parameter:
    kind: Any
    kind, option = get_args(parameter.annotation)
    option = copy.copy(option)
    option.rich_help_panel = PANEL
    option.help = OTHERWISE.get(parameter.name, option.help)
    default = parameter.default
    if not (shows_default and parameter.name not in OTHERWISE) and kind is not bool:
        kind, default = kind | None, None
    annotation: Any = Annotated[kind, option]
    return parameter.replace(annotation=annotation, default=default, kind=inspect.Parameter.KEYWORD_ONLY)


def typed_values(context: click.Context) -> dict[str, Any]:
    """The configuration that was typed; the scheme's options under ``options``."""
    values = given(context, FIELDS)
    pairs = given(context, ("option",)).get("option")
    return {**values, "options": scheme_options(list(pairs))} if pairs else values


def worded_arm(text: str) -> dict[str, Any]:
    """An arm as ``NAME: SCHEME key=value ...``; the name may be left out.

    >>> worded_arm("K = 16: sqsgd-paper levels=16 epsilon=100")
    {'name': 'K = 16', 'scheme': 'sqsgd-paper', 'epsilon': 100, 'options': {'levels': 16}}
    """
    name, words = _parts("arm", text)
    if not words or "=" in words[0] or not all("=" in word for word in words[1:]):
        raise ValueError(f"arm = {text!r} must look like 'NAME: SCHEME key=value ...'")
    return {**name, "scheme": words[0], **_keys(words[1:])}


def worded_panel(text: str) -> dict[str, Any]:
    """A panel as ``NAME: key=value ...``; the name may be left out.

    >>> worded_panel("Few clients: clients=10 partition=dirichlet:0.1")
    {'name': 'Few clients', 'clients': 10, 'partition': 'dirichlet:0.1'}
    """
    name, words = _parts("panel", text)
    if not words or not all("=" in word for word in words):
        raise ValueError(f"panel = {text!r} must look like 'NAME: key=value ...'")
    return {**name, **_keys(words)}


def _parts(option: str, text: str) -> tuple[dict[str, str], list[str]]:
    """The name before the first colon that a space or nothing follows, and the words after it."""
    name, colon, rest = f"{text} ".partition(": ")
    try:
        words = shlex.split(rest if colon else text)
    except ValueError:
        raise ValueError(f"{option} = {text!r} has a quotation mark that is not closed") from None
    return ({"name": name.strip()} if colon else {}), words


def _keys(pairs: list[str]) -> dict[str, Any]:
    """Keys of a run as such, all others as options of its scheme."""
    read = scheme_options(pairs)
    plain = {pair.partition("=")[0].strip(): pair.partition("=")[2] for pair in pairs}
    keys = {
        name: plain[name] if isinstance(getattr(RunConfig(), name), str) else value
        for name, value in read.items()
        if name in FIELDS and name != "options"
    }
    options = {name: value for name, value in read.items() if name not in FIELDS}
    return {**keys, **({"options": options} if options else {})}
