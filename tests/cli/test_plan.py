"""`sqsgd plan`: the planner's answer, as text and as JSON."""

import json
from dataclasses import asdict

import pytest
from typed import typed

from sqsgd.privacy.certificate import plan_once
from sqsgd.privacy.planner import frontier, plan

LINE = "sqsgd plan --dim 5000 --epsilon 80 --bytes 64 --clients 20 --rounds 3 --probability 1e-5 --prior 2"
CHOSEN = plan(dim=5000, epsilon=80.0, bytes=64, clients=20, rounds=3, probability=1e-5, prior=2.0)


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Sentences stay on their line."""
    monkeypatch.setenv("COLUMNS", "1000")


def test_json_is_the_plan():
    printed = json.loads(typed(f"{LINE} --json").out)
    points = printed.pop("frontier")
    assert printed == json.loads(json.dumps(CHOSEN.to_dict()))
    assert points == [asdict(point) for point in frontier(dim=CHOSEN.dim, epsilon=CHOSEN.epsilon)]


def test_without_json_the_whole_plan_is_printed():
    done = typed(LINE)
    assert done.code == 0
    advice = CHOSEN.recommendation
    first, again, empty, scheme = done.out.splitlines()[:4]
    assert first == f"take {advice.options}: {advice.reason}"
    assert again.startswith("or --scheme sqsgd, if the same clients answer in most rounds")
    assert (empty, scheme) == ("", "scheme             sqsgd-stateless")
    for words in (
        f"{CHOSEN.count} of 8,192 rotated ones, with their signs, drawn around the {CHOSEN.near} largest\n",
        f"bytes              {CHOSEN.message_bytes} per message: {CHOSEN.bits} bits of codes",
        f"of the mean over 20 clients {CHOSEN.nmse_mean:.4g}\n",
        f"so this is {CHOSEN.optimum_ratio:.3g} times the best possible\n",
        *(way.name for way in (*CHOSEN.alternatives, *CHOSEN.stateless)),
        *(f"  * {statement.sentence}\n" for statement in CHOSEN.reconstruction),
    ):
        assert words in done.out


def test_warnings_are_printed():
    line = "sqsgd plan --dim 100000 --epsilon 20 --bytes 1"
    warnings = json.loads(typed(f"{line} --json").out)["warnings"]
    assert warnings
    shown = typed(line).out.split("\nWarnings\n")[1]
    assert shown == "".join(f"  * {warning}\n" for warning in warnings)


ONCE = "sqsgd plan --once --dim 3920 --bytes 32 --users 60000 --delta 1e-6"
BUDGET = {"dim": 3920, "bytes": 32, "users": 60000, "delta": 1e-6}


def test_json_of_one_report_per_user():
    for options, wanted in (("--epsilon 4", {"epsilon": 4.0}), ("--central 0.5", {"central": 0.5})):
        found = json.loads(typed(f"{ONCE} {options} --json").out)
        assert found == plan_once(**BUDGET, **wanted).to_dict()


def test_without_json_both_guarantees_and_the_assumptions_are_printed():
    chosen, done = plan_once(**BUDGET, epsilon=4.0), typed(f"{ONCE} --epsilon 4")
    assert done.code == 0
    advice = "--participation once --scheme auto --epsilon 4 --clients 60000 --bytes 32"
    assert done.out.startswith(f"take {advice}: {chosen.scheme}, ")
    assert "nothing will be learned" not in done.out
    assert f"scheme             {chosen.scheme}\n" in done.out
    assert "local epsilon      4\n" in done.out
    assert f"central epsilon    {chosen.central.epsilon:.6g} at delta = 1e-06 (blanket bound)\n" in done.out
    assert f"\n{chosen.central.sentence}\n" in done.out
    assert all(f"  * {each}\n" in done.out for each in chosen.central.assumptions)
