"""Values of options, defaults that help shows, progress, and stopping between rounds."""

import contextlib
import re
import signal
import time
from pathlib import Path
from typing import Annotated

import pytest
import rich
import typer
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from sqsgd.cli import app
from sqsgd.cli.options import (
    given,
    listed,
    numbers,
    scheme_options,
    show_progress,
    stopping_between_rounds,
)
from sqsgd.federation.deploy.federation import Federation
from sqsgd.training.settings import make_config


def test_values_of_options_have_the_types_of_toml():
    pairs = ["levels=8", "adaptive=true", "reach=1.5", "kind=fast", "name=", 'text="8"', "formula=a=b"]
    assert scheme_options(pairs) == {
        "levels": 8, "adaptive": True, "reach": 1.5, "kind": "fast", "name": "", "text": "8",
        "formula": "a=b",
    }  # fmt: skip


@pytest.mark.parametrize("pair", ["levels", "=8", ""])
def test_a_pair_has_a_name_and_an_equals_sign(pair):
    with pytest.raises(ValueError, match="must look like name=value"):
        scheme_options(["reach=1.5", pair])


def test_lists():
    assert listed(" sqsgd, fedsgd ,,") == ["sqsgd", "fedsgd"]
    assert numbers("rates", "0.1, 1e-3") == [0.1, 0.001]
    with pytest.raises(ValueError, match=r"rates = '0\.1;0\.3' must be comma-separated numbers"):
        numbers("rates", "0.1;0.3")


def test_what_was_typed_is_given_even_if_it_equals_the_default():
    own, found = typer.Typer(), []

    @own.command()
    def command(
        context: typer.Context,
        lr: float = 0.0,
        seed: int = 3,
        bytes_: Annotated[int, typer.Option("--bytes")] = 9,
        out: Path | None = None,
        secure: bool = False,
    ) -> None:
        found.append((given(context), given(context, ("lr", "bytes"))))

    typed = ["--lr", "0.0", "--bytes", "9", "--out", "x", "--no-secure"]
    assert CliRunner().invoke(own, typed).exit_code == 0
    assert found == [({"lr": 0.0, "bytes": 9, "out": "x", "secure": False}, {"lr": 0.0, "bytes": 9})]


def shown(*command):
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    return dict(re.findall(r"(--[\w-]+) .*?\[default: \(?([^)\]]+)\)?\]", done.output))


@pytest.mark.parametrize(
    ("command", "whose", "options"),
    [
        (("train",), make_config({}), ("scheme", "epsilon", "bytes", "rounds", "clients", "model")),
        (("compare",), make_config({}), ("epsilon", "bytes", "rounds", "clients", "model")),
        (("deploy", "init"), Federation(), ("nodes", "epsilon", "rounds", "round-timeout")),
    ],
)
def test_help_shows_the_defaults_of_a_run_and_of_a_federation(command, whose, options):
    found = shown(*command)
    for option in options:
        assert found[f"--{option}"] == str(getattr(whose, option.replace("-", "_")))


def commands(command, path=()):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize("path", list(commands(get_command(app))), ids=" ".join)
def test_help_fits_80_columns_cuts_no_word_and_shows_no_markup(path):
    narrow, wide = (
        CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": columns, "TERM": "dumb"}).output
        for columns in ("80", "300")
    )
    assert max(map(len, narrow.splitlines())) <= 80
    frame = str.maketrans("│╭╮╰╯─", " " * 6)
    assert set(narrow.translate(frame).split()) <= set(wide.translate(frame).split())
    assert not re.search(r"`|\*\*|\[/?(bold|red|green|dim)", wide)


def test_help_describes_a_default_that_is_computed_and_shows_none_for_flags():
    assert shown("deploy", "init")["--max-epsilon"] == "the cost of all rounds"
    assert shown("train")["--data-dir"] == "$SQSGD_DATA"
    assert "--secure" not in shown("train")


def test_a_bar_leaves_room_for_what_is_said_in_80_columns(monkeypatch):
    console = Console(width=80, force_terminal=True, color_system=None, record=True)
    monkeypatch.setattr(rich, "_console", console)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    text = "round 300 of 1,200: accuracy 83.20%, epsilon 240,000, 102 bytes"
    with console.capture() as shown:
        show_progress([300], lambda done: (done, 1200, text), quiet=False, seconds=0)
    lines = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line) for line in shown.get().splitlines()]
    last = next(line for line in reversed(lines) if line.strip())
    assert len(last) <= 80
    assert f"-:--:-- {text}" in last


BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _usual_handlers():
    """Python's own: a shell starts commands in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def handlers():
    return [signal.getsignal(each) for each in BOTH]


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_is_recorded_and_announced(number, capfd):
    before = handlers()
    with stopping_between_rounds() as seen:
        assert seen == []
        signal.raise_signal(number)  # os.kill may reach another thread, and then us later
        assert seen == [number]
    assert handlers() == before
    assert capfd.readouterr().err == "stopping after this round; press again to stop now\n"


def test_the_second_signal_interrupts():
    with stopping_between_rounds() as seen:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.6)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]


def test_two_signals_at_once_are_one_request(capfd):
    """timeout(1) sends two."""
    with stopping_between_rounds() as seen:
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    assert capfd.readouterr().err.count("stopping") == 1


def test_the_handlers_are_restored_after_a_failure():
    before = handlers()
    with contextlib.suppress(OSError), stopping_between_rounds():
        assert handlers() != before
        raise OSError("full")
    assert handlers() == before
