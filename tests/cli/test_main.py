"""The commands as typed in a shell, completion, and the lists of schemes and datasets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typed import typed

SQSGD = Path(sys.executable).with_name("sqsgd")


@pytest.fixture
def _alone(monkeypatch):
    """Completion is found by the program's name, which is taken from the main module."""
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)


def test_help_and_version():
    done = subprocess.run([SQSGD, "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("sqsgd 0.")
    assert "schemes" in typed("sqsgd --help").out


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("sqsgd do", ["doctor"]),
        ("sqsgd ledger v", ["verify"]),
        ("sqsgd train --scheme sqsgd-", ["sqsgd-paper", "sqsgd-record", "sqsgd-stateless"]),
        ("sqsgd train --dataset mnist", ["mnist", "mnist5k"]),
        ("sqsgd data fetch fa", ["fashion-mnist"]),
        ("sqsgd ablate t", ["tradeoff"]),
    ],
)
def test_the_shell_completes(line, offered, monkeypatch):
    asked = {"_SQSGD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert sorted(typed("sqsgd").out.split()) == offered


def test_schemes():
    rows = json.loads(typed("sqsgd schemes --json").out)
    by_name = {row["name"]: row for row in rows}
    assert by_name["sqsgd"]["message_bytes"] == 102
    assert by_name["sqsgd"]["epsilon"] == 400.0
    assert by_name["fedsgd"]["epsilon"] == "infinity"
    small = json.loads(typed("sqsgd schemes --dim 1 --epsilon 1 --json").out)
    assert next(row for row in small if row["name"] == "sqsgd-paper")["notion"] == "impossible here"


def test_data_list():
    rows = {row["name"]: row for row in json.loads(typed("sqsgd data list --json").out)}
    assert rows["mnist5k"]["available"]
    assert "sqsgd data fetch emnist" in rows["emnist"]["how"]
