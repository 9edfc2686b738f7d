"""`sqsgd plan`: the planner's answer, as text and as JSON."""

import json
import re
from dataclasses import asdict

import pytest
from typed import typed

from sqsgd import central_guarantee, make_scheme
from sqsgd._internal.exact import three_digits
from sqsgd.privacy import several
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


def test_the_verdict_fits_on_a_screen_and_details_show_everything(monkeypatch):
    assert f"Recommended  {CHOSEN.recommendation.options} (" in typed(LINE).out
    done = typed(f"{LINE} --details")
    assert done.code == 0
    for words in (
        f"Error        {CHOSEN.nmse:.4g} of one report, {CHOSEN.nmse_mean:.4g} of the mean of 20 clients\n",
        "Epsilon      80 for one report, 240 after 3\n",
        *(f"Warning      {warning}\n" for warning in CHOSEN.warnings),
        f"Why {CHOSEN.recommendation.scheme}: {CHOSEN.recommendation.reason}\n",
        f"bytes              {CHOSEN.message_bytes} per message: {CHOSEN.bits} bits of codes",
        *(way.name for way in (*CHOSEN.alternatives, *CHOSEN.stateless)),
        *(f"  * {statement.sentence}\n" for statement in CHOSEN.reconstruction),
    ):
        assert words in done.out
    monkeypatch.setenv("COLUMNS", "80")
    assert len(typed(LINE).out.splitlines()) <= 10


ONCE = "sqsgd plan --once --dim 3920 --bytes 32 --users 60000 --delta 1e-6"
BUDGET = {"dim": 3920, "bytes": 32, "users": 60000, "delta": 1e-6}


def test_json_of_one_report_per_user():
    for options, wanted in (("--epsilon 4", {"epsilon": 4.0}), ("--central 0.5", {"central": 0.5})):
        found = json.loads(typed(f"{ONCE} {options} --json").out)
        assert found == plan_once(**BUDGET, **wanted).to_dict()


def test_without_json_both_guarantees_and_the_assumptions_are_printed():
    chosen, done = plan_once(**BUDGET, epsilon=4.0), typed(f"{ONCE} --epsilon 4 --details")
    assert done.code == 0
    assert f"Central      epsilon {three_digits(chosen.central.epsilon)} at delta 1e-06, against" in done.out
    assert f"{chosen.central.epsilon:.6g}, by the blanket bound, holds if\n" in done.out
    assert f"\n{chosen.central.sentence}\n" in done.out
    assert all(f"  * {each}\n" in done.out for each in chosen.central.assumptions)


def test_train_runs_what_the_plan_of_several_reports_prints(tmp_path, monkeypatch):
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
