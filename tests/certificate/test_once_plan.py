"""Plans for one report per user, from either ε."""

import pytest

from sqsgd import central_guarantee, make_scheme
from sqsgd.certificate.once_plan import plan_once
from sqsgd.planner import automatic_scheme

BUDGET = {"dim": 3920, "bits": 256, "users": 60000, "delta": 1e-6}


def test_the_plan_keeps_what_was_asked_for():
    chosen = plan_once(**BUDGET, central=0.2)
    assert chosen.central.epsilon <= 0.2
    assert chosen.epsilon == chosen.central.local_epsilon > 4
    scheme = make_scheme(chosen.scheme, dim=3920, epsilon=chosen.epsilon, bits=256)
    assert chosen.scheme == automatic_scheme(dim=3920, epsilon=chosen.epsilon, bits=256)
    assert (chosen.message_bytes, chosen.nmse) == (scheme.bits // 8, scheme.nmse)
    assert chosen.nmse_mean == chosen.nmse / 60000


def test_from_a_local_epsilon():
    chosen = plan_once(**BUDGET, epsilon=4.0, dropouts=50000)
    assert chosen.epsilon == 4.0
    scheme = make_scheme(chosen.scheme, dim=3920, epsilon=4.0, bits=256)
    assert chosen.central == central_guarantee(scheme, 60000, 1e-6, dropouts=50000)
    assert chosen.to_dict()["central"]["users"] == 10000


def test_one_of_both_is_asked_for():
    for both in ({}, {"epsilon": 4.0, "central": 0.2}):
        with pytest.raises(ValueError, match="either epsilon"):
            plan_once(**BUDGET, **both)
