"""Several reports per user: in passes or in one visit, each in an order of its own; what they cost in all."""

import json

import numpy as np
import pytest
from reference import g_test
from tiny_runs import SMALL_ONCE as SMALL
from tiny_runs import finished, loaded, prepared, resumed, started

from sqsgd import Ledger, central_guarantee
from sqsgd.cli.train import describe
from sqsgd.report.page import write_report
from sqsgd.training.order import Order, keep_order, kept_order, secret_order
from sqsgd.training.settings import RunConfig, load_config, make_config
from sqsgd.training.summary import about_once


@pytest.fixture(scope="module", params=[{"reports": 2}, {"reports": 2, "visits": 1}], ids=str)
def run(request, tmp_path_factory):
    """A finished run of 40 users with two reports each: in two passes of two rounds, or in one visit."""
    folder = tmp_path_factory.mktemp("several") / "run"
    made = prepared(folder, SMALL, clients=40, epsilon=0.5, **request.param)
    return made, list(started(made))


def test_a_user_spends_all_its_reports(run):
    made, records = run
    summary = json.loads((made.folder / "summary.json").read_text())
    assert (summary["reports"], summary["epsilon"], summary["epsilon_all_rounds"]) == (2, 0.5, 1.0)
    assert [record.clients for record in records] == [20] * 4
    in_passes = made.config.visits == 0
    assert [record.epsilon_total for record in records] == ([0.5, 0.5, 1.0, 1.0] if in_passes else [1.0] * 4)
    order, users = ("run", 40) if in_passes else ("round", 10)
    known = central_guarantee(made.scheme, users, 1e-6, order, reports=2)
    assert (summary["central_epsilon"], summary["central_order"]) == (known.epsilon, order)
    assert known.epsilon < 1.0
    assert "0.5 per report; 1 in total: no user sends more than 2" in describe(summary, made.folder)
    write_report([made.folder], made.folder / "page.html")
    assert "whose ε add up, so 1 is the total" in (made.folder / "page.html").read_text()
    document = json.loads((made.folder / "central.json").read_text())
    assert document["epsilon"] >= summary["central_epsilon"]
    assert (document["reports"], document["passes"][0]["users"]) == (2, summary["central_users"])
    assert "came from a public seed" in document["assumptions"][-1]


def slots_of(order, rounds):
    return [order.cohort(round).tolist() for round in range(rounds)]


def test_each_pass_goes_through_all_users_and_each_visit_repeats_its_round(tmp_path):
    order = secret_order(12, 3, rounds=4, reports=2)
    found = slots_of(order, 8)
    for part in (found[:4], found[4:]):
        assert sorted(user for round in part for user in round) == list(range(12))
    assert found[:4] != found[4:]
    assert [order.sent(round) for round in range(8)] == [1] * 4 + [2] * 4
    with pytest.raises(ValueError, match="round 8 needs 3 users who have not reported"):
        order.cohort(8)
    visit = secret_order(12, 3, rounds=4, reports=3, one_visit=True)
    assert kept_order(keep_order(visit, tmp_path)) == visit
    for round in slots_of(visit, 4):
        assert sorted(round[:3]) == sorted(round[3:6]) == sorted(round[6:])
    assert visit.sent(0) == 3
    with pytest.raises(ValueError, match="round 4 needs"):
        visit.cohort(4)


@pytest.mark.parametrize("one_visit", [False, True])
def test_the_orders_of_several_reports_are_independent(one_visit, monkeypatch):
    def p_value():
        """All pairs of orders of three users are equally likely."""
        counts = {}
        for _ in range(3600):
            order = secret_order(3, 3, reports=2, one_visit=one_visit)
            users = np.concatenate([order.cohort(round) for round in range(1 if one_visit else 2)])
            counts[tuple(users.tolist())] = counts.get(tuple(users.tolist()), 0) + 1
        return g_test([*counts.values(), *[0] * (36 - len(counts))], [100.0] * 36)

    assert p_value() > 1e-6
    words = Order._words  # broken: one order for all reports
    monkeypatch.setattr(Order, "_words", lambda self, _, *where: words(self, 0, *where))
    assert p_value() < 1e-6


def test_missing_reports_are_subtracted_where_they_hurt_most():
    """In one visit all that are missing may be of one part; of passes, the smallest counts."""
    scheme = prepared("unused", SMALL).scheme

    def users(*counts, **options):
        found = about_once(scheme, "run", [{"clients": n} for n in counts], seeded=False, **options)
        return found["users"], found["fewest_users"], found.get("central_users")

    assert users(1500, 1500, 1400, 1500, reports=2) == (2900, 1400, 2900)
    assert users(1500, 1500, 0, 1500, reports=2) == (1500, 1500, 1500)
    assert users(1500, 1500, 1400, 1500, reports=2, slots=6000)[2] == 1400
    assert users(3000, 2900, reports=2, one_visit=1500) == (2900, 1400, 1400)
    assert users(3000, 0, reports=2, one_visit=1500) == (1500, 1500, 1500)  # a lost round has no users
    assert users(3000, 1400, reports=2, one_visit=1500) == (1500, 0, None)


@pytest.mark.parametrize("changes", [{"reports": 2}, {"reports": 2, "visits": 1}], ids=str)
def test_a_user_pays_for_each_report_and_no_more(tmp_path, changes):
    ledgers, settings = tmp_path / "ledgers", {"ledgers": str(tmp_path / "ledgers"), **changes}
    finished(tmp_path / "run", SMALL, **settings)
    paths = [path for path in ledgers.rglob("client-*") if path.suffix == ""]
    assert len(paths) == 40
    assert {Ledger(path).spent for path in paths} == {2}
    with pytest.raises(ValueError, match=r"cost epsilon 2\.0 in all, and its ledger has 0\.0 left"):
        finished(tmp_path / "again", SMALL, **settings)


def test_a_ledger_that_covers_some_reports_pays_for_none(tmp_path):
    """One report of three would fit under the cap of an earlier run."""
    kept = str(tmp_path / "ledgers")
    finished(tmp_path / "one", SMALL, epsilon=2.0, ledgers=kept, reports=1, rounds=1)
    path = next(path for path in (tmp_path / "ledgers").rglob("client-*") if path.suffix == "")
    before = Ledger(path).entries
    with pytest.raises(ValueError, match="nothing was paid"):
        finished(tmp_path / "three", SMALL, ledgers=kept, reports=3, rounds=3)
    assert Ledger(path).entries == before
    assert not (tmp_path / "three").exists()


def test_after_a_crash_the_passes_go_on_in_the_same_orders(tmp_path):
    whole = finished(tmp_path / "whole", SMALL, reports=2)
    steps = started(prepared(tmp_path / "run", SMALL, reports=2, checkpoint_every=1))
    for _ in range(3):
        next(steps)
    steps.close()
    assert load_config(tmp_path / "run/config.toml").reports == 2
    rest = list(resumed(loaded(tmp_path / "run")))
    assert [record.epsilon_total for record in rest] == [2.0]
    assert rest[-1].accuracy == whole[-1].accuracy


def test_reports_imply_participation_and_rounds():
    """With 60,000 users and 16 reports: 6 rounds in each pass, or all reports in one visit."""
    assert make_config({"reports": 1}).once
    for visits, wanted in ((0, (96, 10000, 10000)), (1, (100, 600, 9600))):
        config = RunConfig(epsilon=4.0, clients=60000, reports=16, visits=visits).on(None, 60000)
        assert (config.participation, config.rounds, config.participants, config.asked) == ("once", *wanted)
