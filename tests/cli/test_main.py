"""The commands as typed in a shell, completion, and the lists of schemes and datasets."""

import inspect
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import typer
from typed import typed

from sqsgd.cli import app

SQSGD = Path(sys.executable).with_name("sqsgd")


def run(*arguments, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run([SQSGD, *arguments], capture_output=True, text=True, env=environment)


def test_help_and_version():
    assert "schemes" in run("--help").stdout
    assert run("--version").stdout.startswith("sqsgd 0.")
    assert run().returncode != 0 or "Usage" in run().stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_gets_a_script(shell):
    # The shell is named, not detected: tests may run in one that has no completion.
    script = run("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    assert "_SQSGD_COMPLETE" in script
    assert f"complete_{shell}" in script


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sqsgd do", ["doctor"]),
        ("sqsgd ledger v", ["verify"]),
        ("sqsgd train --scheme sqsgd-", ["sqsgd-paper", "sqsgd-stateless"]),
        ("sqsgd train --dataset mnist", ["mnist", "mnist5k"]),
        ("sqsgd data fetch fa", ["fashion-mnist"]),
        ("sqsgd ablate t", ["tradeoff"]),
    ],
)
def test_the_shell_completes(line, offered):
    asked = {"_SQSGD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run([SQSGD], env={**os.environ, **asked}, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == offered


def test_a_table_in_a_pipe_keeps_to_the_width_of_the_terminal():
    """As `sqsgd schemes | head` does: standard output is a pipe, the other streams are a terminal."""
    parent, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 72))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [SQSGD, "schemes", "--dim", "1000", "--bytes", "32"]
    streams = {"stdin": terminal, "stderr": terminal, "stdout": subprocess.PIPE}
    done = subprocess.run(command, **streams, text=True, env=environment)
    os.close(terminal)
    os.close(parent)
    assert 60 < max(map(len, done.stdout.splitlines())) <= 72


def test_help_is_not_broken_within_sentences():
    """Lines of a paragraph after the first are shown as they are, and broken again on a narrow terminal."""
    for name, command in typer.main.get_command(app).commands.items():
        _, *paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
        assert not any("\n" in paragraph for paragraph in paragraphs), name


def test_schemes():
    rows = json.loads(typed("sqsgd schemes --json").out)
    by_name = {row["name"]: row for row in rows}
    assert by_name["sqsgd"]["message_bytes"] == 102
    assert by_name["sqsgd"]["epsilon"] == 400.0
    assert by_name["fedsgd"]["epsilon"] == "infinity"
    small = json.loads(typed("sqsgd schemes --dim 1 --epsilon 1 --json").out)
    assert next(row for row in small if row["name"] == "sqsgd-paper")["notion"] == "impossible here"
    table = typed("sqsgd schemes --dim 1000 --epsilon 50 --bytes 32").out
    assert "sqsgd-stateless" in table
    assert "``" not in table
    assert max(map(len, table.splitlines())) <= 80


def test_data_list():
    rows = {row["name"]: row for row in json.loads(typed("sqsgd data list --json").out)}
    assert rows["mnist5k"]["available"]
    assert "sqsgd data fetch emnist" in rows["emnist"]["how"]
