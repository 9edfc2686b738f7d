"""The plan of several reports: within both limits, and no more would fit."""

import math

import pytest

from sqsgd import central_guarantee, make_scheme
from sqsgd.privacy import several
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
