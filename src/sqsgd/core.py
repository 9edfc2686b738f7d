"""The core abstractions: Transform, Mechanism, Scheme.

A scheme is a list of transforms (public, linear, inverted by the server) and one mechanism (the only private
step): gradient → transforms → mechanism → columns → bytes, and back.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sqsgd import checks, codec
from sqsgd.checks import Vector
from sqsgd.codec import Columns, Layout
from sqsgd.numerics.exact import Densities
from sqsgd.numerics.norms import clipped
from sqsgd.randomness import Rng, check_rng
from sqsgd.task import MOST_DIM, Task

Estimate = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Notion = Literal["local", "per-weight", "central", "none"]
_WIDEN = 256  # reports summed in float32 before they are added to the float64 sum


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The privacy guarantee of one report.

    ``notion`` is ``"local"`` (ε-LDP of the whole report, replace-one, against the server itself),
    ``"per-weight"`` (the same between vectors that differ in one coordinate), ``"central"`` (of the sum
    of reports, under secure aggregation) or ``"none"``.

    Guarantees
    ----------
    * ``epsilon`` is never above the requested one:
      tests/schemes/test_contract.py::test_epsilon_is_what_was_asked_for.

    >>> from sqsgd import make_scheme
    >>> make_scheme("sqsgd", dim=1000, epsilon=50.0, bits=512).privacy
    Privacy(epsilon=50.0, notion='local', delta=0.0)
    >>> make_scheme("fedsgd", dim=1000).privacy
    Privacy(epsilon=inf, notion='none', delta=0.0)
    """

    epsilon: float
    notion: Notion
    delta: float = 0.0
    arithmetic: Literal["exact", "real"] = field(default="exact", repr=False)
    """``"real"``: ε is proved in real arithmetic only, and the report is drawn with floats."""

    @property
    def is_private(self) -> bool:
        """Whether anything is guaranteed."""
        return self.notion != "none"

    @property
    def is_pure_local(self) -> bool:
        """Pure ε-LDP of the whole report: the only guarantee that ledgers and nodes accept."""
        return self.notion == "local" and self.delta == 0

    @property
    def protects_single_reports(self) -> bool:
        """Whether the guarantee holds against a server that sees each report by itself."""
        return self.notion in ("local", "per-weight")


NOT_PRIVATE = Privacy(epsilon=math.inf, notion="none")


class Transform(ABC):
    """A public step with a linear inverse, which the server applies.

    >>> from sqsgd.transforms import Rotate
    >>> task = Task(round=0, client=0, seed=1, dim=4, bound=1.0)
    >>> x = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    >>> np.round(Rotate().inverse(Rotate().forward(x, task).astype(float), task, 4), 4).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """

    checks_input: ClassVar[bool] = False
    """``forward`` rejects NaN and infinity in the pass that it makes anyway."""

    shared: bool
    """The same for all clients of a round, so the server inverts it once, after the sum."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""

    @abstractmethod
    def out_dim(self, dim: int) -> int:
        """Length of the output for inputs of length ``dim``."""

    @abstractmethod
    def forward(self, x: Vector, task: Task) -> Vector:
        """The client's side. May return ``x`` itself; never changes it."""

    @abstractmethod
    def inverse(self, y: Estimate, task: Task, dim: int) -> Estimate:
        """The server's side: back to length ``dim``."""

    def coordinates(self, task: Task, dim: int) -> Indices | None:
        """The coordinates of the input that the step keeps; None where all of them contribute."""
        return None

    def add_inverse(self, y: Estimate, task: Task, total: Estimate) -> None:
        """total += inverse(y); override it where most of the inverse is zero."""
        total += self.inverse(y, task, total.size)

    def error_before(self, error: float, dim: int) -> float:
        """The relative squared error of the input, a vector of length ``dim``, from that of the output."""
        return error


