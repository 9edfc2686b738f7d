"""Why a report must not leave."""

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
            f"the report was not sent: it would cost epsilon {rounded_up(asked)!r}, but of the cap of "
            f"{rounded_down(cap)!r} {rounded_up(spent)!r} is spent and {rounded_down(left)!r} left ({path})"
        )


class AlreadyAnswered(ReportRefused):
    """This round of this task has had its report."""

    def __init__(self, *, path: Path, task: str, round: int) -> None:
        self.task, self.round = task, round
        super().__init__(
            f"the report was not sent: round {round} of the task {task!r} was answered before ({path})"
        )


class LedgerDamaged(ReportRefused, ValueError):
    """What was spent cannot be told for certain, so nothing more is."""


class LedgerRolledBack(LedgerDamaged):
    """The ledger or what bears witness to it is older than it should be."""
