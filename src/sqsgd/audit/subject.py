"""The audited scheme, at the requested budget and at budgets small enough to enumerate its outputs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Columns, Layout
from sqsgd.core import Mechanism, Scheme
from sqsgd.randomness import Rng, secure_rng
from sqsgd.task import Task

Floats = npt.NDArray[np.float64]
BUDGETS = (0.5, 1.0, 2.0, 4.0)
EXACT_BUDGETS = (*BUDGETS, 12.0)
MOST_OUTPUTS = 300
_SMALL = ((4, 16), (4, 8), (2, 16), (2, 8), (2, 6), (2, 4), (1, 8), (1, 4), (1, 2), (1, 1), (3, 96))
_CLOSE, _FLAT, _MOST_STEPS = 1e-6, 1e-4, 40


class MakeScheme(Protocol):
    """Makes a scheme for a budget, as the functions of ``SCHEMES`` do."""

    def __call__(self, *, dim: int, epsilon: float, bytes: int) -> Scheme:
        """The scheme."""
        ...


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A scheme and the sizes of its audit. ``seed`` fixes vectors and tasks; the noise is real."""

    name: str
    make: MakeScheme
    dim: int = 119850
    epsilon: float = 400.0
    bits: int = 2048
    trials: int = 20_000
    """Reports per distinguishing attempt; checks with slower reports use a tenth."""
    budgets: tuple[float, ...] = BUDGETS
    """Values of ε small enough to be measured by distinguishing reports."""
    exact_budgets: tuple[float, ...] = EXACT_BUDGETS
    """Values of ε at which likelihood ratios are computed."""
    seed: int = 0
    noise: Callable[[], Rng] = secure_rng
    """Makes a client's generator."""

    def __post_init__(self) -> None:
        checks.integer("trials", self.trials, 1000, 10**8)
        checks.integer("seed", self.seed, 0, 2**32 - 1)

    @cached_property
    def scheme(self) -> Scheme:
        """The scheme at the requested budget."""
        return self.make(dim=self.dim, epsilon=self.epsilon, bytes=self.bits // 8)

    @property
    def private(self) -> bool:
        """Whether the scheme has any privacy guarantee."""
        return self.scheme.privacy.is_private

    @cached_property
    def _small(self) -> dict[float, Small | None]:
        return {}

    def small(self, epsilon: float) -> Small | None:
        """The scheme at a budget where its outputs can be listed or have a density; both where possible."""
        if epsilon not in self._small:
            self._small[epsilon] = self._search(epsilon)
        return self._small[epsilon]

    def _search(self, epsilon: float) -> Small | None:
        found: list[Small] = []
        for dim, bits in _SMALL:
            try:
                scheme = self.make(dim=dim, epsilon=epsilon, bytes=bits // 8)
            except ValueError:
                continue
            listed = outputs_of(scheme.mechanism.layout) <= MOST_OUTPUTS
            dense = has_density(scheme.mechanism)
            small = Small(scheme=scheme, task=task_for(scheme, self.seed), listed=listed, dense=dense)
            if dense and (listed or bits >= 32 * dim):  # with this many bits, some schemes send float32
                return small
            if listed:
                found.append(small)
        return found[0] if found else None

    def numbers(self, purpose: str) -> np.random.Generator:
        """A seeded generator for the vectors of one check."""
        return np.random.default_rng([self.seed, *purpose.encode()])


@dataclass(frozen=True, kw_only=True, eq=False)
class Small:
    """A scheme at a small budget."""

    scheme: Scheme
    task: Task
    listed: bool
    """All outputs can be enumerated."""
    dense: bool
    """The density of an output has a closed form."""

    @cached_property
    def outputs(self) -> list[Columns]:
        """Every tuple of columns that can be sent."""
        return [*itertools.product(*(list(column.every()) for column in self.scheme.mechanism.layout))]

    @cached_property
    def places(self) -> dict[bytes, int]:
        """The index of an output by its bytes in a message."""
        layout = self.scheme.mechanism.layout
        bodies = (
            b"".join(bytes(part.pack(column)) for part, column in zip(layout, columns, strict=True))
            for columns in self.outputs
        )
        return {body: place for place, body in enumerate(bodies)}

    def log_densities(self, y: Vector) -> Floats:
        """ln of the probability of every output, from the mechanism's own density."""
        density, bound = self.scheme.mechanism.log_density, self.task.bound
        return np.array([density(columns, y, bound) for columns in self.outputs])

    def tally(self, x: Vector, count: int, rng: Rng) -> Counter[bytes]:
        """How often each message body was sent, over real reports of one vector."""
        scheme, task = self.scheme, self.task
        return Counter(scheme.body(scheme.encode(x, task, rng)) for _ in range(count))


def outputs_of(layout: Layout) -> float:
    """The number of outputs of a layout."""
    return math.prod(column.outputs for column in layout)


def has_density(mechanism: Mechanism) -> bool:
    """Whether the density has a closed form."""
    blank = tuple(np.zeros(column.count, np.uint32) for column in mechanism.layout)
    try:
        mechanism.log_density(blank, np.zeros(mechanism.dim, np.float32), 1.0)
    except NotImplementedError:
        return False
    return True


def task_for(scheme: Scheme, seed: int, *, client: int = 0, round: int = 0, length: float = 1.0) -> Task:
    """A task whose bound suits vectors of this length."""
    return Task(round=round, client=client, seed=seed, dim=scheme.dim, bound=length * scheme.unit_bound)


def forward(scheme: Scheme, x: Vector, task: Task) -> Vector:
    """The mechanism's input for a vector: the transforms alone."""
    y = x
    for transform in scheme.transforms:
        y = transform.forward(y, task)
    return y


def preimage(scheme: Scheme, y: Vector, task: Task) -> Vector:
    """The shortest vector that the transforms F map to y, or the nearest one where y has no preimage.

    Every transform's inverse is its transpose, so x = Fᵀ z with F Fᵀ z = y, by conjugate gradients.
    """
    stages = len(scheme.transforms)
    if stages == 0:
        return y

    def transposed(z: Floats) -> Vector:
        return scheme._undo(z, task, 0, stages).astype(np.float32)

    z, rest = np.zeros(y.size), y.astype(np.float64)
    step, size = rest.copy(), float(rest @ rest)
    enough = size * _CLOSE**2
    for _ in range(_MOST_STEPS):
        if not size > enough:
            break
        image = forward(scheme, transposed(step), task).astype(np.float64)
        along = float(step @ image)
        if not along > _FLAT * float(step @ step):  # the remainder has no preimage
            break
        z += size / along * step
        rest -= size / along * image
        size, before = float(rest @ rest), size
        step = rest + size / before * step
    return transposed(z)


def cosine(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> float:
    """The cosine of the angle between two vectors; zero if either is zero."""
    first, second = a.astype(np.float64), b.astype(np.float64)
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths > 0 else 0.0
