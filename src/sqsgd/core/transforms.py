"""Public steps before the mechanism, which the server undoes: sample coordinates, rotate."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd.core.random import EVERYONE, PublicStream, Words
from sqsgd.core.task import Task, Tasks

Codes = npt.NDArray[np.uint32]
Vectors = npt.NDArray[np.float32]
"""A vector of each client in each row."""
Estimate = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Part(ABC):
    """A part of a scheme. What it has computed is not pickled: it may hold functions, which cannot be."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""

    def __getstate__(self) -> dict[str, Any]:
        computed, kept = cached_property, vars(self).items()
        return {key: value for key, value in kept if not isinstance(getattr(type(self), key, None), computed)}


class Transform(Part):
    """A public step with a linear inverse that is applied by the server.

    >>> Rotate(rounds=2).out_dim(1000)
    1024
    """

    checks_input: ClassVar[bool] = False
    """Whether ``forward`` checks the input for NaN and infinity."""

    spreads: ClassVar[bool] = False
    """Whether ``inverse`` distributes the error of a coordinate over all coordinates."""

    shared: bool
    """Whether the transform is the same for all clients in a round and can be inverted after the sum."""

    @abstractmethod
    def out_dim(self, dim: int) -> int:
        """Length of the output for inputs of length ``dim``."""

    @abstractmethod
    def forward(self, x: Vector, task: Task) -> Vector:
        """Apply the transform, at the client.

        Args:
            x: The vector, which is not modified.
            task: The public request, the only source of randomness.

        Returns:
            The transformed vector; it may be ``x`` itself.
        """

    @abstractmethod
    def inverse(self, y: Estimate, task: Task, dim: int) -> Estimate:
        """Undo the transform, at the server.

        Args:
            y: The transformed estimate.
            task: The request of the report.
            dim: The length of the input of ``forward``.

        Returns:
            An estimate of length ``dim``.
        """

    def forward_many(self, x: Vectors, tasks: Tasks) -> Vectors:
        """``forward`` of each row; override it where one pass over all rows is faster."""
        return np.stack([self.forward(row, task) for row, task in zip(x, tasks, strict=True)])

    def inverse_codes(self, codes: Codes, tasks: Tasks, dim: int) -> Vectors | None:
        """Return the padded inverse of vectors that are ± 1 where codes 2 place + sign say, else 0; one per
        row.

        A row times a factor is the inverse of the vector times it, to the last bit. None: not offered.
        """
        return None

    def coordinates(self, task: Task, dim: int) -> Indices | None:
        """Return the coordinates of the input that the step keeps, or None where all of them contribute."""
        return None

    def add_inverse(self, y: Estimate, task: Task, total: Estimate) -> None:
        """total += inverse(y); override it where most of the inverse is zero."""
        total += self.inverse(y, task, total.size)

    def error_before(self, error: float, dim: int, along: float | None = None) -> float:
        """Return the relative squared error of the input, a vector of length ``dim``, from the error of the
        output.

        ``along`` is the share of the estimate's mean square that lies along the vector, where it is known.
        """
        return error


_U8 = np.dtype("<u8")
_SIGNS = ("signs 0", "signs 1", "signs 2")
FEWEST = 64
"""Fewer rotated coordinates are not nearly Gaussian, which biases estimates that rely on it."""
_FEW_NEAR = 16  # with as many largest coordinates or more, two rounds bias their sum by less than 1 %


@lru_cache(maxsize=1)
def _subset(seed: int, round: int, client: int, dim: int, size: int) -> Indices:
    stream = PublicStream(seed=seed, round=round, client=client, purpose="coordinates")
    chosen = stream.subset(dim, size)
    chosen.flags.writeable = False
    return chosen


