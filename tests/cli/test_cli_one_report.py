"""`sqsgd plan --once`: both guarantees of one report per user, as text and as JSON."""

import json

import pytest
from typed import typed

from sqsgd.privacy.certificate import plan_once

LINE = "sqsgd plan --once --dim 3920 --bytes 32 --users 60000 --delta 1e-6"
BUDGET = {"dim": 3920, "bytes": 32, "users": 60000, "delta": 1e-6}


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Sentences stay on their line."""
    monkeypatch.setenv("COLUMNS", "1000")


def test_json_is_the_plan():
    for options, wanted in (("--epsilon 4", {"epsilon": 4.0}), ("--central 0.5", {"central": 0.5})):
        found = json.loads(typed(f"{LINE} {options} --json").out)
        assert found == plan_once(**BUDGET, **wanted).to_dict()


def test_without_json_both_guarantees_and_the_assumptions_are_printed():
    chosen, done = plan_once(**BUDGET, epsilon=4.0), typed(f"{LINE} --epsilon 4")
    assert done.code == 0
    advice = "--participation once --scheme auto --epsilon 4 --clients 60000 --bytes 32"
    assert done.out.startswith(f"take {advice}: {chosen.scheme}, ")
    assert "nothing will be learned" not in done.out
    assert f"scheme             {chosen.scheme}\n" in done.out
    assert "local epsilon      4\n" in done.out
    assert f"central epsilon    {chosen.central.epsilon:.6g} at delta = 1e-06 (blanket bound)\n" in done.out
    assert f"\n{chosen.central.sentence}\n" in done.out
    assert all(f"  * {each}\n" in done.out for each in chosen.central.assumptions)


def test_too_few_users_are_told():
    done = typed(f"{LINE.replace('60000', '100')} --epsilon 0.1")
    assert "\nlittle or nothing will be learned from 100 reports: " in done.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sqsgd plan --users 100", "users = 100 needs --once"),
        ("sqsgd plan --central 1", "central = 1.0 needs --once"),
        ("sqsgd plan --once --users 100", "--once needs --epsilon (local) or --central"),
        ("sqsgd plan --once --epsilon 4 --rounds 3", "rounds = 3 has no meaning with --once"),
        ("sqsgd plan --once --epsilon 4 --central 1", "either epsilon = 4.0 or central = 1.0"),
        ("sqsgd plan --once --epsilon 4 --delta 2", "delta = 2.0"),
        ("sqsgd plan --once --central 0 --dim 100", "central = 0.0"),
    ],
)
def test_refusals(line, words):
    done = typed(line)
    assert done.code == 2
    assert words in done.error
