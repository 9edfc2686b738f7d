"""Options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the data sets (default: $SQSGD_DATA).")
]
Small = Annotated[bool, typer.Option("--small", help="The file's small version: minutes, not hours.")]
Jobs = Annotated[int, typer.Option(help="Runs at the same time; 0: one for each core.")]
Out = Annotated[Path | None, typer.Option(help="Folder of all the runs.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on in --out; what is finished is kept.")]


def complete_scheme() -> list[str]:
    """For the shell: the names of the schemes."""
    from sqsgd.schemes import SCHEMES

    return list(SCHEMES)


def complete_dataset() -> list[str]:
    """For the shell: the data sets that have names."""
    from sqsgd.learning.dataset_sources import EMBEDDED, SOURCES

    return [EMBEDDED, *SOURCES]


def complete_fetchable() -> list[str]:
    """For the shell: the data sets that can be downloaded."""
    return complete_dataset()[1:]


def complete_ablation() -> list[str]:
    """For the shell: the paper's ablations."""
    from sqsgd.experiments.sweep import FIGURES

    return list(FIGURES)


def given(**values: object) -> dict[str, object]:
    """The options that were given; those that were left out are None."""
    return {name: value for name, value in values.items() if value is not None}


def listed(text: str) -> list[str]:
    """The names in a text with commas between."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(name: str, text: str) -> list[float]:
    """The numbers in a text with commas between; ``name`` is the option, for the error."""
    try:
        return [float(part) for part in listed(text)]
    except ValueError:
        raise ValueError(f"{name} = {text!r} must be numbers with commas between, such as 0.01,0.1") from None


def scheme_options(pairs: list[str]) -> dict[str, object]:
    """levels=8 adaptive=true reach=1.5 as TOML values, or else as text."""
    import tomllib

    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"option = {pair!r} must look like name=value")
        try:
            read = tomllib.loads(f"{name} = {value}")
        except tomllib.TOMLDecodeError:
            read = {name.strip(): value}
        twice = values.keys() & read.keys()
        if twice:
            raise ValueError(f"option {sorted(twice)[0]} is given twice; give it once")
        values |= read
    return values


def own_options(pairs: list[str], own: dict[str, str]) -> dict[str, object]:
    """As ``scheme_options``, for a command that has options of its own for some names, which would win."""
    values = scheme_options(pairs)
    for name in own.keys() & values.keys():
        raise ValueError(f"option {name} = {values[name]!r} is no option of a scheme; use {own[name]}")
    return values
