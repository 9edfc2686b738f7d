"""An algorithm: gradient → transforms → mechanism → columns → bytes, and back to the mean of reports."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd._internal.geometry import clipped
from sqsgd.core import codec
from sqsgd.core.codec import Columns
from sqsgd.core.mechanism import Mechanism, Privacy
from sqsgd.core.random import Rng, check_rng, idle_rng
from sqsgd.core.records import RecordSum
from sqsgd.core.task import MOST_DIM, Task, Tasks, in_order, parts_of
from sqsgd.core.transforms import Estimate, Indices, Transform, Vectors


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Transforms and a mechanism for vectors of a given length. Use ``make_scheme`` to create a scheme.

    Guarantees
    ----------
    * ``encode`` draws private randomness only from ``rng``, public only from ``task``.
      tests/schemes/test_contract.py::test_a_seed_decides_the_message.
    * The messages of ``encode_many`` are independent, with the law of ``encode``:
      tests/core/test_batches.py::test_many_reports_have_the_law_of_single_ones.
    * ``decode`` rejects damaged messages and those for other tasks, except for the one in 2^32 random changes
      that keeps the checksum. The checksum does not protect against forgery.
      tests/core/test_codec.py::test_a_report_fits_no_other_task, ::test_no_mutated_message_is_accepted.

    >>> from sqsgd import make_scheme, secure_rng
    >>> scheme = make_scheme("sqsgd", dim=1000, epsilon=50.0, bytes=64)
    >>> task = Task(round=0, client=3, seed=7, dim=1000, bound=1.0)
    >>> message = scheme.encode(np.full(1000, 0.01, np.float32), task, secure_rng())
    >>> 8 * len(message) == scheme.bits, scheme.decode(message, task).shape
    (True, (1000,))
    """

    name: str
    dim: int
    transforms: tuple[Transform, ...]
    mechanism: Mechanism
    keeps_state: bool = False
    """Whether the client keeps state between reports, namely coordinates that have not been sent yet
    (Algorithm 2), or the values described for ``momentum`` or ``average``."""
    first_bound: float = 1.0
    """The default bound for the first round (U_0)."""
    momentum: float = 0.0
    """If not zero, the residual accumulates the velocity of the gradients (momentum correction)."""
    average: float = 0.0
    """If not zero, reports encode a running average of the gradients, where this is the weight of the
    previous average. The initial value is zero."""

    def __post_init__(self) -> None:
        checks.integer("dim", self.dim, 1, MOST_DIM)
        if self._dims[-1] != self.mechanism.dim:
            raise ValueError(
                f"the transforms give {self._dims[-1]} coordinates, the mechanism takes {self.mechanism.dim}"
            )

    @cached_property
    def _dims(self) -> tuple[int, ...]:
        """The length before each transform, and after the last."""
        dims = [self.dim]
        for transform in self.transforms:
            dims.append(transform.out_dim(dims[-1]))
        return tuple(dims)

    @cached_property
    def _own(self) -> int:
        """Transforms from this one on are inverted per report, those before it once, after the sum."""
        return next((i for i, t in enumerate(self.transforms) if not t.shared), len(self.transforms))

    @property
    def sends_block(self) -> bool:
        """A report covers a block of coordinates chosen without the vector. The client keeps the rest."""
        return self.keeps_state and not self.average and not self.mechanism.traits.chooses

    @cached_property
    def unit_bound(self) -> float:
        """A bound for unit vectors: their norm, a block's norm, or three deviations of a coordinate."""
        if self.mechanism.traits.bounds_coordinates:
            return 3.0 / math.sqrt(self.dim)
        return math.sqrt(self.mechanism.dim / self.dim) if self.sends_block else 1.0

    @cached_property
    def identity(self) -> str:
        """The scheme and its parameters as text, which is sufficient for a client in another language."""
        parts = [f"{self.name} {self.dim}", *(t.identity for t in self.transforms), self.mechanism.identity]
        return "\n".join(parts)

    @cached_property
    def fingerprint(self) -> int:
        """A 32-bit hash of ``identity``, to detect messages of other schemes."""
        digest = hashlib.blake2b(self.identity.encode(), digest_size=4, person=b"sqsgd scheme").digest()
        return int.from_bytes(digest, "little")

    @cached_property
    def bits(self) -> int:
        """The size of a message in bits, including the envelope."""
        return 8 * codec.size(self.mechanism.layout)

    @cached_property
    def code_bits(self) -> int:
        """The size of the packed codes in bits, which must fit into the budget."""
        layout = self.mechanism.layout
        return sum(column.bits for column in (layout[:-1] if self.mechanism.traits.has_symbol else layout))

    @cached_property
    def nmse(self) -> float:
        """The predicted error E|x̂ - x|² / |x|² of a report for vectors or blocks with |x| = bound."""
        return self.nmse_at(1.0)

    def nmse_at(self, share: float) -> float:
        """``nmse`` for a vector of this share of the bound."""
        error, along = self.mechanism.relative_error(share), self.mechanism.along(share)
        for i, transform in reversed(list(enumerate(self.transforms))):
            error = transform.error_before(
                error, self._dims[i], along if i == len(self.transforms) - 1 else None
            )
        return error

    @cached_property
    def symbols(self) -> int:
        """How many different codes reports consist of, if they can be counted instead of kept; else 0.

        The round decides their public randomness, and their estimates are sums of equal units.
        """
        layout, offered = self.mechanism.layout, type(self.mechanism).unit_codes is not Mechanism.unit_codes
        counted = offered and len(layout) == 1 and all(transform.shared for transform in self.transforms)
        return (layout[0].alphabet or 0) if counted else 0

    @property
    def follows_norms(self) -> bool:
        """Whether the noise of a report is relative to the vector: no fixed bound decides it."""
        return self.mechanism.traits.has_symbol or not self.privacy.is_private

    @property
    def privacy(self) -> Privacy:
        """The guarantee of one message."""
        return self.mechanism.privacy

    def tasks(
        self, round: int, clients: npt.ArrayLike, seed: int, bound: float, clip: float | None = None
    ) -> Tasks:
        """Create the tasks of many clients in one round, for example to call ``encode_many``.

        Args:
            round: the number of the round.
            clients: the clients' numbers.
            seed: the public seed.
            bound: U_t, the mechanism's range.
            clip: the clipping norm (l2), or None to disable clipping.

        Raises:
            ValueError: if a number is out of range.
        """
        task = Task(round=round, client=0, seed=seed, dim=self.dim, bound=bound, clip=clip)
        return Tasks(task, np.asarray(clients))

    def encode(self, x: Any, task: Task, rng: Rng) -> bytes:
        """Encode a gradient (plus residual) as a message, after clipping it to the norm in the task.

        Args:
            x: A vector of ``dim`` finite numbers.
            task: The public request.
            rng: The private generator: ``secure_rng()``, or ``seeded_rng`` for an experiment.

        Returns:
            The bytes to send.

        Raises:
            ValueError: If the vector is not finite, too large or of a different length, or for another task.
        """
        return self.seal(self.randomize(x, task, rng), task)

    def randomize(self, x: Any, task: Task, rng: Rng) -> Columns:
        """Return the columns of a message: the transforms, then the private step."""
        check_rng(rng)
        self._check(task)
        self.check_clip(task.clip)
        if isinstance(x, RecordSum):
            return self._randomize_records(x, task, rng)
        y = clipped(checks.shaped("x", x, self.dim), task.clip)
        try:
            self._check_finite(y)
            for transform in self.transforms:
                y = transform.forward(y, task)
        except ValueError:
            checks.vector("x", x, self.dim)  # names the coordinate
            raise
        return self.mechanism.randomize(y, task.bound, rng)

    @property
    def sums_records(self) -> bool:
        """Reports are of sums of records: the guarantee is per record."""
        return self.privacy.notion == "record"

    def record_sum(self, task: Task, *, normalise: bool = False) -> RecordSum:
        """Create an empty sum of records for this task, using the coordinates returned by ``block``."""
        self._check(task)
        seeds = None if self.block(task) is None else (task.round, task.seed)
        return RecordSum(self.mechanism.dim, task.bound, normalise=normalise, seeds=seeds)

    def block(self, task: Task) -> Indices | None:
        """Return the coordinates of the vector that a report is about, if the task decides; None: all."""
        return self.transforms[0].coordinates(task, self.dim) if self.transforms else None

    def _randomize_records(self, x: RecordSum, task: Task, rng: Rng) -> Columns:
        if not self.sums_records:
            raise ValueError(f"x is a sum of records, but {self.name!r} protects clients: give it a gradient")
        if x.seeds != self.record_sum(task).seeds:
            raise ValueError("x is a sum over other coordinates: create it with scheme.record_sum(task)")
        return self.mechanism.randomize(x, task.bound, rng)  # type: ignore[arg-type]

    def encode_many(self, x: Any, tasks: Tasks, rng: Rng, *, workers: int = 1) -> codec.Bytes:
        """Encode one message for each row of ``x``, with the same distribution as ``encode``.

        Args:
            x: A matrix with one vector per client.
            tasks: The tasks, in the order of the rows.
            rng: The private generator of all rows.
            workers: The number of threads, which does not affect the messages of a seeded generator.

        Returns:
            A matrix of bytes with one message per row.
        """
        check_rng(rng)
        rows = checks.shaped_rows("x", x, len(tasks), self.dim)
        self._check(tasks.task)
        self.check_clip(tasks.task.clip)

        def encode(part: slice, asked: Tasks, own: Rng) -> codec.Bytes:
            columns = self._randomize_many(rows[part], asked, own)
            layout, scheme = self.mechanism.layout, self.fingerprint
            return codec.seal_many(layout, columns, scheme=scheme, bindings=asked.bindings)

        work = ((part, asked, rng.child()) for part, asked in parts_of(tasks))
        parts = list(in_order(encode, work, workers))
        return np.concatenate(parts) if parts else np.empty((0, self.bits // 8), np.uint8)

    def _randomize_many(self, x: Vectors, tasks: Tasks, rng: Rng) -> Columns:
        """``randomize`` of each row. Whatever is wrong with a row is found again, and named, by itself."""
        y = x if tasks.task.clip is None else np.stack([clipped(row, tasks.task.clip) for row in x])
        try:
            self._check_finite(y.reshape(-1))
            for transform in self.transforms:
                y = transform.forward_many(y, tasks)
            return self.mechanism.randomize_many(y, tasks.task.bound, rng)
        except ValueError:
            for row, task in zip(x, tasks, strict=True):
                try:
                    self.randomize(row, task, idle_rng())
                except ValueError as error:
                    raise ValueError(f"client {task.client}: {error}") from None
            raise

    def _check_finite(self, y: Vector) -> None:
        if not (self.transforms and self.transforms[0].checks_input):
            checks.vector("x", y, y.size)

    def check_clip(self, clip: float | None) -> None:
        """Refuse clipping of a sum of records, which are clipped one by one."""
        if clip is not None and self.sums_records:
            raise ValueError(f"clip = {clip!r}: {self.name!r} clips every record to the bound; omit clip")

    def seal(self, columns: Columns, task: Task) -> bytes:
        """Pack columns into a message."""
        return codec.seal(self.mechanism.layout, columns, scheme=self.fingerprint, binding=task.binding)

    def open(self, message: bytes, task: Task) -> Columns:
        """Unpack the columns of a message. Raises MalformedReport if it is not valid for the task."""
        self._check(task)
        return codec.unseal(message, self.mechanism.layout, scheme=self.fingerprint, binding=task.binding)

    def open_many(self, messages: codec.Bytes, tasks: Tasks) -> Columns:
        """The columns of many messages, one row each. Raises MalformedReport for the first invalid one."""
        self._check(tasks.task)
        layout, scheme = self.mechanism.layout, self.fingerprint
        return codec.unseal_many(messages, layout, scheme=scheme, bindings=tasks.bindings)

    def body(self, message: bytes) -> bytes:
        """Return the packed columns of a message, without the envelope."""
        return message[codec.ENVELOPE_BYTES :]

    def sent_coordinates(self, columns: Columns, task: Task) -> Indices:
        """Return the coordinates of the vector that a report covers."""
        if self.mechanism.traits.chooses:
            return self.mechanism.coordinates(columns)
        kept = self.block(task)
        return np.arange(self.dim) if kept is None else kept

    def decode(self, message: bytes, task: Task) -> Estimate:
        """Estimate the vector of one client from its message.

        Args:
            message: The bytes that the client sent.
            task: The request that it answers.

        Returns:
            ``dim`` numbers.

        Raises:
            MalformedReport: If the bytes are damaged, or belong to another scheme or task.
        """
        y = self.mechanism.estimate(self.open(message, task), task.bound)
        return self._undo(y, task, 0, len(self.transforms))

    def aggregate(self, reports: Iterable[tuple[Task, bytes]]) -> Estimate:
        """Compute the mean of the decoded reports. The memory usage does not depend on their number.

        Args:
            reports: Pairs of a task and the corresponding message.

        Returns:
            ``dim`` numbers.

        Raises:
            MalformedReport: If a message is damaged, or belongs to another scheme or task.
            ValueError: If there are no reports.
        """
        total = Aggregate(self)
        for task, message in reports:
            total.add(task, message)
        return total.mean()

    def _check(self, task: Task) -> None:
        if not isinstance(task, Task):
            raise ValueError(f"task = {task!r} must be a sqsgd.Task")
        if task.dim != self.dim:
            raise ValueError(f"task.dim = {task.dim}, but this scheme was made for dim = {self.dim}")

    def _undo(self, y: Estimate, task: Task, first: int, last: int) -> Estimate:
        for i in reversed(range(first, last)):
            y = self.transforms[i].inverse(y, task, self._dims[i])
        return y


Weights = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass
class Aggregate:
    """Computes a running weighted mean of reports. Its memory usage does not depend on their number.

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
    _task: Task | None = field(default=None, repr=False)

    def add(self, task: Task, message: bytes, weight: float = 1.0) -> Columns:
        """Add one report.

        Args:
            task: The request that the report answers.
            message: The bytes that the client sent.
            weight: The weight of the report in the mean.

        Returns:
            The columns of the report.

        Raises:
            MalformedReport: If the bytes are damaged, or belong to another scheme or task.
            ValueError: If the report does not fit the sum, as in ``add_columns``.
        """
        columns = self.scheme.open(message, task)
        self.add_columns(task, columns, weight)
        return columns

    def add_columns(self, task: Task, columns: Columns, weight: float = 1.0) -> None:
        """Add one report that ``Scheme.open`` has opened. All reports must be of the same round and seed."""
        scheme, weight = self.scheme, checks.real("weight", weight, 1e-9, 1e9)
        total, own, stages = self._sum(task), scheme._own, len(scheme.transforms)
        y = scheme.mechanism.estimate(columns, task.bound)
        y = scheme._undo(y if weight == 1 else weight * y, task, own + 1, stages)
        if own == stages:
            total += y
        else:
            scheme.transforms[own].add_inverse(y, task, total)
        self._weight += weight
        self.count += 1

    def add_many(
        self, tasks: Tasks, messages: codec.Bytes, weights: Weights | None = None, *, workers: int = 1
    ) -> Columns:
        """Add many reports, one per row, with the same result as ``add``, and return their columns.

        A malformed report is named, and then none of them is added:
        tests/core/test_batches.py::test_a_malformed_report_is_named_and_none_is_added.
        """
        if not len(tasks):
            raise ValueError("no reports to add")
        weights = np.ones(len(tasks)) if weights is None else np.asarray(weights, np.float64)
        if len(messages) != len(tasks) or weights.shape != (len(tasks),):
            raise ValueError(f"{len(tasks)} tasks, {len(messages)} messages and {weights.shape} weights")
        for weight in (weights.min(), weights.max()):
            checks.real("weight", float(weight), 1e-9, 1e9)

        def opened(part: slice, asked: Tasks) -> Columns:
            return self.scheme.open_many(messages[part], asked)

        found = zip(*in_order(opened, parts_of(tasks), workers), strict=True)
        columns = tuple(np.concatenate(parts) for parts in found)
        if not self._add_rows(tasks, columns, weights, self._sum(tasks.task), workers):
            for i, task in enumerate(tasks):
                self.add_columns(task, tuple(column[i] for column in columns), float(weights[i]))
        return columns

    def _add_rows(
        self, tasks: Tasks, columns: Columns, weights: Weights, total: Estimate, workers: int
    ) -> bool:
        """Add opened reports by kernels, where mechanism and transform offer them; False where not."""
        from sqsgd._internal.kernels.rotation import add_rows

        scheme = self.scheme
        if scheme.symbols:
            found = scheme.mechanism.unit_codes(columns, tasks.task.bound)
            if found is not None:
                sizes = (found[1] * weights)[:, None] * np.where(found[0] & 1, -1.0, 1.0)
                np.add.at(total, found[0] >> 1, sizes)
                self._added(weights)
            return found is not None
        if scheme._own != len(scheme.transforms) - 1:
            return False

        def inverted(part: slice, asked: Tasks) -> tuple[Vectors, Estimate] | None:
            found = scheme.mechanism.unit_codes(tuple(c[part] for c in columns), asked.task.bound)
            if found is None:
                return None
            undone = scheme.transforms[-1].inverse_codes(found[0], asked, total.size)
            return None if undone is None else (undone, found[1] * weights[part])

        for rows in in_order(inverted, parts_of(tasks), workers):
            if rows is None:  # for the first part, or for none: it depends on scheme and transform alone
                return False
            add_rows(*rows, total)
        self._added(weights)
        return True

    def _added(self, weights: Weights) -> None:
        self._weight = float(np.cumsum([self._weight, *weights])[-1])  # one after the other, as in add
        self.count += len(weights)

    def add_counts(self, task: Task, counts: Counts) -> None:
        """Add all reports of a round from how often each code was sent, for a scheme with ``symbols``.

        The sum does not depend on the order of the reports.
        tests/core/test_counts.py::test_counts_have_the_mean_of_the_reports.
        """
        scheme, total = self.scheme, self._sum(task)
        column = scheme.mechanism.layout[0]
        if not scheme.symbols or counts.shape != (scheme.symbols,):
            raise ValueError(f"{scheme.name!r} has {scheme.symbols} symbols, and counts are {counts.shape}")
        reports, rest = divmod(int(counts.sum()), column.count)
        if rest or (counts < 0).any():
            raise ValueError(f"counts of codes that come {column.count} at a time are not whole reports")
        found = scheme.mechanism.unit_codes((np.zeros((1, column.count), np.uint32),), task.bound)
        if found is None:
            raise ValueError(f"{scheme.name!r} states no size for its codes, so counts have no mean")
        total += (counts[0::2] - counts[1::2]) * found[1][0]
        self._weight += reports
        self.count += reports

    def _sum(self, task: Task) -> Estimate:
        """Return the sum so far, before the inverse of the transforms that all clients share."""
        scheme = self.scheme
        scheme._check(task)
        if self._task is not None and (task.round, task.seed) != (self._task.round, self._task.seed):
            raise ValueError(
                f"a report of round {task.round} and seed {task.seed} cannot be added to an aggregate of "
                f"round {self._task.round} and seed {self._task.seed}"
            )
        if self._total is None:
            self._total, self._task = np.zeros(scheme._dims[scheme._own]), task
        return self._total

    def mean(self) -> Estimate:
        """Return the mean of the reports added so far."""
        if self._total is None or self._task is None or self.count == 0:
            raise ValueError("no reports have been added, so the mean is undefined")
        return self.scheme._undo(self._total / self._weight, self._task, 0, self.scheme._own)
