"""Help that shows what is assumed."""

import re

import pytest
from typer.testing import CliRunner

from sqsgd.cli import app
from sqsgd.deploy.federation import Federation
from sqsgd.runs.config import RunConfig


def shown(*command):
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    return dict(re.findall(r"(--[\w-]+) .*?\[default: \(?([^)\]]+)\)?\]", done.output))


@pytest.mark.parametrize(
    ("command", "whose", "options"),
    [
        (("train",), RunConfig(), ("scheme", "epsilon", "bytes", "rounds", "clients", "model")),
        (("deploy", "init"), Federation(), ("nodes", "epsilon", "rounds", "round-timeout")),
    ],
)
def test_a_commands_help_says_what_is_assumed(command, whose, options):
    found = shown(*command)
    for option in options:
        assert found[f"--{option}"] == str(getattr(whose, option.replace("-", "_")))


def test_what_has_no_default_or_tells_it_already_shows_none():
    found = shown("deploy", "init")
    assert "--max-epsilon" not in found  # its help says what the default is in words
    assert "--secure" not in shown("train")
