"""The commands as typed in a shell, in a process of their own."""

import inspect
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import typer

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
    ("typed", "offered"),
    [
        ("sqsgd do", ["doctor"]),
        ("sqsgd ledger v", ["verify"]),
        ("sqsgd train --scheme sqsgd-", ["sqsgd-paper", "sqsgd-stateless"]),
        ("sqsgd train --dataset mnist", ["mnist", "mnist5k"]),
        ("sqsgd data fetch fa", ["fashion-mnist"]),
        ("sqsgd ablate t", ["tradeoff"]),
    ],
)
def test_the_shell_completes(typed, offered):
    asked = {"_SQSGD_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
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


def test_a_mistake_in_its_own_process_ends_in_one_line():
    done = run("train", "--rounds", "0")
    assert done.returncode == 2
    assert done.stderr == "sqsgd: rounds = 0 must be a whole number from 1 to 2147483648\n"
    assert done.stdout == ""


def test_help_is_not_broken_within_sentences():
    """Lines of a paragraph after the first are shown as they are, and broken again on a narrow terminal."""
    for name, command in typer.main.get_command(app).commands.items():
        _, *paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
        assert not any("\n" in paragraph for paragraph in paragraphs), name
