"""`sqsgd audit` and `sqsgd conformance`: table, JSON, files and exit status."""

import json

import typer
from typed import typed
from typer.testing import CliRunner

from sqsgd.audit import Finding, checklist, distinguishing
from sqsgd.audit.conformance import expected_answers
from sqsgd.cli.audit import audit as command

APP = typer.Typer()
APP.command()(command)
SMALL = ["--dim", "50", "--epsilon", "50", "--bytes", "16", "--trials", "1000"]


def run(*arguments):
    return CliRunner().invoke(APP, [*arguments])


def test_json_and_files(tmp_path, monkeypatch):
    monkeypatch.setattr(distinguishing, "_FEWEST", 40)
    done = run("--scheme", "ldp-fl", *SMALL, "--out", str(tmp_path / "new" / "folder"), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["passed"]
    assert [path.split("/")[-1] for path in told["files"]] == ["audit.html", "audit.json"]
    kept = json.loads((tmp_path / "new" / "folder" / "audit.json").read_text())
    assert kept == {key: value for key, value in told.items() if key != "files"}


def test_a_scheme_that_promises_nothing_does_not_pass(tmp_path):
    done = run("--scheme", "fedsgd", *SMALL, "--out", str(tmp_path), "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["result"], told["passed"]) == (2, "nothing to audit", False)
    assert '<p class="verdict nothing"' in (tmp_path / "audit.html").read_text()
    done = run("--scheme", "fedsgd", *SMALL)
    assert done.stdout.startswith("NOTHING TO AUDIT\n")


def test_a_broken_promise_ends_with_1(monkeypatch):
    def broken(_subject):
        yield Finding(
            check="law", name="[bold]law", outcome="violated", sentence="It is broken.", measured=2.0
        )

    monkeypatch.setattr(checklist, "noise_checks", broken)
    done = run("--scheme", "fedsgd", *SMALL)
    assert done.exit_code == 1
    assert "1 of 2 checks broke the guarantee" in done.stdout


def test_export_then_check(tmp_path):
    exported, answered = tmp_path / "vectors.json", tmp_path / "answers.json"
    assert typed(f"sqsgd conformance --export {exported}").code == 0
    answers = expected_answers(json.loads(exported.read_text()))
    answered.write_text(json.dumps(answers))
    right = typed(f"sqsgd conformance {answered}")
    assert right.code == 0
    assert "0 differ: conforms" in right.out
    answers["messages"]["index-100/short"] = "02"
    del answers["estimates"]
    answered.write_text(json.dumps(answers))
    wrong = typed(f"sqsgd conformance {answered}")
    assert wrong.code == 1
    assert 'messages index-100/short: expected "01' in wrong.out
    assert "not answered: estimates" in wrong.out
    summary = json.loads(typed(f"sqsgd conformance {answered} --json").out)
    assert summary["conforms"] is False
    assert [each["id"] for each in summary["differences"]] == ["index-100/short"]
