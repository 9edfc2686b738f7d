"""What a ledger allows, what it refuses, and that its sums are exact."""

import json
import math
from decimal import Decimal
from types import SimpleNamespace

import pytest
from spending import pay, small_ledger

from sqsgd import Privacy, Task, make_scheme
from sqsgd.privacy.ledger import (
    AlreadyAnswered,
    BudgetSpent,
    Ledger,
    Ledgers,
    ReportRefused,
)


def test_a_report_is_written_down_and_found_again(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger", max_epsilon=1000.0, owner="Ann")
    entry = pay(ledger, 7, 400.5, task="digits é", purpose="a first try")
    assert (entry.line, entry.epsilon, entry.task, entry.round) == (2, 400.5, "digits é", 7)
    again = Ledger(str(tmp_path / "ledger"))
    assert again.entries == ledger.entries == (entry,)
    assert (again.owner, again.spent, again.left, again.max_epsilon) == ("Ann", 400.5, 599.5, 1000.0)
    assert again.interrupted == ""
    assert again.witness is None
    assert (tmp_path / "ledger").stat().st_mode & 0o077 == 0
    for line in (tmp_path / "ledger").read_text().splitlines():
        assert json.loads(line)["digest"]


def test_the_cap_compares_exactly(tmp_path):
    """0.1 + 0.2 > 0.3 as the floats that they are, by 2.8e-17; 0.1 + 0.1 = 0.2."""
    ledger = Ledger.create(tmp_path / "a", max_epsilon=0.3)
    pay(ledger, 0, 0.1)
    with pytest.raises(BudgetSpent):
        pay(ledger, 1, 0.2)
    ledger = Ledger.create(tmp_path / "b", max_epsilon=0.2)
    pay(ledger, 0, 0.1)
    pay(ledger, 1, 0.1)
    assert ledger.left == 0
    with pytest.raises(BudgetSpent):
        pay(ledger, 2, 5e-324)
    ledger = Ledger.create(tmp_path / "c", max_epsilon=2.0**60)
    pay(ledger, 0, 1.0)  # a sum of floats would not move from here on
    with pytest.raises(BudgetSpent):
        pay(ledger, 1, 2.0**60)


def test_a_round_is_answered_once(tmp_path):
    ledger = small_ledger(tmp_path, reports=2)
    for each in (ledger, Ledger(ledger.path)):
        with pytest.raises(AlreadyAnswered, match="round 1 of the task 'digits' was answered before"):
            pay(each, 1, 0.5, scheme="another")
    pay(ledger, 1, task="faces")
    assert ledger.spent == 3
    assert issubclass(AlreadyAnswered, ReportRefused)


@pytest.mark.parametrize(
    "epsilon",
    [math.nan, math.inf, 0.0, -1.0, "1", None, True, 10**400, Decimal(1)],
)
def test_epsilons_that_are_none(tmp_path, epsilon):
    ledger = small_ledger(tmp_path)
    before = ledger.path.read_bytes()
    with pytest.raises(ValueError, match="epsilon = "):
        pay(ledger, 9, epsilon)
    with pytest.raises(ValueError, match="max_epsilon = "):
        Ledger.create(tmp_path / "new", max_epsilon=epsilon)
    assert ledger.path.read_bytes() == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("notion", ["central", "per-coordinate", "none", "", None])
def test_only_local_epsilons_count(tmp_path, notion):
    with pytest.raises(ValueError, match="notion = "):
        pay(small_ledger(tmp_path), 9, notion=notion)


@pytest.mark.parametrize(
    "wrong", [{"task": ""}, {"task": "a\nb"}, {"scheme": "\x1b[2J"}, {"purpose": "x" * 201}, {"round": -1}]
)
def test_words_are_printable_and_short(tmp_path, wrong):
    ledger = small_ledger(tmp_path)
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} = "):
        pay(ledger, **{"round": 9, **wrong})
    entry = pay(ledger, 9, task="\U0001f600" * 200, scheme="\U0001f600" * 200, purpose="\U0001f600" * 200)
    assert Ledger(ledger.path).entries[-1] == entry


def test_spending_for_a_scheme(tmp_path):
    ledger = small_ledger(tmp_path, reports=0)
    task = Task(round=5, client=3, seed=77, dim=50, bound=1.0)
    scheme = make_scheme("sqsgd", dim=50, epsilon=30.0, bytes=8)
    entry = ledger.spend_for(scheme, task)
    assert (entry.task, entry.round, entry.epsilon) == ("seed 77", 5, scheme.privacy.epsilon)
    assert entry.scheme == f"sqsgd {scheme.fingerprint:08x}"
    with pytest.raises(AlreadyAnswered):
        ledger.spend_for(scheme, task)
    assert ledger.spend_for(scheme, task, name="other", purpose="audit").purpose == "audit"
    with pytest.raises(ValueError, match="notion = 'none'"):
        ledger.spend_for(make_scheme("fedsgd", dim=50, epsilon=30.0, bytes=8), task, name="third")
    with pytest.raises(ValueError, match="delta = 1e-05"):
        ledger.spend_for(SimpleNamespace(privacy=Privacy(epsilon=1.0, notion="local", delta=1e-5)), task)


