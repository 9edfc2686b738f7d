"""sqsgd ledger show and verify."""

import json

import pytest
import typer
from spending import pay, small_ledger
from typer.testing import CliRunner

from sqsgd.commands.ledgers import show_ledger, verify_ledger
from sqsgd.privacy.refusals import LedgerDamaged

app = typer.Typer()
app.command("show")(show_ledger)
app.command("verify")(verify_ledger)


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
    assert [
        entry["round"] for entry in json.loads(run("show", ledger.path, "--last", 1, "--json").stdout)["last"]
    ] == [1]
    text = run("show", ledger.path).stdout
    for words in (
        "Ann",
        "cap         100.0",
        "12.3 in 14 reports",
        "[red]faces",
        "the last 10",
    ):
        assert words in text
    assert "the last" not in run("show", ledger.path, "--last", 0).stdout


def test_verify(tmp_path):
    ledger = small_ledger(tmp_path)
    done = run("verify", ledger.path)
    assert (done.exit_code, done.stdout) == (0, f"good        {ledger.path}: 3 reports, 3.0 spent\n")
    found = json.loads(run("verify", ledger.path, "--json").stdout)
    assert (found["good"], found["problem"], found["spent"]) == (True, "", 3.0)
    good = ledger.path.read_bytes()
    ledger.path.write_bytes(good + b'{"line":')
    done = run("verify", ledger.path)
    assert done.exit_code == 0
    assert "8 bytes of a line that was cut off before its report could leave; the next spend" in done.stdout
    assert "8 bytes" in run("show", ledger.path).stdout
    ledger.path.write_bytes(good.replace(b'"round":1', b'"round":7'))
    done = run("verify", ledger.path)
    assert done.exit_code == 1
    assert done.stdout.startswith(f"NOT GOOD    {ledger.path}: line 3 (byte ")
    done = run("verify", ledger.path, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["good"] is False
    assert isinstance(run("show", ledger.path).exception, LedgerDamaged)


def test_a_ledger_that_is_gone_or_never_was(tmp_path):
    ledger = small_ledger(tmp_path)
    ledger.path.unlink()
    assert run("verify", ledger.path).exit_code == 1
    assert "there is no such file" in str(run("verify", tmp_path / "none").exception)


@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_witness_that_has_moved(tmp_path, command):
    ledger = small_ledger(tmp_path, witness=tmp_path / "witness")
    (tmp_path / "witness").rename(tmp_path / "elsewhere")
    assert run(command, ledger.path).exit_code == 1
    assert run(command, ledger.path, "--witness", tmp_path / "elsewhere").exit_code == 0