class Mechanism(ABC):
    """The only private step. It projects its own input, so ε never depends on an earlier step.

    Guarantees
    ----------
    * ``log_density`` of the same columns differs by at most ε between any two inputs:
      tests/schemes/test_privacy.py::test_exact_privacy.
    * ``randomize`` draws from that density:
      tests/schemes/test_privacy.py::test_what_is_sent_has_the_density_that_privacy_is_proved_of.
    * The mechanism itself rejects NaN and infinity:
      tests/schemes/test_contract.py::test_a_mechanism_refuses_them_by_itself.

    >>> from sqsgd import make_scheme, secure_rng
    >>> mechanism = make_scheme("vqsgd", dim=8, epsilon=2.0, bits=8).mechanism
    >>> columns = mechanism.randomize(np.full(8, 1e9, np.float32), 1.0, secure_rng())  # too long: projected
    >>> one, other = (mechanism.log_density(columns, np.full(8, x, np.float32), 1.0) for x in (1.0, -1.0))
    >>> abs(one - other) <= mechanism.privacy.epsilon
    True
    """

    dim: int

    chooses: ClassVar[bool] = False
    """The mechanism chooses the coordinates that a report is about: see ``coordinates``."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""

    @property
    def has_symbol(self) -> bool:
        """The last column is one symbol for the vector's size, which the budget for codes does not count."""
        return False

    @property
    def bounds_coordinates(self) -> bool:
        """``bound`` limits the magnitude of each coordinate; otherwise it limits the l2 norm."""
        return False

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The columns that ``randomize`` returns."""

    @property
    def privacy(self) -> Privacy:
        """The guarantee of the columns: none, unless the mechanism states one."""
        return NOT_PRIVATE

    @property
    def blanket(self) -> tuple[Densities, ...]:
        """The high and the low density of each part of a report, for ``sqsgd.central_guarantee``.

        Given x the parts are independent, and the densities of each are relative to a law that does not
        depend on x. Which outputs have the high density depends on x, but not their share under that law.
        Empty for mechanisms of other kinds. tests/certificate/test_blankets.py compares all of this.
        """
        return ()

    @abstractmethod
    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        """Private columns for any finite vector of length ``dim``."""

    @abstractmethod
    def estimate(self, columns: Columns, bound: float) -> Estimate:
        """The server's estimate of x."""

    def add_estimate(self, columns: Columns, bound: float, weight: float, total: Vector) -> None:
        """total += weight * estimate, in float32; override it where one pass is enough."""
        total += (weight * self.estimate(columns, bound)).astype(np.float32)

    def magnitude(self, columns: Columns, bound: float) -> float | None:
        """The privatised size of x, in units of the bound; None where a report does not hold it."""
        return None

    def coordinates(self, columns: Columns) -> Indices:
        """The coordinates that a report is about, where the mechanism ``chooses``."""
        raise NotImplementedError

    @abstractmethod
    def relative_error(self, share: float) -> float:
        """E|estimate - x|² / |x|² of one report, in closed form, for |x| at this share of the bound.

        Mechanisms that need a rotation assume that it has spread the vector evenly. NaN where no closed form
        is known, infinity where the error is unbounded.
        """

    @abstractmethod
    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        """ln of the density of ``columns`` given x, over all randomness of ``randomize``."""


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """An algorithm: transforms and a mechanism for vectors of one length. Made by ``make_scheme``.

    Guarantees
    ----------
    * ``encode`` draws private randomness only from ``rng``, public only from ``task``.
      tests/schemes/test_contract.py::test_a_seed_decides_the_message.
    * ``bits`` is 8 len(message), envelope included; ``code_bits`` counts only the packed codes.
      tests/schemes/test_contract.py::test_the_message_has_the_declared_size_and_keeps_the_budget.
    * ``decode`` rejects damaged messages and those for other tasks, except for the one in 2^32 random changes
      that keeps the checksum. The checksum does not protect against forgery.
      tests/test_codec.py::test_a_report_fits_no_other_task, ::test_no_mutated_message_is_accepted.

    >>> from sqsgd import make_scheme, secure_rng
    >>> scheme = make_scheme("sqsgd", dim=1000, epsilon=50.0, bits=512)
    >>> task = Task(round=0, client=3, seed=7, dim=1000, bound=1.0)
    >>> message = scheme.encode(np.full(1000, 0.01, np.float32), task, secure_rng())
    >>> 8 * len(message) == scheme.bits, scheme.decode(message, task).shape
    (True, (1000,))
    """

    name: str
    dim: int
    transforms: tuple[Transform, ...]
    mechanism: Mechanism
    residual: bool = False
    """The client keeps unsent coordinates and adds them to its next gradient (Algorithm 2)."""
    first_bound: float = 1.0
    """U_0, the bound of the first round, where none is given."""
    wire: int = 1
    """The version of the wire format of its messages (docs/wire-format.md)."""
    momentum: float = 0.0
    """The residual accumulates the velocity of the gradients instead (momentum correction)."""

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

    @cached_property
    def _checked_by_transform(self) -> bool:
        """The first transform checks every coordinate, which saves a pass over x."""
        return bool(self.transforms) and self.transforms[0].checks_input

    @property
    def sends_block(self) -> bool:
        """A report covers a block of coordinates chosen without the vector; the client keeps the rest."""
        return self.residual and not self.mechanism.chooses

    @cached_property
    def unit_bound(self) -> float:
        """A bound for unit vectors: their norm, that of a block, or three deviations of a coordinate."""
        if self.mechanism.bounds_coordinates:
            return 3.0 / math.sqrt(self.dim)
        return math.sqrt(self.mechanism.dim / self.dim) if self.sends_block else 1.0

    @cached_property
    def fingerprint(self) -> int:
        """A 32-bit number that differs between schemes whose messages must not be confused."""
        parts = [f"{self.name} {self.dim}", *(t.identity for t in self.transforms), self.mechanism.identity]
        digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=4, person=b"sqsgd scheme").digest()
        return int.from_bytes(digest, "little")

    @cached_property
    def bits(self) -> int:
        """Bits of a whole message, as sent."""
        return 8 * codec.size(self.mechanism.layout, self.wire)

    @cached_property
    def code_bits(self) -> int:
        """Bits of the packed codes, which is what a budget counts."""
        layout = self.mechanism.layout
        return sum(column.bits for column in (layout[:-1] if self.mechanism.has_symbol else layout))

    @cached_property
    def nmse(self) -> float:
        """Predicted E|x̂ - x|² / |x|² of one report of a vector as long as the bound.

        It is the error on the sent block where the client keeps the rest as a residual. Where the mechanism
        chooses the coordinates, it is the error on the whole vector, because the choice is part of it.
        """
        error = self.mechanism.relative_error(1.0)
        for i, transform in reversed(list(enumerate(self.transforms))):
            error = transform.error_before(error, self._dims[i])
        return error

    @property
    def privacy(self) -> Privacy:
        """The guarantee of one message."""
        return self.mechanism.privacy

    def encode(self, x: Any, task: Task, rng: Rng) -> bytes:
        """The client's message for its gradient (plus residual), clipped first where the task says so."""
        return self.seal(self.randomize(x, task, rng), task)

    def randomize(self, x: Any, task: Task, rng: Rng) -> Columns:
        """The columns of a message: the transforms, then the private step."""
        check_rng(rng)
        self._check(task)
        self.check_clip(task.clip)
        y = (checks.shaped if self._checked_by_transform else checks.vector)("x", x, self.dim)
        y = clipped(y, task.clip)
        try:
            for transform in self.transforms:
                y = transform.forward(y, task)
        except ValueError:
            checks.vector("x", x, self.dim)  # names the coordinate
            raise
        return self.mechanism.randomize(y, task.bound, rng)

    def check_clip(self, clip: float | None) -> None:
        """Refuse clipping where the guarantee is for single weights: it would let one weight move all others.

        tests/schemes/test_ldp_fl.py::test_clipping_would_break_the_guarantee_of_single_weights.
        """
        if clip is not None and self.privacy.notion == "per-weight":
            raise ValueError(
                f"clip = {clip!r}: clipping scales all weights by their common norm, and {self.name!r} with "
                "per_weight = true protects each weight by itself; omit clip"
            )

    def seal(self, columns: Columns, task: Task) -> bytes:
        """The message that carries these columns."""
        return codec.seal(self.mechanism.layout, columns, **self._envelope(task))

    def open(self, message: bytes, task: Task) -> Columns:
        """The columns of a message; raises MalformedReport if it is not valid for the task."""
        self._check(task)
        return codec.unseal(message, self.mechanism.layout, **self._envelope(task))

    def _envelope(self, task: Task) -> dict[str, Any]:
        return {
            "scheme": self.fingerprint,
            "round": task.round,
            "binding": task.binding,
            "version": self.wire,
        }

    def body(self, message: bytes) -> bytes:
        """The packed columns of a message, without the envelope."""
        return message[codec.ENVELOPES[self.wire] :]

    def sent_coordinates(self, columns: Columns, task: Task) -> Indices:
        """The coordinates of the vector that a report covers."""
        if self.mechanism.chooses:
            return self.mechanism.coordinates(columns)
        kept = self.transforms[0].coordinates(task, self.dim) if self.transforms else None
        return np.arange(self.dim) if kept is None else kept

    def decode(self, message: bytes, task: Task) -> Estimate:
        """The server's estimate of one client's vector."""
        y = self.mechanism.estimate(self.open(message, task), task.bound)
        return self._undo(y, task, 0, len(self.transforms))

    def aggregate(self, reports: Iterable[tuple[Task, bytes]]) -> Estimate:
        """The mean of the decoded reports, in memory that does not grow with their number."""
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
