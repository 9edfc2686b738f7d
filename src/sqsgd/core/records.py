"""The sum of records, each limited to a grid by itself: what a guarantee per record is about."""

import math
from typing import Any, final

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks

Whole = npt.NDArray[np.int64]
REACH = 1 << 22
"""L: the l2 norm of a record's whole numbers is at most L, exactly."""
MOST_RECORDS = 1 << 32  # their sum stays far below 2^63
_SOFT = 0.01  # of normalised records, as in Bu et al. 2022


@final
class RecordSum:
    """A sum of clipped vectors in integer arithmetic, with l2 sensitivity L for adding a record.

    The vector x of a record is scaled to x L' / max(C, |x|) and rounded to integers, where C is ``clip_norm``
    and L' is smaller than L = 2^22 to allow for rounding errors. Records are skipped if they contain NaN or
    infinity, or if their l2 norm exceeds L despite this margin. With ``normalise``, vectors are scaled to
    x L' / (|x| + 0.01 C) instead. All records are then weighted almost equally, and the step size hardly
    depends on C.

    Guarantees
    ----------
    * Adding or removing one record changes the total by a vector of l2 norm at most L, in exact arithmetic,
      for any floats: tests/mechanisms/test_discrete_gaussian.py::test_one_record_moves_the_sum_by_at_most_l.

    >>> total = RecordSum(2, clip_norm=1.0)
    >>> total.add(np.array([[0.6, 0.0], [0.0, 30.0], [np.nan, 0.0]], np.float32))
    >>> total.mean_of(2).round(3).tolist(), total.dropped
    ([0.3, 0.5], 1)
    """

    def __init__(
        self, dim: int, clip_norm: float, *, normalise: bool = False, seeds: tuple[int, int] | None = None
    ) -> None:
        """``seeds``: the round and the seed that a block of coordinates is drawn from; None: all of them."""
        self.dim = checks.integer("dim", dim, 1, 2**32)
        self.clip_norm = checks.real("clip_norm", clip_norm, 1e-9, 1e30)
        self.normalise, self.seeds = normalise, seeds
        self.dropped = 0
        """Records that were left out; it stays with the silo."""
        self._added, self._codes = 0, np.zeros(self.dim, np.int64)
        self.total: Whole = np.zeros(self.dim, np.int64)

    def __repr__(self) -> str:
        return f"RecordSum({self.dim}, clip_norm={self.clip_norm!r})"  # the number of records is private

    @property
    def reach(self) -> float:
        """L': what ``clip_norm`` becomes in whole numbers."""
        return reach_of(self.dim)

    def add(self, rows: npt.NDArray[Any]) -> None:
        """Add several records, given as a matrix with one floating-point vector per row."""
        from sqsgd._internal.kernels.records import add_records

        rows = checks.shaped_rows("records", rows, len(rows), self.dim)
        self._added += len(rows)
        checks.integer("the number of records", self._added, 0, MOST_RECORDS)
        soft = _SOFT * self.clip_norm if self.normalise else 0.0
        self.dropped += int(
            add_records(rows, self.clip_norm, soft, self.reach, REACH**2, self._codes, self.total)
        )

    def mean_of(self, records: float) -> npt.NDArray[np.float64]:
        """Return the sum divided by a public number of records. The result is not private."""
        return np.asarray(self.total * (self.clip_norm / self.reach / records), np.float64)


def reach_of(dim: int) -> float:
    """L' = L - √n / 2 - 1: rounding adds at most √n / 2 to the norm, and floats far less than one."""
    return REACH - math.sqrt(dim) / 2 - 1
