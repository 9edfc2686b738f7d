"""Why a report must not leave: words that never promise more than there is."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

from sqsgd.privacy.ledger import (
    AlreadyAnswered,
    BudgetSpent,
    LedgerDamaged,
    LedgerRolledBack,
    ReportRefused,
)


@pytest.mark.parametrize(
    ("asked", "spent", "cap"),
    [
        (Fraction(1, 3), Fraction(2, 3), Fraction(7, 9)),
        (Fraction(0.1), Fraction(0.1) + Fraction(0.2), Fraction(0.3)),
        (Fraction(5e-324), Fraction(10), Fraction(10)),
        (Fraction(400), Fraction(800), Fraction(1000)),
    ],
)
def test_the_numbers_that_are_shown_err_on_the_safe_side(asked, spent, cap):
    """What it would cost and what is spent are rounded up, the cap and what is left down."""
    refusal = BudgetSpent(path=Path("ledger"), asked=asked, spent=spent, cap=cap)
    assert (refusal.asked, refusal.spent, refusal.cap) == (asked, spent, cap)
    words = re.fullmatch(
        r"the report was not sent: it would cost epsilon (\S+), but (\S+) of the cap of (\S+) is spent, "
        r"and (\S+) is left \(ledger\)",
        str(refusal),
    )
    told_asked, told_spent, told_cap, told_left = (Fraction(float(word)) for word in words.groups())
    left = max(Fraction(0), cap - spent)
    assert asked <= told_asked <= asked * (1 + Fraction(1, 2**52))
    assert spent <= told_spent <= spent * (1 + Fraction(1, 2**52))
    assert cap * (1 - Fraction(1, 2**52)) <= told_cap <= cap
    assert left * (1 - Fraction(1, 2**52)) <= told_left <= left
    assert "-0.0" not in str(refusal)


def test_every_one_is_a_reason_not_to_send():
    """Who catches ReportRefused sends nothing, whatever the reason; damage is a wrong value to a CLI too."""
    answered = AlreadyAnswered(path=Path("ledger"), task="digits", round=3)
    assert (answered.task, answered.round) == ("digits", 3)
    assert "round 3 of the task 'digits'" in str(answered)
    for kind in (BudgetSpent, AlreadyAnswered, LedgerDamaged, LedgerRolledBack):
        assert issubclass(kind, ReportRefused)
    assert issubclass(LedgerRolledBack, LedgerDamaged)
    assert issubclass(LedgerDamaged, ValueError)
    assert not issubclass(BudgetSpent, ValueError)
