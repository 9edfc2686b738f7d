"""The subject of an audit: a scheme at the requested budget and at small ones, and its inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator, lsqr

from sqsgd._internal import checks
from sqsgd._internal.checks import Vector
from sqsgd.core import Mechanism, Scheme
from sqsgd.core.codec import Columns
from sqsgd.core.random import Rng, secure_rng
from sqsgd.core.task import Task, Tasks
from sqsgd.core.transforms import Rotate, padded
from sqsgd.mechanisms.sparse import SparseMatches
from sqsgd.schemes.privunit_index import NearestVertices, best_nearest
from sqsgd.schemes.sqsgd import SIGNS, Direction, best_sparse

Floats = npt.NDArray[np.float64]
Band = tuple[float, float]
BUDGETS = (0.5, 1.0, 2.0, 4.0)
_MOST_OUTPUTS = 300
_SMALL = ((4, 2), (4, 1), (2, 2), (2, 1), (1, 1), (3, 12))  # coordinates and bytes
_CLOSE, _MOST_STEPS = 1e-7, 40
_FAR = 30.0  # times the bound
_TINY = 1e-6  # directions of vectors shorter than this part of the bound count as zero
_BANDS = (*((i / 20, (i + 1) / 20) for i in range(20)), (1.0, 1.5), (1.5, 2.2), (2.2, 3.3), (3.3, 5.0))
_MOST_SYMBOLS = 4


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A scheme and the sizes of its audit. ``seed`` fixes vectors and tasks. The noise is real."""

    name: str
    make: Callable[..., Scheme]  # from ``dim``, ``epsilon`` and ``bytes``, as the functions of ``SCHEMES``
    dim: int = 119850
    epsilon: float = 400.0
    bytes: int = 256
    trials: int = 20_000  # reports per distinguishing attempt; checks with slower reports use a tenth
    budgets: tuple[float, ...] = BUDGETS  # ε small enough to be measured by distinguishing reports
    exact_budgets: tuple[float, ...] = (*BUDGETS, 12.0)  # at which likelihood ratios are computed
    seed: int = 0
    noise: Callable[[], Rng] = secure_rng  # makes a client's generator

    def __post_init__(self) -> None:
        checks.integer("trials", self.trials, 1000, 10**8)
        checks.integer("seed", self.seed, 0, 2**32 - 1)

    @cached_property
    def scheme(self) -> Scheme:
        return self.make(dim=self.dim, epsilon=self.epsilon, bytes=self.bytes)

    @lru_cache(maxsize=32)  # noqa: B019 (few subjects per process)
    def small(self, epsilon: float) -> Small | None:
        """The scheme at a budget where its outputs can be listed or have a density; both where possible."""
        only_listed = None
        for dim, size in _SMALL:
            try:
                scheme = tight(self.make(dim=dim, epsilon=epsilon, bytes=size), size)
            except ValueError:
                continue
            small = Small(scheme, task_for(scheme, self.seed))
            if small.dense and (small.listed or size >= 4 * dim):  # with so many bytes, some send float32
                return small
            only_listed = only_listed or (small if small.listed else None)
        return only_listed

    def smalls(self) -> list[tuple[float, Small]]:
        return [(budget, small) for budget in self.budgets if (small := self.small(budget)) is not None]

    def numbers(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, *purpose.encode()])


def tight(scheme: Scheme, size: int) -> Scheme:
    """Without padding to 64 coordinates, and over a range that inputs fill: such losses are measurable."""
    made, dim = scheme.mechanism, padded(scheme.dim)
    if isinstance(made, Direction):
        return replace(scheme, mechanism=replace(made, reach=SIGNS))
    if made.dim <= dim:
        return scheme
    if isinstance(made, NearestVertices):
        made = replace(made, dim=dim, nearest=best_nearest(dim, made.epsilon))
    elif isinstance(made, SparseMatches) and (best := best_sparse(dim, made.law.epsilon, 8 * size)):
        made = replace(made, law=best.law)
    else:
        return scheme
    return replace(scheme, transforms=(Rotate(rounds=2),), mechanism=made)


