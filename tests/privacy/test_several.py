"""Plans of several reports and of reports per record: within the limits, and as training has them."""

import math

import pytest

from sqsgd import central_guarantee, make_scheme
from sqsgd.privacy import several
from sqsgd.privacy.record_plan import record_plan
from sqsgd.privacy.several import plan_several

BUDGET = {"dim": 3920, "bytes": 48, "users": 60000, "delta": 1e-6}


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """Each number of reports that is tried takes a second."""
    monkeypatch.setattr(several, "_TRIED", (2.0, 4.0))


@pytest.mark.parametrize(
    ("limits", "visit"), [({"central": 0.2, "local": 6.0}, 0), ({"central": 1.0, "local": 4.0}, 1500)]
)
def test_every_split_keeps_the_limits_and_some_more_reports_would_not(limits, visit):
    plan = plan_several(**BUDGET, **limits, visit=visit)
    assert plan.best.nmse_mean == min(split.nmse_mean for split in plan.splits)
    for split in plan.splits:
        assert split.central.epsilon <= limits["central"]
        assert split.local <= limits["local"]
        assert (split.central.reports, split.central.users) == (split.reports, visit or 60000)
        more = split.reports + 1 + split.reports // 50
        if more * split.epsilon > limits["local"]:
            continue
        options = {"nearest": split.nearest} if split.nearest else {}
        scheme = make_scheme(split.scheme, dim=3920, epsilon=split.epsilon, bytes=48, **options)
        order = "round" if visit else "run"
        assert central_guarantee(scheme, visit or 60000, 1e-6, order, more).epsilon > limits["central"]


def test_the_near_set_is_for_the_central_figure_where_that_gains_three_percent():
    limits = {**BUDGET, "central": 0.2, "visit": 0}
    usual = several._most(2.0, **limits, local=math.inf)
    chosen = several._least(2.0, **limits, local=math.inf)
    assert chosen.nearest == "central"
    assert 1.03 * chosen.nmse_mean <= usual.nmse_mean
    capped = several._least(2.0, **limits, local=8.0)  # no more than four reports, so those with less error
    assert (capped.nearest, capped.reports) == ("", 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"central": 1e-9}, "allows no report of epsilon 2 or more"),
        ({"local": 0.1}, "allows no report of epsilon 2 or more"),
        ({"local": 0.0}, "local = 0.0 must be positive"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"visit": 60001}, "a round cannot have 60,001 users"),
        ({"users": 1}, "users = 1"),
    ],
)
def test_what_cannot_be_planned_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        plan_several(**{**BUDGET, "central": 0.3, "local": 4.0, **changes})


RECORDS = {"dim": 3920, "records": 60_000, "silos": 10, "epsilon": 1.0, "delta": 1e-5, "rounds": 200}


def test_the_plan_is_what_training_uses():
    pytest.importorskip("dp_accounting", reason="needs pip install 'sqsgd[train]'")
    plan = record_plan(**RECORDS)
    first, *others = plan.batchings
    scheme = make_scheme("sqsgd-record", dim=3920, epsilon=1.0, reports=200, rate=first.share, records=300)
    assert first.deviation == pytest.approx(scheme.mechanism.deviation, rel=1e-9)
    assert first.error == pytest.approx(first.deviation / 300 / math.sqrt(10))
    assert first.trusted == pytest.approx(first.error / math.sqrt(10))
    assert plan.message_bytes == scheme.bits // 8
    assert [first.name, *(each.name for each in others)] == ["poisson", "every record", "disjoint"]
    assert others[0].error < first.error < 1.1 * others[0].error < others[1].error / 3
    assert plan.warnings == ()


def test_small_silos_are_warned_of():
    pytest.importorskip("dp_accounting", reason="needs pip install 'sqsgd[train]'")
    (large,) = record_plan(**{**RECORDS, "records": 1000, "delta": 0.02}).warnings
    assert large.startswith("delta = 0.02 is not below 1 / 100, for the records of a silo")
    (few,) = record_plan(**{**RECORDS, "records": 100}).warnings
    assert few.startswith("a silo of 10 records draws 0.5 of them on average")
