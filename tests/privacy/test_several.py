"""The plan of several reports: within both limits, and no more would fit."""

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
        scheme = make_scheme(split.scheme, dim=3920, epsilon=split.epsilon, bytes=48)
        order = "round" if visit else "run"
        assert central_guarantee(scheme, visit or 60000, 1e-6, order, more).epsilon > limits["central"]


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
