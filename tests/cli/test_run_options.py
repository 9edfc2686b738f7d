"""The options of ``train`` in ``compare`` and ``ablate``; arms and panels in words."""

import pytest
from sqsgd.training.settings import FIELDS
from typer.main import get_command

from sqsgd.cli import app
from sqsgd.cli._run_options import run_options, worded_arm, worded_panel


def options(command):
    return {name for each in get_command(app).commands[command].params for name in each.opts}


@pytest.mark.parametrize(
    ("command", "instead"), [("compare", {"--scheme", "--name"}), ("ablate", {"--name"})]
)
def test_nothing_of_train_is_missing(command, instead):
    names = {name.removesuffix("_") for name in run_options()}
    assert names - {"option"} < set(FIELDS)
    wanted = {f"--{name.replace('_', '-')}" for name in names}
    assert len(wanted) > 18
    assert wanted & options("train") == wanted
    assert wanted - options(command) == instead


def test_help_shows_defaults_only_where_they_hold():
    defaults = {
        command: {each.name: each.default for each in get_command(app).commands[command].params}
        for command in ("compare", "ablate")
    }
    assert defaults["compare"]["batch"] == 32
    assert defaults["compare"]["lr"] is None  # the rates decide
    assert defaults["ablate"]["batch"] is None  # the figure decides


def test_an_arm_in_words():
    assert worded_arm("sqsgd") == {"scheme": "sqsgd"}
    assert worded_arm("K = 16: sqsgd-paper levels=16 epsilon=100") == {
        "name": "K = 16", "scheme": "sqsgd-paper", "epsilon": 100, "options": {"levels": 16},
    }  # fmt: skip
    assert worded_arm("own.models:scheme") == {"scheme": "own.models:scheme"}


def test_a_panel_in_words_keeps_text_as_text():
    found = worded_panel("10 of 100: participation=10 clients=100 partition=dirichlet:0.1 secure=true")
    assert found == {
        "name": "10 of 100", "participation": "10", "clients": 100, "partition": "dirichlet:0.1",
        "secure": True,
    }  # fmt: skip
    with pytest.raises(ValueError, match="must look like 'NAME: key=value"):
        worded_panel("")
