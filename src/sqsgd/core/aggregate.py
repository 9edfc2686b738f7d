"""The server's running mean of reports."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Columns
from sqsgd.core.scheme import Scheme
from sqsgd.core.transform import Estimate
from sqsgd.task import Task

_WIDEN = 256  # reports summed in float32 before they are added to the float64 sum


@dataclass
class Aggregate:
    """A running weighted mean of reports, in memory that does not grow with their number.

    Guarantees
    ----------
    * A rejected report leaves it unchanged:
      tests/schemes/test_contract.py::test_malformed_messages_are_refused_and_change_nothing.
    * Without weights it is the mean of the decoded reports:
      tests/schemes/test_estimates.py::test_aggregate_streams_to_the_mean_of_the_decoded.

    >>> from sqsgd import make_scheme, secure_rng
    >>> scheme = make_scheme("fedsgd", dim=2)
    >>> total = Aggregate(scheme)
    >>> for client, x in enumerate([[1.0, 2.0], [3.0, 6.0]]):
    ...     task = Task(round=0, client=client, seed=1, dim=2, bound=1.0)
    ...     _ = total.add(task, scheme.encode(np.array(x), task, secure_rng()))
    >>> total.count, total.mean().tolist()
    (2, [2.0, 4.0])
    """

    scheme: Scheme
    count: int = 0
    _weight: float = 0.0
    _total: Estimate | None = field(default=None, repr=False)
    _recent: Vector | None = field(default=None, repr=False)
    _task: Task | None = field(default=None, repr=False)

    def add(self, task: Task, message: bytes, weight: float = 1.0) -> Columns:
        """Add one report; returns its columns. Raises MalformedReport, or ValueError as ``add_columns``."""
        columns = self.scheme.open(message, task)
        self.add_columns(task, columns, weight)
        return columns

    def add_columns(self, task: Task, columns: Columns, weight: float = 1.0) -> None:
        """Add one report that ``Scheme.open`` has opened. All reports must be of the same round and seed."""
        scheme, weight = self.scheme, checks.real("weight", weight, 1e-9, 1e9)
        scheme._check(task)
        if self._task is not None and (task.round, task.seed) != (self._task.round, self._task.seed):
            raise ValueError(
                f"a report of round {task.round} and seed {task.seed} cannot be added to an aggregate of "
                f"round {self._task.round} and seed {self._task.seed}"
            )
        own, stages = scheme._own, len(scheme.transforms)
        if self._total is None or self._recent is None:
            self._total, self._task = np.zeros(scheme._dims[own]), task
            self._recent = np.zeros(scheme._dims[own], np.float32)
        if own == stages:
            scheme.mechanism.add_estimate(columns, task.bound, weight, self._recent)
            if self.count % _WIDEN == _WIDEN - 1:
                self._widen()
        else:
            y = scheme.mechanism.estimate(columns, task.bound)
            y = scheme._undo(weight * y, task, own + 1, stages)
            scheme.transforms[own].add_inverse(y, task, self._total)
        self._weight += weight
        self.count += 1

    def _widen(self) -> None:
        """Add the fast float32 sum to the accurate float64 sum."""
        if self._total is not None and self._recent is not None:
            self._total += self._recent
            self._recent[:] = 0

    def mean(self) -> Estimate:
        """The mean of the reports added so far."""
        if self._total is None or self._task is None or self.count == 0:
            raise ValueError("no reports have been added: there is no mean")
        self._widen()
        return self.scheme._undo(self._total / self._weight, self._task, 0, self.scheme._own)