@dataclass(frozen=True, kw_only=True)
class Subsample(Transform):
    """Keep a uniform subset of ``size`` coordinates, drawn from the public seed, in rising order.

    With ``rescale``, the step and its inverse each multiply by sqrt(dim / size), so that the estimate is
    unbiased. Without it, the estimate is zero except on the kept coordinates.
    """

    size: int
    shared: bool = False
    rescale: bool = False

    def __post_init__(self) -> None:
        checks.integer("size", self.size, 1, 2**32 - 1)

    @property
    def identity(self) -> str:
        return f"subsample {self.size} shared={int(self.shared)} rescale={int(self.rescale)}"

    def out_dim(self, dim: int) -> int:
        if self.size > dim:
            raise ValueError(f"size = {self.size}: a vector of {dim} coordinates has no such subset")
        return self.size

    def coordinates(self, task: Task, dim: int) -> Indices:
        return _subset(task.seed, task.round, EVERYONE if self.shared else task.client, dim, self.size)

    def forward(self, x: Vector, task: Task) -> Vector:
        if self.size == x.size:
            return x
        block = x.take(self.coordinates(task, x.size))
        return block * np.float32(math.sqrt(x.size / self.size)) if self.rescale else block

    def inverse(self, y: Estimate, task: Task, dim: int) -> Estimate:
        if self.size == dim:
            return y
        whole = np.zeros(dim)
        self.add_inverse(y, task, whole)
        return whole

    def add_inverse(self, y: Estimate, task: Task, total: Estimate) -> None:
        dim = total.size
        if self.size == dim:
            total += y
        else:
            from sqsgd._internal.kernels.rotation import add_at

            scale = math.sqrt(dim / self.size) if self.rescale else 1.0
            add_at(total, self.coordinates(task, dim), _checked(y, self.size), scale)

    def error_before(self, error: float, dim: int, along: float | None = None) -> float:
        """With ``rescale``, |x̂|² is (dim / size) |ŷ|² on average, and x̂ is unbiased."""
        return (1 + error) * dim / self.size - 1 if self.rescale else error


def _checked(y: Estimate, size: int) -> Estimate:
    """Return the estimate as kernels need it, which do not check lengths."""
    if y.shape != (size,):
        raise ValueError(f"an estimate of shape {y.shape} is not one of {size} coordinates")
    return np.require(y, np.float64, ("C", "A", "W"))


def padded(dim: int) -> int:
    """Return the power of two that vectors are padded to for their rotation."""
    return 1 << (dim - 1).bit_length()


