"""sqsgd ledger show and verify."""

import json
import os

import pytest
from spending import pay, small_ledger
from typed import typed
from typer.testing import CliRunner

from sqsgd.cli.ledger import app


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_show(tmp_path):
    ledger = small_ledger(tmp_path, reports=12, cap=100.0, owner="Ann", witness=tmp_path / "witness")
    pay(ledger, 0, 0.1, task="[red]faces", scheme="vqsgd")
    pay(ledger, 1, 0.2, task="faces", scheme="vqsgd")
    found = json.loads(run("show", ledger.path, "--json").stdout)
    assert found["spent"] == 12.3  # rounded up: the sum is 1.7e-17 above the real 12.3, the float 7e-16
    assert found["left"] == 87.69999999999999
    assert (found["max_epsilon"], found["reports"], found["owner"]) == (100.0, 14, "Ann")
    assert found["witness"] == str(tmp_path / "witness")
    assert found["by_scheme"] == [
        {"scheme": "sqsgd", "reports": 12, "spent": 12.0},
        {"scheme": "vqsgd", "reports": 2, "spent": 0.30000000000000004},
    ]
    assert [entry["line"] for entry in found["last"]] == list(range(6, 16))
    text = run("show", ledger.path).stdout
    assert all(words in text for words in ("Ann", "12.3 in 14 reports", "[red]faces", "the last 10"))


@pytest.fixture
def ledger(tmp_path):
    return small_ledger(tmp_path, reports=2).path


@pytest.mark.parametrize("command", ["show", "verify"])
def test_names_that_are_not_a_ledger(command, ledger, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for arguments, words in (
        ((), "Missing argument 'PATH'"),
        ((tmp_path / "nowhere",), "does not exist; name a ledger"),
        ((tmp_path,), "name the file of the ledger"),
        ((tmp_path / "pipe",), "name the file of the ledger"),  # and it does not block
        ((tmp_path / "ledger.tip",), "is the tip of a ledger; name the ledger itself"),
        ((ledger, "--witness", ledger), "must be the ledger's second tip"),
        ((ledger, "--witness", tmp_path), "name the file of the witness"),
    ):
        done = typed(["sqsgd", "ledger", command, *arguments, "--json"])
        assert done.code == 2
        assert words in json.loads(done.out)["error"]
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


@pytest.mark.parametrize("damage", ["cut", "gone", "tip gone", "binary", "empty"])
def test_a_ledger_that_cannot_be_trusted_ends_with_1(ledger, damage):
    assert json.loads(typed(["sqsgd", "ledger", "verify", ledger, "--json"]).out)["good"]
    if damage == "tip gone":
        ledger.with_name("ledger.tip").unlink()
    elif damage == "gone":
        ledger.unlink()
    else:
        cut = b"".join(ledger.read_bytes().splitlines(keepends=True)[:2])
        ledger.write_bytes({"cut": cut, "binary": b"\xff\xfe\x00" * 50, "empty": b""}[damage])
    assert typed(["sqsgd", "ledger", "show", ledger, "--json"]).code == 1
    done = typed(["sqsgd", "ledger", "verify", ledger, "--json"])
    told = json.loads(done.out)
    assert done.code == 1
    assert not told["good"]
    assert "consider the whole cap spent" in told["what to do"]