def test_the_cap_is_lowered_and_never_raised(tmp_path):
    ledger = small_ledger(tmp_path, reports=3, cap=10.0)
    with pytest.raises(ValueError, match="cannot be raised"):
        ledger.lower_cap(11.0)
    ledger.lower_cap(4.0)
    assert (ledger.max_epsilon, ledger.left) == (4.0, 1)
    with pytest.raises(ValueError, match="cannot be raised"):
        Ledger(ledger.path).lower_cap(math.nextafter(4.0, 5.0))
    with pytest.raises(BudgetSpent):
        pay(ledger, 9, 2.0)
    pay(ledger, 9)
    ledger.lower_cap(0)
    again = Ledger(ledger.path)
    assert (again.max_epsilon, again.left, again.spent) == (0.0, 0, 4)
    with pytest.raises(FileExistsError):
        Ledger.create(ledger.path, max_epsilon=99.0)


def test_the_owner_adds_to_the_cap(tmp_path):
    ledger = small_ledger(tmp_path, reports=3, cap=3.0)
    with pytest.raises(BudgetSpent):
        pay(ledger, 3)
    ledger.top_up(1.5)
    assert (ledger.max_epsilon, ledger.left) == (4.5, 1.5)
    pay(Ledger(ledger.path), 3)
    with pytest.raises(BudgetSpent, match=r"0\.5 is left"):
        pay(ledger, 4)
    for wrong in (0.0, -1.0, math.inf, math.nan, "many"):
        with pytest.raises(ValueError, match="epsilon"):
            ledger.top_up(wrong)
    assert Ledger(ledger.path).max_epsilon == 4.5


def test_a_lower_cap_for_one_report(tmp_path):
    ledger = small_ledger(tmp_path, reports=1, cap=3.0)
    with pytest.raises(BudgetSpent, match=r"the cap of 1\.5 is spent"):
        pay(ledger, 1, at_most=1.5)
    pay(ledger, 1, at_most=2.0)
    assert (ledger.spent, ledger.max_epsilon) == (2, 3.0)


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        Ledger(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        Ledger.create(tmp_path / "none" / "ledger", max_epsilon=1.0)
    with pytest.raises(ValueError, match="another file"):
        Ledger.create(tmp_path / "l", max_epsilon=1.0, witness=tmp_path / "l.tip")


def test_real_arithmetic_is_paid_for_only_by_name(tmp_path):
    """ε in real arithmetic is not what the ledger certifies."""
    ledger = Ledger.create(tmp_path / "ledger", max_epsilon=100.0)
    scheme = make_scheme("privunit", dim=50, epsilon=30.0, bytes=8)
    task = Task(round=3, client=0, seed=9, dim=50, bound=1.0)
    with pytest.raises(ValueError, match=r"arithmetic = 'real': .*allow_real=True"):
        ledger.spend_for(scheme, task)
    with pytest.raises(ValueError, match="arithmetic = 'real'"):
        ledger.spend(1.0, notion="local", task="t", round=0, scheme="privunit", arithmetic="real")
    assert ledger.spent == 0
    assert ledger.spend_for(scheme, task, allow_real=True).epsilon == scheme.privacy.epsilon


def test_a_simulated_client_refuses_in_any_later_run(tmp_path):
    """Each client has its own ledger, whatever number the task has; it outlives the run."""
    scheme = make_scheme("sqsgd-stateless", dim=40, epsilon=8.0, bytes=2)
    first, second = (Task(round=r, client=1, seed=9, dim=40, bound=1.0) for r in (0, 1))
    ledgers = Ledgers(folder=tmp_path, max_epsilon=8.0)
    assert [ledgers.paid(scheme, first, client) for client in (0, 5, 5)] == [True, True, False]
    assert not Ledgers(folder=tmp_path, max_epsilon=8.0).paid(scheme, second, 5)
    assert float(Ledger(tmp_path / "000000" / "client-5").spent) == scheme.privacy.epsilon
    real = make_scheme("privunit", dim=40, epsilon=8.0, bytes=8)
    with pytest.raises(ValueError, match="real arithmetic"):
        ledgers.paid(real, first, 6)
    assert Ledgers(folder=tmp_path, max_epsilon=8.0, allow_real=True).paid(real, first, 6)