@dataclass(frozen=True, kw_only=True)
class Rotate(Transform):
    """Multiply by H D / sqrt(n), up to three times: random public signs D, then Walsh-Hadamard H.

    Vectors are padded with zeros to a power of two n, at least ``least``. One round spreads most vectors
    evenly, two even a vector with one large entry. After two rounds a vector of two or four equal entries has
    coordinates of equal magnitudes. After three it is like any other. Errors that depend on the rotation
    average out over clients, unless ``shared``, which saves the server time.
    """

    rounds: int = 1
    shared: bool = False
    least: int = 1
    checks_input = True
    spreads = True

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds, 1, len(_SIGNS))
        checks.integer("least", self.least, 1, 2**31)

    @property
    def identity(self) -> str:
        least = f" least={self.least}" if self.least > 1 else ""
        return f"rotate {self.rounds} shared={int(self.shared)}{least}"

    def out_dim(self, dim: int) -> int:
        return padded(max(dim, self.least))

    def _signs(self, task: Task, which: int, size: int) -> Words:
        words = task.stream(_SIGNS[which], shared=self.shared).words(2 * -(-size // 64))
        return words.view(_U8)

    def forward(self, x: Vector, task: Task) -> Vector:
        from sqsgd._internal.kernels.rotation import rotate

        size = self.out_dim(x.size)
        y = np.empty(size, np.float32)
        source = x
        if x.size < size:
            y[: x.size], y[x.size :] = x, 0
            source = y
        for which in range(self.rounds):
            fine = rotate(source, self._signs(task, which, size), size**-0.5, y, checks.LARGEST)
            if which == 0 and not fine:
                raise ValueError("x contains a number that is too large or not finite")
            source = y
        return y

    def inverse(self, y: Estimate, task: Task, dim: int) -> Estimate:
        x = np.zeros(dim)
        self.add_inverse(y, task, x)
        return x

    def add_inverse(self, y: Estimate, task: Task, total: Estimate) -> None:
        from sqsgd._internal.kernels.rotation import add_scaled, flip_signs, narrow, rotate

        y = _checked(y, self.out_dim(total.size))
        x = np.empty(y.size, np.float32)
        factor = narrow(y, y.view(np.int64), x)  # estimates may be beyond the range of the kernel's float32
        signs = np.zeros(-(-x.size // 64), np.uint64)
        for which in reversed(range(self.rounds)):
            rotate(x, signs, x.size**-0.5, x, np.inf)  # with the signs of the round that was undone before
            signs = self._signs(task, which, x.size)
        flip_signs(x, signs)
        add_scaled(x, factor, total)

    def _many_signs(self, tasks: Tasks, size: int) -> Words:
        """For each round, a row of signs per task."""
        count = -(-size // 64)
        if self.shared:
            found = np.stack([self._signs(tasks.task, which, size) for which in range(self.rounds)])
            return np.repeat(found[:, None], len(tasks), axis=1)
        return np.stack([tasks.words(purpose, count) for purpose in _SIGNS[: self.rounds]])

    def forward_many(self, x: Vectors, tasks: Tasks) -> Vectors:
        from sqsgd._internal.kernels.rotation import rotate_rows

        size = self.out_dim(x.shape[1])
        y, fine = np.empty((len(x), size), np.float32), np.empty(len(x), np.bool_)
        rotate_rows(x, self._many_signs(tasks, size), size**-0.5, y, checks.LARGEST, fine)
        if not fine.all():
            raise ValueError("x contains a number that is too large or not finite")
        return y

    def inverse_codes(self, codes: Codes, tasks: Tasks, dim: int) -> Vectors:
        from sqsgd._internal.kernels.rotation import unrotate_codes

        size = self.out_dim(dim)
        x = np.empty((len(codes), size), np.float32)
        unrotate_codes(codes, self._many_signs(tasks, size), size**-0.5, x)
        return x

    def error_before(self, error: float, dim: int, along: float | None = None) -> float:
        """The error across the vector spreads evenly, and its share on the padding is cut off."""
        size = self.out_dim(dim)
        if size == dim or along is None:
            return error * dim / size
        return (1 + error) * (along + (1 - along) * (dim - 1) / (size - 1)) - 1


def gaussian_rotation(dim: int, near: int | None = None) -> Rotate:
    """Return a rotation after which the coordinates of any vector are nearly Gaussian, with the fewest
    rounds.

    A third round is needed for few coordinates, and for a mechanism that takes the ``near`` largest ones, if
    these are few: equal magnitudes would shorten their sum by up to 10 %
    (tests/schemes/test_few_dimensions.py::test_worst_vectors_keep_their_length).
    """
    few = padded(dim) < 4 * FEWEST or (near is not None and near < _FEW_NEAR)
    return Rotate(rounds=3 if few else 2, least=FEWEST if padded(dim) < FEWEST else 1)


Rotation = Literal["client", "round"]


def rotated_by(rotation: Rotation, transforms: tuple[Transform, ...]) -> tuple[Transform, ...]:
    """Return the transforms with public randomness of each client, or the same for all clients of a round.

    A round's rotation has the error of any one rotation, while rotations of clients average it. It lets the
    server count reports instead of keeping them, and no report then belongs to a client.
    """
    if rotation not in get_args(Rotation):
        raise ValueError(f"rotation = {rotation!r} must be one of {', '.join(get_args(Rotation))}")
    if rotation == "client":
        return transforms
    return tuple(replace(each, shared=True) for each in transforms)  # type: ignore[type-var]


def rotated_sample(dim: int, size: int, rotate: Rotate | None = None) -> tuple[Transform, ...]:
    """Rotate the whole vector, twice by default, then keep ``size`` of its coordinates, rescaled."""
    rotate = rotate or Rotate(rounds=2)
    whole = rotate.out_dim(dim)
    return (rotate,) if size == whole else (rotate, Subsample(size=size, rescale=True))
