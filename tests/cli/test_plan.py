"""`sqsgd plan`: the planner's answer, as text and as JSON."""

import json

import pytest
from typed import typed

from sqsgd._internal.exact import three_digits
from sqsgd.privacy.planner import plan
from sqsgd.privacy.several import plan_once

LINE = "sqsgd plan --dim 5000 --epsilon 80 --bytes 64 --clients 20 --rounds 3 --probability 1e-5 --prior 2"
CHOSEN = plan(dim=5000, epsilon=80.0, bytes=64, clients=20, rounds=3, probability=1e-5, prior=2.0)


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Sentences stay on their line."""
    monkeypatch.setenv("COLUMNS", "1000")


def test_json_is_the_plan():
    printed = json.loads(typed(f"{LINE} --json").out)
    assert printed == json.loads(json.dumps(CHOSEN.to_dict()))


def test_the_verdict_fits_on_a_screen_and_details_show_everything(monkeypatch):
    assert f"Recommended  {CHOSEN.recommendation.options} (" in typed(LINE).out
    done = typed(f"{LINE} --details")
    assert done.code == 0
    assert all(f"Warning      {warning}\n" in done.out for warning in CHOSEN.warnings)
    assert all(way.name in done.out for way in CHOSEN.stateless)
    assert all(f"  * {statement.sentence}\n" in done.out for statement in CHOSEN.reconstruction)
    once, done = plan_once(**BUDGET, epsilon=4.0).central, typed(f"{ONCE} --epsilon 4 --details")
    assert f"{three_digits(once.epsilon)} at delta 1e-06" in done.out
    assert all(f"  * {each}\n" in done.out for each in once.assumptions)
    monkeypatch.setenv("COLUMNS", "80")
    assert len(typed(LINE).out.splitlines()) <= 10


ONCE = "sqsgd plan --once --dim 3920 --bytes 32 --users 60000 --delta 1e-6"
BUDGET = {"dim": 3920, "bytes": 32, "users": 60000, "delta": 1e-6}


def test_json_of_one_report_per_user():
    for options, wanted in (("--epsilon 4", {"epsilon": 4.0}), ("--central 0.5", {"central": 0.5})):
        found = json.loads(typed(f"{ONCE} {options} --json").out)
        assert found == plan_once(**BUDGET, **wanted).to_dict()
