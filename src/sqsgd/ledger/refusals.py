"""The ledger's reasons for refusing a report."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from sqsgd.numerics.epsilon_sums import rounded_down, rounded_up


class ReportRefused(Exception):
    """The ledger does not allow the report: nothing was spent, and nothing may be sent."""


class BudgetSpent(ReportRefused):
    """The report would cost more than is left."""

    def __init__(self, *, path: Path, asked: Fraction, spent: Fraction, cap: Fraction) -> None:
        self.asked, self.spent, self.cap = asked, spent, cap
        left = max(Fraction(0), cap - spent)
        super().__init__(
            f"the report was not sent: it would cost epsilon {rounded_up(asked)!r}, but "
            f"{rounded_up(spent)!r} of the cap of {rounded_down(cap)!r} is spent, and "
            f"{rounded_down(left)!r} is left ({path})"
        )


class AlreadyAnswered(ReportRefused):
    """This round of this task was answered before."""

    def __init__(self, *, path: Path, task: str, round: int) -> None:
        self.task, self.round = task, round
        super().__init__(
            f"the report was not sent: round {round} of the task {task!r} was answered before ({path})"
        )


class LedgerDamaged(ReportRefused, ValueError):
    """The amount spent is not known for certain, so no more may be spent."""


class LedgerRolledBack(LedgerDamaged):
    """The ledger or one of its tips is older than it should be."""
