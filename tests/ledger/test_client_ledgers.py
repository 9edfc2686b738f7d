"""Many clients, each with a ledger of its own."""

import numpy as np
import pytest
from quadratic import Quadratic, settings

from sqsgd import Ledger, Task, make_scheme, training
from sqsgd.ledger.client_ledgers import Ledgers


class Once(Quadratic):
    """Six clients, two of them in each of three rounds."""

    clients = 6

    def cohort(self, round):
        return [2 * round, 2 * round + 1]


class Twice(Once):
    """Broken: client 0 is asked again."""

    def cohort(self, round):
        return [0, round + 1]


@pytest.fixture
def scheme():
    return make_scheme("sqsgd-stateless", dim=40, epsilon=8.0, bits=16)


def trained(problem, scheme, ledgers, rounds=3):
    chosen = settings()
    state = training.initial_state(np.zeros(40, np.float32), chosen)
    return [record for record, _ in training.run(problem, scheme, chosen, state, rounds, ledgers=ledgers)]


def test_each_report_is_paid_for_in_the_clients_own_ledger(tmp_path, scheme):
    trained(Once(), scheme, Ledgers(folder=tmp_path, max_epsilon=8.0))
    files = sorted(path for path in tmp_path.rglob("client-*") if path.suffix == "")
    assert [path.name for path in files] == [f"client-{client}" for client in range(6)]
    assert [float(Ledger(path).spent) for path in files] == [scheme.privacy.epsilon] * 6


def test_a_client_that_is_asked_again_refuses_and_the_round_goes_on(tmp_path, scheme):
    records = trained(Twice(), scheme, Ledgers(folder=tmp_path, max_epsilon=8.0))
    assert [(record.clients, record.refused) for record in records] == [(2, 0), (1, 1), (1, 1)]
    assert float(Ledger(tmp_path / "000000" / "client-0").spent) <= 8.0


def test_who_has_answered_refuses_in_any_later_run(tmp_path, scheme):
    trained(Once(), scheme, Ledgers(folder=tmp_path, max_epsilon=8.0))
    with pytest.raises(ValueError, match="round 0: all 2 clients refused"):
        trained(Once(), scheme, Ledgers(folder=tmp_path, max_epsilon=8.0))


def test_without_ledgers_the_second_report_would_have_left(scheme):
    assert [record.refused for record in trained(Twice(), scheme, None)] == [0, 0, 0]


def test_real_arithmetic_is_paid_for_only_by_name(tmp_path):
    scheme = make_scheme("privunit", dim=50, epsilon=8.0, bits=64)
    task = Task(round=0, client=1, seed=9, dim=50, bound=1.0)
    with pytest.raises(ValueError, match="real arithmetic"):
        Ledgers(folder=tmp_path, max_epsilon=8.0).paid(scheme, task, 5)
    assert Ledgers(folder=tmp_path, max_epsilon=8.0, allow_real=True).paid(scheme, task, 5)
    assert (tmp_path / "000000" / "client-5").exists()  # whatever number the task has
