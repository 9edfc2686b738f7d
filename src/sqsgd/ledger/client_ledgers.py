"""The ledgers of many simulated clients, one file per client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqsgd.ledger.account import Ledger
from sqsgd.ledger.refusals import AlreadyAnswered, BudgetSpent

if TYPE_CHECKING:
    from sqsgd.core import Scheme
    from sqsgd.task import Task


@dataclass(frozen=True, kw_only=True)
class Ledgers:
    """One ledger per client, created with the cap ``max_epsilon`` when the client is first asked.

    Guarantees
    ----------
    * A client whose ledger is spent sends no report, in this run or in a later one with the same folder:
      tests/ledger/test_client_ledgers.py::test_who_has_answered_refuses_in_any_later_run.
    """

    folder: Path
    max_epsilon: float
    allow_real: bool = False
    """Also pay for schemes whose ε holds in real arithmetic only."""

    def paid(self, scheme: Scheme, task: Task, client: int) -> bool:
        """Pay for a client's report; False if its ledger refuses. A damaged ledger raises LedgerDamaged.

        ``client`` has the ledger, whatever number the task has.
        """
        path = self.folder / f"{client // 1000:06d}" / f"client-{client}"
        try:
            ledger = Ledger(path) if path.exists() else self._made(path, client)
            ledger.spend_for(scheme, task, allow_real=self.allow_real)
        except (AlreadyAnswered, BudgetSpent):
            return False
        return True

    def _made(self, path: Path, client: int) -> Ledger:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Ledger.create(path, max_epsilon=self.max_epsilon, owner=f"client {client}")
