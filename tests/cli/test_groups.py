"""Mistyped words are answered with what there is: of any program, not only of sqsgd."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sqsgd.cli._groups import Commands, Program

app = typer.Typer(cls=Program, rich_markup_mode=None)


@app.command()
def train(
    rounds: Annotated[int, typer.Option()] = 1,
    config: Annotated[Path | None, typer.Option()] = None,
    hidden: Annotated[bool, typer.Option("--hidden", hidden=True)] = False,
) -> None:
    typer.echo(f"{rounds} rounds")


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="The ledger.")], last: Annotated[int, typer.Option()] = 1
) -> None:
    pass


inner = typer.Typer(cls=Commands)
inner.command("verify")(show)
inner.command("list")(train)
app.add_typer(inner, name="data")


def answer(*words):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    return done.stderr.partition("Error: ")[2].strip()


OPTIONS = "(there are --rounds, --config)"
EXTRA, REST = "Got unexpected extra argument", "all else follows an option"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("trian", "No such command 'trian'; did you mean 'train'? (there are train, show, data)"),
        ("nothing", "No such command 'nothing' (there are train, show, data)"),
        ("data verfy", "No such command 'verfy'; did you mean 'verify'? (there are verify, list)"),
        ("train --round 3", f"No such option '--round'; did you mean '--rounds'? {OPTIONS}"),
        ("train --gpu", f"No such option '--gpu' {OPTIONS}"),
        ("show x --gpu", "No such option '--gpu' (there are --last)"),
        ("train --workers 3", "No such option '--workers': workers is a key of the file that --config names"),
        ("data list --workers 3", f"No such option '--workers' {OPTIONS}"),  # its file is of another kind
        (
            "train 3",
            f"{EXTRA} (3): it takes no words of its own; {REST} (--rounds, --config)",
        ),
        ("data verify a b", f"{EXTRA} (b): it takes PATH; {REST} (--last)"),
        ("show", "Missing argument 'PATH'. The ledger."),
        ("train --rounds many", "Invalid value for '--rounds': 'many' is not a valid integer."),
    ],
)
def test_each_mistake_is_answered_once(words, told):
    assert answer(*words.split()) == told


def test_what_is_right_is_done():
    done = CliRunner().invoke(app, ["train", "--rounds", "3", "--hidden"])
    assert (done.exit_code, done.stdout) == (0, "3 rounds\n")
