"""``central_guarantee``, the local ε for a central one, and plans of one report per user."""

import math

import pytest

from sqsgd import Pass, central_guarantee, local_epsilon_for, make_scheme
from sqsgd.privacy.planner import automatic_scheme
from sqsgd.privacy.several import plan_once


def index(epsilon, **options):
    return make_scheme("privunit-index", dim=3920, epsilon=epsilon, **options)


TABLE = {  # in floats: local ε, and central ε for the users below
    8.0: (4.83, 3.89, 1.55, 0.287),
    6.0: (3.17, 1.86, 0.436, 0.095),
    4.0: (1.066, 0.478, 0.138, 0.030),
    2.0: (0.272, 0.129, 0.0375, 0.0082),
}

USERS = (1500, 6000, 60000, 10**6)


@pytest.mark.parametrize("local", TABLE)
def test_the_table_of_values(local):
    for users, known in zip(USERS, TABLE[local], strict=True):
        found = central_guarantee(index(local), users, 1e-6)
        assert found.bound == "blanket"
        assert 0.995 * known <= found.epsilon <= 1.015 * known, users


def test_who_is_not_counted_and_what_is_assumed():
    scheme = index(4.0)
    found = central_guarantee(scheme, 6000, 1e-6, dropouts=1000, colluding=500)
    assert found.users == 4500
    assert found.epsilon == central_guarantee(scheme, 4500, 1e-6).epsilon
    assert found.epsilon > central_guarantee(scheme, 6000, 1e-6).epsilon
    assert "real arithmetic" not in " ".join(found.assumptions)
    real = make_scheme("privunit", dim=100, epsilon=2.0, bytes=32)
    assert "real arithmetic" in central_guarantee(real, 1000, 1e-6).assumptions[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 1.0}, "delta = 1.0 must be a number strictly between 0 and 1"),
        ({"delta": 0.0}, "delta = 0.0 must be a number strictly between 0 and 1"),
        ({"reports": 0}, "reports = 0"),
        ({"reports": 10**6}, "reports = 1000000"),
        ({"colluding": 100}, "leaves none of users = 100"),
        ({"colluding": 101, "reports": 4}, "leaves none of users = 100"),
        ({"users": 10, "colluding": 12, "reports": 4, "order": "round"}, "leaves none of users = 10"),
        ({"users": 0}, "users = 0"),
        ({"order": "day"}, "order = 'day' must be one of run, round"),
        ({"dropouts": 60, "colluding": 40}, "dropouts \\+ colluding = 100 leaves none of users = 100"),
        ({"scheme": "privunit-index"}, "must be a sqsgd.Scheme"),
        ({"scheme": make_scheme("sqsgd", dim=1000, epsilon=4.0, bytes=8, code="signs")}, "keeps a residual"),
        ({"scheme": make_scheme("fedsgd", dim=10)}, "no pure local guarantee .notion 'none'"),
        ({"scheme": make_scheme("cpsgd", dim=10, epsilon=4.0, bytes=50)}, "notion 'central'"),
    ],
)
def test_refusals_name_the_value(options, message):
    """Before anything is computed: ``Pass`` refuses as well, from which runs begin."""
    arguments = {"scheme": index(4.0), "users": 100, "delta": 1e-6, **options}
    with pytest.raises(ValueError, match=message):
        central_guarantee(**arguments)
    if "delta" not in options:
        with pytest.raises(ValueError, match=message):
            Pass(**{name: value for name, value in arguments.items() if name != "delta"})


def test_what_no_scheme_can_reach_is_refused():
    for central in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="central"):
            local_epsilon_for(index, central, 100, 1e-6)
    with pytest.raises(ValueError, match=r"central = 1e-09 needs a local epsilon below 0\.01, or more users"):
        local_epsilon_for(index, 1e-9, 60, 1e-6)
    for both in ({}, {"epsilon": 4.0, "central": 0.2}):
        with pytest.raises(ValueError, match="either epsilon"):
            plan_once(dim=3920, bytes=32, users=60000, delta=1e-6, **both)


@pytest.mark.parametrize(("users", "central"), [(60000, 0.5), (1500, 1.0), (10**6, 0.05)])
def test_what_is_chosen_keeps_the_central_epsilon(users, central):
    local = local_epsilon_for(index, central, users, 1e-6)
    assert central_guarantee(index(local), users, 1e-6).epsilon <= central
    assert central_guarantee(index(1.02 * local), users, 1e-6).epsilon > central


def test_a_local_epsilon_as_small_as_the_central_one_always_suffices():
    assert local_epsilon_for(index, 0.5, 1, 1e-6) == pytest.approx(0.5)
    assert local_epsilon_for(index, 20.0, 100, 1e-6) == 12.0
    assert local_epsilon_for(index, 3.0, 10**8, 1e-6, most=4.0) == 4.0


BUDGET = {"dim": 3920, "bytes": 32, "users": 60000, "delta": 1e-6}


def test_the_plan_keeps_what_was_asked_for():
    chosen = plan_once(**BUDGET, central=0.2)
    assert chosen.central.epsilon <= 0.2
    assert chosen.epsilon == chosen.central.local_epsilon > 4
    scheme = make_scheme(chosen.scheme, dim=3920, epsilon=chosen.epsilon, bytes=32)
    assert (chosen.scheme, {}) == automatic_scheme(dim=3920, epsilon=chosen.epsilon, bytes=32)
    assert (chosen.message_bytes, chosen.nmse) == (scheme.bits // 8, scheme.nmse)
    assert chosen.nmse_mean == chosen.nmse / 60000
    local = plan_once(**BUDGET, epsilon=4.0)
    scheme = make_scheme(local.scheme, dim=3920, epsilon=4.0, bytes=32)
    assert local.central == central_guarantee(scheme, 60000, 1e-6)


def test_linked_reports_count_as_one():
    """Of a larger local ε, for which only the generic bound holds, or else the local total."""
    apart = central_guarantee(index(0.5), 60000, 1e-6, reports=4)
    linked = central_guarantee(index(0.5), 60000, 1e-6, reports=4, linked="one order for all passes")
    assert (apart.local_epsilon, linked.local_epsilon, linked.bound) == (2.0, 2.0, "generic")
    assert apart.epsilon < linked.epsilon == pytest.approx(0.0594, rel=0.01)
    assert any("count as one because of one order for all passes" in text for text in linked.assumptions)
    assert "for the 4 reports of a user" in linked.sentence
    assert central_guarantee(index(8.0), 60000, 1e-6, reports=9, linked="tickets").bound == "local"