@dataclass(frozen=True, eq=False)
class Small:
    """A scheme at a small budget."""

    scheme: Scheme
    task: Task

    @cached_property
    def listed(self) -> bool:
        return math.prod(column.outputs for column in self.scheme.mechanism.layout) <= _MOST_OUTPUTS

    @cached_property
    def dense(self) -> bool:
        return has_density(self.scheme.mechanism)

    @cached_property
    def outputs(self) -> list[Columns]:
        return [*itertools.product(*(list(column.every()) for column in self.scheme.mechanism.layout))]

    @cached_property
    def places(self) -> dict[bytes, int]:
        return {self.scheme.seal(columns, self.task): i for i, columns in enumerate(self.outputs)}

    def log_densities(self, y: Vector) -> Floats:
        """ln of the probability of every output, from the mechanism's own density."""
        density, bound = self.scheme.mechanism.log_density, self.task.bound
        return np.array([density(columns, y, bound) for columns in self.outputs])

    def reports(self, x: Vector, count: int, rng: Rng) -> list[bytes]:
        return [self.scheme.encode(x, self.task, rng) for _ in range(count)]

    def batch(self, x: Vector, count: int, rng: Rng) -> list[bytes]:
        """Return the same by ``encode_many``."""
        tasks = Tasks(self.task, np.full(count, self.task.client))
        messages = self.scheme.encode_many(np.broadcast_to(x, (count, x.size)), tasks, rng)
        return [message.tobytes() for message in messages]

    def every_length(self, numbers: np.random.Generator) -> list[Input]:
        """Zero, tiny, all lengths, middles and edges of norm symbols, ties, sparse, dense, and too long."""
        mechanism, bound = self.scheme.mechanism, self.task.bound
        axes, dense = np.eye(mechanism.dim), numbers.standard_normal(mechanism.dim)
        raw = {
            "dense": dense,
            "dense, reversed": -dense,
            "one axis": axes[0],
            "last axis, reversed": -axes[-1],
            "equal magnitudes": axes.sum(axis=0),
            "equal magnitudes, reversed": -axes.sum(axis=0),
            "equal magnitudes, alternating": (-1.0) ** np.arange(mechanism.dim),
            "two equal, others zero": axes[0] + axes[-1],
        }
        directions = {name: each / float(np.linalg.norm(each)) for name, each in raw.items()}
        dense, opposite = directions["dense"], directions["dense, reversed"]
        symbols = mechanism.layout[-1].alphabet if mechanism.traits.has_symbol else None
        steps = 2 * min((symbols or 3) - 1, _MOST_SYMBOLS)
        targets = {"zero": 0 * dense, "a billionth of the bound": 1e-9 * directions["one axis"]}
        for share, side in ((0.99, "just below"), (1.01, "just above")):
            targets[f"{side} a millionth of the bound, dense"] = share * _TINY * dense
            targets[f"{side} a millionth of the bound, dense, reversed"] = share * _TINY * opposite
        targets |= {f"length {i}/{steps} of the bound": i / steps * dense for i in range(1, steps)}
        targets |= {f"at the bound, {name}": each for name, each in directions.items()}
        for name in ("dense, reversed", "one axis", "equal magnitudes", "equal magnitudes, reversed"):
            targets[f"{_FAR:g} times the bound, {name}"] = _FAR * directions[name]
        bands = {f"length {low:.3g} to {high:.3g} of the bound": (low, high) for low, high in _BANDS}
        targets |= {name: opposite if i % 2 else dense for i, name in enumerate(bands)}
        vectors = {
            name: preimage(self.scheme, (bound * target).astype(np.float32), self.task)
            for name, target in targets.items()
        }
        vectors["raw vector, one axis"] = np.float32(bound) * np.eye(1, self.scheme.dim, dtype=np.float32)[0]
        vectors["raw vector of ones"] = np.full(self.scheme.dim, bound, np.float32)
        unique: dict[tuple[bytes, Band | None], Input] = {}
        for name, x in vectors.items():
            image, band = forward(self.scheme, x, self.task), bands.get(name)
            unique.setdefault((x.tobytes(), band), Input(name=name, x=x, image=image, band=band))
        return [*unique.values()]


@dataclass(frozen=True, kw_only=True, eq=False)
class Input:
    """A vector, or a vector times a uniform factor from a band: the guarantee holds for mixtures as well."""

    name: str
    x: Vector
    image: Vector  # what the mechanism sees of x
    band: Band | None = None

    def vectors(self, count: int, numbers: np.random.Generator) -> npt.NDArray[np.float32]:
        factors = numbers.uniform(*(self.band or (1.0, 1.0)), count).astype(np.float32)
        return factors[:, None] * self.x


def has_density(mechanism: Mechanism) -> bool:
    blank = tuple(np.zeros(column.count, np.uint32) for column in mechanism.layout)
    try:
        mechanism.log_density(blank, np.zeros(mechanism.dim, np.float32), 1.0)
    except NotImplementedError:
        return False
    return True


def task_for(scheme: Scheme, seed: int, *, client: int = 0, round: int = 0, length: float = 1.0) -> Task:
    """Return a task whose bound suits vectors of this length."""
    return Task(round=round, client=client, seed=seed, dim=scheme.dim, bound=length * scheme.unit_bound)


def forward(scheme: Scheme, x: Vector, task: Task) -> Vector:
    """Return the mechanism's input for a vector: the transforms alone."""
    for transform in scheme.transforms:
        x = transform.forward(x, task)
    return x


def preimage(scheme: Scheme, y: Vector, task: Task) -> Vector:
    """The shortest vector that the transforms map to y, by least squares: their inverse is the transpose."""
    stages = len(scheme.transforms)
    if stages == 0:
        return y
    transforms = LinearOperator(
        (y.size, scheme.dim),
        matvec=lambda x: forward(scheme, x.ravel().astype(np.float32), task),
        rmatvec=lambda z: scheme._undo(z.ravel(), task, 0, stages),
        dtype=np.float64,
    )
    solution = lsqr(transforms, y.astype(np.float64), atol=_CLOSE, btol=_CLOSE, iter_lim=_MOST_STEPS)
    return np.asarray(solution[0], np.float32)


def cosine(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> float:
    """Return the cosine of the angle between two vectors, or zero if either is zero."""
    first, second = a.astype(np.float64), b.astype(np.float64)
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths > 0 else 0.0
