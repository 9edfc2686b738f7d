"""A client's durable record of the epsilon that it has spent, with a cap that no server can raise.

Pure epsilons are summed as exact fractions: basic composition, which is tight for them. A cap per record is a
ρ, also summed exactly, or an ε for a δ: the tight profile of Gaussian noise; pure reports count too.
"""

from __future__ import annotations

import math
import os
import secrets
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from sqsgd._internal import checks
from sqsgd._internal.exact import cost, from_units, rounded_down, rounded_up, to_units
from sqsgd.mechanisms.gaussian_account import spent
from sqsgd.privacy.ledger_files import (
    FORMAT,
    Entry,
    Fields,
    History,
    LedgerDamaged,
    LedgerFiles,
    LedgerRolledBack,
    ReportRefused,
    create_files,
    tip_path,
)

if TYPE_CHECKING:
    from sqsgd.core import Scheme
    from sqsgd.core.task import Task

__all__ = [
    "AlreadyAnswered",
    "BudgetSpent",
    "Entry",
    "Ledger",
    "LedgerDamaged",
    "LedgerRolledBack",
    "Ledgers",
    "ReportRefused",
    "tip_path",
]


class BudgetSpent(ReportRefused):
    """The report would cost more than is left."""

    def __init__(
        self, path: Path, asked: Fraction, spent: Fraction, cap: Fraction, unit: str = "epsilon"
    ) -> None:
        left = max(Fraction(0), cap - spent)
        super().__init__(
            f"the report was not sent: it would cost {unit} {rounded_up(asked)!r}, but "
            f"{rounded_up(spent)!r} of the cap of {rounded_down(cap)!r} is spent, and "
            f"{rounded_down(left)!r} is left ({path})"
        )


class AlreadyAnswered(ReportRefused):
    """This round of this task was answered before."""


