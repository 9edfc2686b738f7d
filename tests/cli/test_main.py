"""The commands as typed in a shell, completion, lists, `sqsgd plan` and `sqsgd doctor`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typed import typed

from sqsgd import central_guarantee, make_scheme
from sqsgd.cli import doctor
from sqsgd.privacy import several
from sqsgd.privacy.planner import plan
from sqsgd.privacy.several import plan_once

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


LINE = "sqsgd plan --dim 5000 --epsilon 80 --bytes 64 --clients 20 --rounds 3 --probability 1e-5 --prior 2"
CHOSEN = plan(dim=5000, epsilon=80.0, bytes=64, clients=20, rounds=3, probability=1e-5, prior=2.0)


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Sentences stay on their line."""
    monkeypatch.setenv("COLUMNS", "1000")


def test_json_is_the_plan():
    printed = json.loads(typed(f"{LINE} --json").out)
    assert printed == json.loads(json.dumps(CHOSEN.to_dict()))
    assert f"Recommended  {CHOSEN.recommendation.options} (" in typed(LINE).out


ONCE = "sqsgd plan --once --dim 3920 --bytes 32 --users 60000 --delta 1e-6"
BUDGET = {"dim": 3920, "bytes": 32, "users": 60000, "delta": 1e-6}


def test_json_of_one_report_per_user():
    for options, wanted in (("--epsilon 4", {"epsilon": 4.0}), ("--central 0.5", {"central": 0.5})):
        found = json.loads(typed(f"{ONCE} {options} --json").out)
        assert found == plan_once(**BUDGET, **wanted).to_dict()
    shown, central = typed(f"{ONCE} --epsilon 4").out, plan_once(**BUDGET, epsilon=4.0).central
    assert all(f"  * {each}\n" in shown for each in central.assumptions)
    records = "sqsgd plan --records 60000 --silos 10 --epsilon 1 --delta 1e-5 --rounds 200 --json"
    assert json.loads(typed(records).out)["batchings"][0]["share"] == 0.05
    assert "Recommended" in typed(records.removesuffix("--json")).out


def test_train_runs_what_the_plan_of_several_reports_prints(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(several, "_TRIED", (4.0, 1.9))  # and nothing between 4 and 2 x 1.9
    done = typed("sqsgd plan --dim 3920 --bytes 8 --users 2000 --delta 1e-3 --central 0.25")
    printed = re.search("Recommended  (.*): the mean of all", done.out)[1]
    assert printed.startswith("--scheme privunit-index --option nearest=central --reports 6 --epsilon 1.9 ")
    data = f"--dataset mnist5k --model soft-hog-linear --out {tmp_path}/run"
    trained = typed(f"sqsgd train {data} {printed}")
    assert trained.code == 0, trained.error
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["scheme"], summary["reports"], summary["epsilon_total"]) == ("privunit-index", 6, 11.4)
    guarantee = central_guarantee(
        make_scheme("privunit-index", dim=3920, epsilon=1.9, nearest="central"), 1998, 1e-6, reports=6
    )
    assert summary["central_epsilon"] == guarantee.epsilon


def examined():
    return {check.name: check for check in doctor.examine("/nowhere")}


def test_the_basics_work_here_and_what_is_missing_has_a_fix():
    checks = examined()
    for name in ("entropy", "kernels", "train", "mnist5k"):
        assert checks[name].state == "good"
    assert checks["mnist"].state == "missing"
    assert "sqsgd data fetch mnist --data-dir /nowhere" in checks["mnist"].fix
    assert all((check.state == "good") != bool(check.fix) for check in checks.values())
    table = typed("sqsgd doctor")
    assert (table.code, "The basics work." in table.out) == (0, True)


def broken(*_arguments, **_options):
    raise OSError("no such luck")


@pytest.mark.parametrize(("name", "check"), [("os.getrandom", "entropy"), ("sqsgd.make_scheme", "kernels")])
def test_what_fails_to_run_is_broken(monkeypatch, name, check):
    monkeypatch.setattr(name, broken)
    done = typed("sqsgd doctor --json")
    answer = json.loads(done.out)
    (found,) = (each for each in answer["checks"] if each["name"] == check)
    assert (done.code, answer["works"]) == (1, False)
    assert (found["state"], found["found"]) == ("broken", "no such luck")
    assert "pip install" in found["fix"]


def test_generators_that_repeat_are_not_entropy(monkeypatch):
    from sqsgd import seeded_rng

    monkeypatch.setattr("sqsgd.core.random.secure_rng", lambda: seeded_rng(0))
    assert "the same 16 bytes" in examined()["entropy"].found
