"""The local ε for a wanted central one."""

import pytest

from sqsgd import central_guarantee, local_epsilon_for, make_scheme


def index(epsilon):
    return make_scheme("privunit-index", dim=3920, epsilon=epsilon)


def test_what_no_scheme_can_reach_is_refused():
    with pytest.raises(ValueError, match=r"central = 1e-09 needs a local epsilon below 0\.01, or more users"):
        local_epsilon_for(index, 1e-9, 60, 1e-6)


@pytest.mark.parametrize(("users", "central"), [(60000, 0.5), (1500, 1.0), (10**6, 0.05)])
def test_what_is_chosen_keeps_the_central_epsilon(users, central):
    local = local_epsilon_for(index, central, users, 1e-6)
    assert central_guarantee(index(local), users, 1e-6).epsilon <= central
    assert central_guarantee(index(1.02 * local), users, 1e-6).epsilon > central


def test_a_local_epsilon_as_small_as_the_central_one_always_suffices():
    assert local_epsilon_for(index, 0.5, 1, 1e-6) == pytest.approx(0.5)
    assert local_epsilon_for(index, 20.0, 100, 1e-6) == 12.0
    assert local_epsilon_for(index, 3.0, 10**8, 1e-6, most=4.0) == 4.0


def test_users_who_do_not_count_lower_it():
    few = local_epsilon_for(index, 0.5, 60000, 1e-6, dropouts=50000, colluding=4000)
    assert few == local_epsilon_for(index, 0.5, 6000, 1e-6)
    assert few < local_epsilon_for(index, 0.5, 60000, 1e-6)


@pytest.mark.parametrize("central", [0.0, -1.0, float("nan")])
def test_refusals(central):
    with pytest.raises(ValueError, match="central"):
        local_epsilon_for(index, central, 100, 1e-6)
