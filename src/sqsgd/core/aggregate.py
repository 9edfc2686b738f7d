"""The server's running mean of reports."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd.core.codec import Bytes, Columns
from sqsgd.core.scheme import Scheme
from sqsgd.core.task import Task, Tasks, in_order, parts_of
from sqsgd.core.transforms import Estimate, Vectors

Weights = npt.NDArray[np.float64]
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
        total, recent = self._sums(task)
        own, stages = scheme._own, len(scheme.transforms)
        if own == stages:
            scheme.mechanism.add_estimate(columns, task.bound, weight, recent)
            if self.count % _WIDEN == _WIDEN - 1:
                self._widen()
        else:
            y = scheme.mechanism.estimate(columns, task.bound)
            y = scheme._undo(y if weight == 1 else weight * y, task, own + 1, stages)
            scheme.transforms[own].add_inverse(y, task, total)
        self._weight += weight
        self.count += 1

    def add_many(
        self, tasks: Tasks, messages: Bytes, weights: Weights | None = None, *, workers: int = 1
    ) -> Columns:
        """Add many reports, one row each, as ``add`` of each row in order does; returns their columns.

        The sum is the same to the last bit. A malformed report is named, and then none of them is added.
        tests/core/test_batches.py::test_many_reports_are_added_as_single_ones,
        ::test_a_malformed_report_is_named_and_none_is_added.
        """
        if not len(tasks):
            raise ValueError("there are no reports to add")
        weights = np.ones(len(tasks)) if weights is None else np.asarray(weights, np.float64)
        if len(messages) != len(tasks) or weights.shape != (len(tasks),):
            raise ValueError(f"{len(tasks)} tasks, {len(messages)} messages and {weights.shape} weights")
        for weight in (weights.min(), weights.max()):
            checks.real("weight", float(weight), 1e-9, 1e9)

        def opened(part: slice, asked: Tasks) -> Columns:
            return self.scheme.open_many(messages[part], asked)

        found = zip(*in_order(opened, parts_of(tasks), workers), strict=True)
        columns = tuple(np.concatenate(parts) for parts in found)
        total, _ = self._sums(tasks.task)
        if not self._add_rows(tasks, columns, weights, total, workers):
            for i, task in enumerate(tasks):
                self.add_columns(task, tuple(column[i] for column in columns), float(weights[i]))
        return columns

    def _add_rows(
        self, tasks: Tasks, columns: Columns, weights: Weights, total: Estimate, workers: int
    ) -> bool:
        """Add opened reports by kernels, where mechanism and transform offer them; False where not."""
        from sqsgd._internal.kernels.rotation import add_rows

        scheme = self.scheme
        if scheme._own != len(scheme.transforms) - 1:
            return False

        def inverted(part: slice, asked: Tasks) -> tuple[Vectors, Estimate] | None:
            found = scheme.mechanism.unit_codes(tuple(c[part] for c in columns), asked.task.bound)
            if found is None:
                return None
            undone = scheme.transforms[-1].inverse_codes(found[0], asked, total.size)
            return None if undone is None else (undone, found[1] * weights[part])

        for rows in in_order(inverted, parts_of(tasks), workers):
            if rows is None:
                return False
            add_rows(*rows, total)
        self._weight = float(np.cumsum([self._weight, *weights])[-1])  # one after the other, as in add
        self.count += len(tasks)
        return True

    def _sums(self, task: Task) -> tuple[Estimate, Vector]:
        """The sum so far, and the float32 sum that is added to it from time to time."""
        scheme = self.scheme
        scheme._check(task)
        if self._task is not None and (task.round, task.seed) != (self._task.round, self._task.seed):
            raise ValueError(
                f"a report of round {task.round} and seed {task.seed} cannot be added to an aggregate of "
                f"round {self._task.round} and seed {self._task.seed}"
            )
        if self._total is None or self._recent is None:
            self._total, self._task = np.zeros(scheme._dims[scheme._own]), task
            self._recent = np.zeros(scheme._dims[scheme._own], np.float32)
        return self._total, self._recent

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
