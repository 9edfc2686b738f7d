"""A cap per record: ρ exactly, or ε at a δ, beside pure reports; what one cannot pay for is refused."""

import math
import sys
from fractions import Fraction

import pytest

from sqsgd import Ledger, make_scheme
from sqsgd.core.task import Task
from sqsgd.mechanisms.gaussian_account import (
    Uses,
    concentrated_epsilon,
    epsilon_of,
    gaussian_epsilon,
    pure_rho,
)
from sqsgd.privacy.ledger import AlreadyAnswered, BudgetSpent, LedgerDamaged


def pay(ledger, round, rho=Fraction(1, 300), **more):
    about = {"task": "digits", "scheme": "sqsgd-record", "notion": "record", **more}
    return ledger.spend(0.3, round=round, rho=rho, **about)


def pure(ledger, round, epsilon=0.5):
    return ledger.spend(epsilon, notion="local", task="count", round=round, scheme="sqsgd")


def test_rho_is_paid_exactly(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", max_rho=0.01)
    for round in range(2):
        pay(ledger, round)
    assert ledger.spent == Fraction(2, 300)
    assert ledger.unit == "rho"
    with pytest.raises(BudgetSpent, match=r"it would cost rho 0\.00333"):  # 0.01 as a float is below 3 / 300
        pay(ledger, 2, Fraction(1, 300) + Fraction(1, 10**12))
    assert Ledger(tmp_path / "ledger").spent == Fraction(2, 300)
    assert [entry.rho for entry in ledger.entries] == ["1/300", "1/300"]


def test_pure_reports_count_by_their_zcdp(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", max_rho=1.0)
    pure(ledger, 0, 0.5)
    assert ledger.spent == pure_rho(0.5)
    assert float(ledger.spent) == pytest.approx(0.5 * math.tanh(0.25))
    pay(ledger, 0)
    assert ledger.spent == pure_rho(0.5) + Fraction(1, 300)


def test_epsilon_at_delta_is_the_tight_profile_beside_pure_reports(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", max_epsilon=1.0, delta=1e-5)
    for round in range(5):
        pay(ledger, round)
    rho = Fraction(5, 300)
    assert float(ledger.spent) == gaussian_epsilon(rho, 1e-5)
    pure(ledger, 0, 0.1)
    both = min(gaussian_epsilon(rho, 1e-5) + 0.1, concentrated_epsilon(rho + pure_rho(0.1), 1e-5))
    assert float(ledger.spent) == pytest.approx(both)
    before = ledger.spent
    with pytest.raises(BudgetSpent, match="epsilon at delta = 1e-05"):
        pure(ledger, 1, 0.9)
    assert Ledger(tmp_path / "ledger").spent == before


def test_sampled_reports_cost_less_unless_nobody_can_compute_it(tmp_path, monkeypatch):
    pytest.importorskip("dp_accounting", reason="needs pip install 'sqsgd[train]'")
    ledger = Ledger.create(tmp_path / "ledger", max_epsilon=1.0, delta=1e-5)
    for round in range(3):
        pay(ledger, round, Fraction(1, 20), rate=0.1)
    uses = [Uses(rho=Fraction(1, 20), count=3, rate=0.1)]
    assert float(ledger.spent) == epsilon_of(uses, 1e-5) < gaussian_epsilon(Fraction(3, 20), 1e-5) / 4
    for name in [name for name in sys.modules if name.startswith("dp_accounting")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    from sqsgd.mechanisms import gaussian_account

    gaussian_account._sampled_epsilon.cache_clear()
    gaussian_account._losses.cache_clear()
    assert float(ledger.spent) == gaussian_epsilon(Fraction(3, 20), 1e-5)
    with pytest.raises(BudgetSpent):
        pay(ledger, 3, Fraction(1, 20), rate=0.1)


def test_disjoint_batches_of_a_turn_are_paid_once(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", max_rho=1.0)
    scheme = make_scheme("sqsgd-record", dim=8, epsilon=1.0, reports=10, batching="disjoint", rate=0.2)
    for round in range(10):
        ledger.spend_for(scheme, Task(round=round, client=0, seed=1, dim=8, bound=1.0))
    assert ledger.spent == 2 * scheme.privacy.rho
    pay(ledger, 0, turn=0)  # of another task
    assert ledger.spent == 2 * scheme.privacy.rho + Fraction(1, 300)


def test_a_whole_run_fits_into_its_own_cap(tmp_path):
    """All rounds of a run for (1, 1e-5), and no further one."""
    for batching, rate in (("poisson", 1.0), ("disjoint", 0.5)):
        ledger = Ledger.create(tmp_path / batching, max_epsilon=1.0, delta=1e-5)
        scheme = make_scheme("sqsgd-record", dim=8, epsilon=1.0, reports=6, batching=batching, rate=rate)
        for round in range(6):
            ledger.spend_for(scheme, Task(round=round, client=0, seed=1, dim=8, bound=1.0))
        with pytest.raises(BudgetSpent):
            ledger.spend_for(scheme, Task(round=6, client=0, seed=1, dim=8, bound=1.0))


def test_what_a_ledger_refuses(tmp_path):
    plain = Ledger.create(tmp_path / "plain", max_epsilon=1.0)
    with pytest.raises(ValueError, match=r"the cap of .* is of pure epsilons"):
        pay(plain, 0)
    for caps in ({}, {"max_epsilon": 1.0, "max_rho": 1.0}, {"max_rho": 1.0, "delta": 1e-5}):
        with pytest.raises(ValueError, match="a ledger needs a cap"):
            Ledger.create(tmp_path / "none", **caps)
    record = Ledger.create(tmp_path / "record", max_rho=1.0)
    with pytest.raises(ValueError, match="a report per record, and no other, has a rho"):
        record.spend(0.3, notion="record", task="digits", round=0, scheme="sqsgd-record")
    pay(record, 0)
    with pytest.raises(AlreadyAnswered):
        pay(record, 0)
    assert record.spent == Fraction(1, 300)


def test_a_changed_rho_is_found(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", max_rho=1.0)
    pay(ledger, 0)
    path = tmp_path / "ledger"
    path.write_bytes(path.read_bytes().replace(b"1/300", b"1/900"))
    with pytest.raises(LedgerDamaged):
        Ledger(path)