@final
class Ledger:
    """The privacy budget of one client. ``Ledger.create`` creates a ledger and ``Ledger(path)`` opens it.

    Processes and threads can share a ledger, since each call sees the changes of the others.

    Guarantees
    ----------
    * ``spend`` returns after its line and its tip are on disk. After a crash at any point, the ledger opens
      and counts every report that left; a failed write spends nothing. tests/privacy/test_ledger_crashes.py
    * The cap is never exceeded, even by concurrent spends. tests/privacy/test_ledger_together.py
      Only ``top_up`` raises it: tests/privacy/test_ledger_account.py::test_the_owner_adds_to_the_cap.
    * A changed bit, a truncation, a missing line or an older copy of either file is found, except for a tip
      that is one line older, as a crash leaves it. tests/privacy/test_ledger_damage.py
    * An epsilon that holds in real arithmetic only is an error unless it is named.
      tests/privacy/test_ledger_account.py::test_real_arithmetic_is_paid_for_only_by_name

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.create(Path(folder.name) / "ledger", max_epsilon=1000.0)
    >>> ledger.spend(400.0, notion="local", task="digits", round=0, scheme="sqsgd").line
    2
    >>> float(ledger.spent), float(ledger.left)
    (400.0, 600.0)
    >>> ledger.spend(400.0, notion="local", task="digits", round=0, scheme="sqsgd")
    Traceback (most recent call last):
    sqsgd.privacy.ledger.AlreadyAnswered: ...
    >>> folder.cleanup()
    """

    def __init__(self, path: Path | str, *, witness: Path | str | None = None) -> None:
        """Open a ledger and verify all of it.

        Args:
            path: The ledger's file.
            witness: The second tip's path, if it was moved.

        Raises:
            FileNotFoundError: The ledger does not exist.
            LedgerDamaged: If a line or a tip is damaged, missing or older than it should be.
        """
        self.path = Path(path).resolve()
        self._witness = None if witness is None else Path(witness).resolve()
        self._files = LedgerFiles(self.path, self._witness)
        self._read()

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        max_epsilon: float | None = None,
        delta: float | None = None,
        max_rho: float | None = None,
        owner: str = "",
        witness: Path | str | None = None,
    ) -> Ledger:
        """Create a new ledger. It never replaces an existing or a lost ledger.

        Args:
            path: The ledger's file, in an existing folder.
            max_epsilon: The cap of the total that is ever spent.
            delta: The cap is per record: all reports together are (max_epsilon, delta)-private for each.
            max_rho: The cap per record as a ρ, in place of the other two.
            owner: The name of the owner (informational).
            witness: The path of a second tip, preferably on another disk.

        Raises:
            FileExistsError: If the ledger already exists.
            LedgerRolledBack: If a tip shows that a ledger with reports existed before.
        """
        path = Path(path).resolve()
        other = None if witness is None else Path(witness).resolve()
        if other in (path, tip_path(path)):
            raise ValueError(f"witness = {str(other)!r} must be another file, preferably on another disk")
        if (max_epsilon is None) == (max_rho is None) or (max_rho is not None and delta is not None):
            raise ValueError(
                f"max_epsilon = {max_epsilon!r}, delta = {delta!r}, max_rho = {max_rho!r}: a ledger "
                "needs a cap, which is max_epsilon, max_epsilon with delta, or max_rho"
            )
        cap = "max_epsilon" if max_rho is None else "max_rho"
        heading: Fields = {
            "kind": "heading",
            "line": 1,
            "format": FORMAT,
            "ledger": secrets.token_hex(16),
            "path": str(path),
            "owner": _text("owner", owner, least=0),
            "max_epsilon": checks.positive(cap, max_rho or max_epsilon),
            "witness": None if other is None else str(other),
            "time": _now(),
        }
        if max_rho is not None or delta is not None:
            heading["delta"] = 0.0 if delta is None else checks.real("delta", delta, 1e-30, 0.1)
        create_files(path, heading)
        return cls(path)

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    @property
    def owner(self) -> str:
        """Whose ledger it is; informational."""
        return str(self._read().heading["owner"])

    @property
    def witness(self) -> Path | None:
        """The second tip."""
        kept = self._read().heading["witness"]
        return self._witness or (None if kept is None else Path(kept))

    @property
    def unit(self) -> str:
        """The unit of the cap: ``epsilon``, or per record ``rho`` or ``epsilon at delta = ...``."""
        return _unit(self._read())

    @property
    def delta(self) -> float | None:
        """δ of a cap per record, 0 where it is a ρ; None: the cap is of pure epsilons."""
        return self._read().delta

    @property
    def max_epsilon(self) -> float:
        """The cap, in its ``unit``."""
        return rounded_down(self._read().cap)

    @property
    def spent(self) -> Fraction:
        """The epsilon spent, exactly; of a cap at a δ rounded up."""
        return self._read().spent

    @property
    def left(self) -> Fraction:
        """The epsilon that may still be spent, exactly."""
        history = self._read()
        return max(Fraction(0), history.cap - history.spent)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every report paid for."""
        return tuple(self._read().entries)

    @property
    def interrupted(self) -> str:
        """A description of what the next spend will repair after a crash; empty by default."""
        return self._files.interrupted()

    def spend(
        self,
        epsilon: float,
        *,
        notion: str,
        task: str,
        round: int,
        scheme: str,
        purpose: str = "training",
        arithmetic: str = "exact",
        allow_real: bool = False,
        at_most: float = math.inf,
        rho: Fraction | None = None,
        rate: float = 1.0,
        turn: int = -1,
    ) -> Entry:
        """Pay for one report. Call it before sending the report. If it raises, do not send the report.

        Each round of a task can be paid for once, even if its report was lost in a crash.

        Args:
            epsilon: The cost of the report.
            notion: The notion of ``Privacy``: "local", or "record" if the cap is per record.
            task: The name of the training.
            round: The task's round.
            scheme: The scheme, informational; so is ``purpose``.
            arithmetic: As in ``Privacy``; "real" is an error unless ``allow_real`` is true.
            at_most: A lower cap, for this report alone.
            rho: Per record: its ρ, exactly; ``epsilon`` is then of this report alone and informational.
            rate: Per record: the chance that the report uses a record, drawn in secret.
            turn: Per record: reports of a task in the same turn use disjoint records; the first one pays.

        Returns:
            The entry, which is on disk.

        Raises:
            BudgetSpent: If the cap would be exceeded.
            AlreadyAnswered: If the round was paid for before.
            LedgerDamaged: If the spent amount cannot be determined.
            OSError: If the disk fails. In this case, either nothing is spent or the line counts.
        """
        if notion not in ("local", "record"):
            raise ValueError(f"notion = {notion!r}: the ledger adds up 'local' epsilons, and 'record' ones")
        if (notion == "record") != (rho is not None):
            raise ValueError(
                f"notion = {notion!r}, rho = {rho!r}: a report per record, and no other, has a rho"
            )
        if arithmetic != "exact" and not allow_real:
            raise ValueError(
                f"arithmetic = {arithmetic!r}: the epsilon of {scheme!r} holds in real arithmetic only, and "
                "its reports are drawn with floats; choose a scheme with exact arithmetic, or pass "
                "allow_real=True"
            )
        fields: Fields = {
            "kind": "spend",
            "epsilon": cost("epsilon", epsilon),
            "task": _text("task", task),
            "round": checks.integer("round", round, 0, 2**63 - 1),
            "scheme": _text("scheme", scheme),
            "purpose": _text("purpose", purpose),
            "time": _now(),
        }
        if rho is not None:
            checks.real("rate", rate, 1e-9, 1.0)
            fields |= {
                "rho": str(Fraction(rho)),
                "rate": float(rate),
                "turn": checks.integer("turn", turn, -1, 2**63),
            }
        entry = Entry(line=0, **{name: value for name, value in fields.items() if name != "kind"})
        lower = checks.positive("at_most", min(at_most, sys.float_info.max))
        with self._files.current(os.O_RDWR) as (descriptor, history):
            if (fields["task"], fields["round"]) in history.answered:
                raise AlreadyAnswered(
                    f"the report was not sent: round {round} of the task {task!r} was answered before "
                    f"({self.path})"
                )
            if rho is not None and history.delta is None:
                raise ValueError(
                    f"notion = 'record': the cap of {self.path} is of pure epsilons; create a ledger with "
                    "max_epsilon and delta, or with max_rho"
                )
            after, cap = history.after(entry), from_units(min(history.cap_units, to_units(lower)))
            if after > cap:
                before = history.spent
                raise BudgetSpent(self.path, after - before, before, cap, _unit(history))
            self._files.append(descriptor, history, fields)
            return history.entries[-1]

    def spend_for(
        self,
        scheme: Scheme,
        task: Task,
        *,
        name: str = "",
        purpose: str = "training",
        allow_real: bool = False,
        at_most: float = math.inf,
    ) -> Entry:
        """Pay for ``scheme.encode(x, task, rng)`` before sending the message.

        Args:
            scheme: The scheme of the report; its ``privacy`` is the cost.
            task: The task, which names the round.
            name: The name of the training. By default, it is the seed of the task.
            purpose: Informational.
            allow_real: Accept a guarantee that holds in real arithmetic only.
            at_most: A lower cap, for this report alone.

        Returns:
            The entry, which is on disk.

        Raises:
            ReportRefused, LedgerDamaged, OSError: As in ``spend``.
        """
        privacy, record = scheme.privacy, dict[str, Any]()
        if privacy.notion == "record":
            turn = task.round // privacy.turns if privacy.turns > 1 else -1
            record = {"rho": privacy.rho, "rate": privacy.rate, "turn": turn}
        elif scheme.privacy.delta:
            raise ValueError(
                f"scheme.privacy.delta = {scheme.privacy.delta!r}: the ledger adds up pure epsilons"
            )
        return self.spend(
            spent(privacy, 1),
            notion=scheme.privacy.notion,
            task=name or f"seed {task.seed}",
            round=task.round,
            scheme=f"{scheme.name} {scheme.fingerprint:08x}",
            purpose=purpose,
            arithmetic=scheme.privacy.arithmetic,
            allow_real=allow_real,
            **record,
            at_most=at_most,
        )

    def lower_cap(self, max_epsilon: float) -> None:
        """Lower the cap permanently.

        Args:
            max_epsilon: The new cap; 0 closes the ledger.
        """
        lower = 0.0 if max_epsilon == 0 else checks.positive("max_epsilon", max_epsilon)
        with self._files.current(os.O_RDWR) as (descriptor, history):
            if to_units(lower) > history.cap_units:
                raise ValueError(
                    f"max_epsilon = {max_epsilon!r} is above the cap of {rounded_down(history.cap)!r}, "
                    "which cannot be raised"
                )
            self._files.append(descriptor, history, {"kind": "cap", "max_epsilon": lower, "time": _now()})

    def top_up(self, epsilon: float) -> None:
        """Increase the cap. This is up to the owner, and code that answers a server never calls it.

        Args:
            epsilon: The amount to add to the cap.
        """
        more = checks.real("epsilon", epsilon, 1e-9, 1e12)
        with self._files.current(os.O_RDWR) as (descriptor, history):
            self._files.append(descriptor, history, {"kind": "top-up", "epsilon": more, "time": _now()})

    def _read(self) -> History:
        with self._files.current(os.O_RDONLY) as (_, history):
            return history


def _unit(history: History) -> str:
    if history.delta is None:
        return "epsilon"
    return f"epsilon at delta = {history.delta:g}" if history.delta else "rho"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _text(name: str, value: object, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= 200 or not value.isprintable():
        raise ValueError(f"{name} = {value!r} must be {least} to 200 printable characters")
    return value


@dataclass(frozen=True, kw_only=True)
class Ledgers:
    """One ledger per client, created with the cap ``max_epsilon`` when the client is first asked.

    A spent ledger refuses in later runs with the same folder too:
    tests/privacy/test_ledger_account.py::test_a_simulated_client_refuses_in_any_later_run.
    """

    folder: Path
    max_epsilon: float
    delta: float | None = None  # a cap per record
    allow_real: bool = False  # also pay for schemes whose ε holds in real arithmetic only

    def paid(self, scheme: Scheme, task: Task, client: int, *, name: str = "") -> bool:
        """Pay for a client's report; False if its ledger refuses. A damaged ledger raises LedgerDamaged."""
        path = self._path(client)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Ledger.create(path, max_epsilon=self.max_epsilon, delta=self.delta, owner=f"client {client}")
        try:
            Ledger(path).spend_for(scheme, task, name=name, allow_real=self.allow_real)
        except (AlreadyAnswered, BudgetSpent):
            return False
        return True

    def check(self, clients: int) -> None:
        """Raise ValueError if what a client's existing ledger has left does not cover ``max_epsilon``.

        tests/training/test_several_reports.py::test_a_ledger_that_covers_some_reports_pays_for_none.
        """
        for path in filter(Path.exists, map(self._path, range(clients))):
            if (left := Ledger(path).left) < Fraction(self.max_epsilon):
                raise ValueError(
                    f"the reports of a client cost epsilon {self.max_epsilon!r} in all, and its ledger has "
                    f"{rounded_down(left)!r} left ({path}): nothing was paid"
                )

    def _path(self, client: int) -> Path:
        return self.folder / f"{client // 1000:06d}" / f"client-{client}"
