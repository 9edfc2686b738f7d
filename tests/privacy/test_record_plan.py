"""What ``sqsgd plan --records`` says: noise, bytes and warnings, as training has them."""

import math

import pytest

from sqsgd import make_scheme
from sqsgd.privacy.record_plan import record_plan

pytest.importorskip("dp_accounting", reason="needs pip install 'sqsgd[train]'")
BUDGET = {"dim": 3920, "records": 60_000, "silos": 10, "epsilon": 1.0, "delta": 1e-5, "rounds": 200}


def test_the_plan_is_what_training_uses():
    plan = record_plan(**BUDGET)
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
    (large,) = record_plan(**{**BUDGET, "records": 1000, "delta": 0.02}).warnings
    assert large.startswith("delta = 0.02 is not below 1 / 100, for the records of a silo")
    (few,) = record_plan(**{**BUDGET, "records": 100}).warnings
    assert few.startswith("a silo of 10 records draws 0.5 of them on average")
