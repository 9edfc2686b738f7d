"""PrivUnit as an index: a whole vector in two bytes, exactly private, with the error of PrivUnit.

The client sends the index of a vertex ± e_i of a rotated cross-polytope, one of the k nearest with
probability p: k-closest encoding (Isik et al. 2023, "Exact optimality of communication-privacy-utility
tradeoffs").
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.exact import Densities
from sqsgd._internal.geometry import largest_sum
from sqsgd.core import Codes, Scheme
from sqsgd.core.codec import Column
from sqsgd.core.random import Rng
from sqsgd.core.transforms import FEWEST, Rotation, gaussian_rotation, padded, rotated_by
from sqsgd.mechanisms.sparse import MOST_SIZE, NearCodes, SparseLaw
from sqsgd.schemes.budgets import checked_budget, too_few_bytes


@dataclass(frozen=True, kw_only=True)
class NearestVertices(NearCodes):
    """One vertex ± e_i of n coordinates. Each of the ``nearest`` k has odds e^ε against each other vertex.

    Unbiased within 1 %: tests/schemes/test_few_dimensions.py::test_worst_vectors_keep_their_length.
    """

    dim: int
    epsilon: float
    nearest: int
    norm = None

    def __post_init__(self) -> None:
        checks.integer("dim", self.dim, 1, MOST_SIZE)
        checks.real("epsilon", self.epsilon, 0.01, 1e5)
        checks.integer("nearest", self.nearest, 1, self.dim)

    @property
    def identity(self) -> str:
        return f"nearest {self.nearest} of {2 * self.dim} vertices {self.epsilon!r}"

    @cached_property
    def law(self) -> SparseLaw:  # type: ignore[override]
        return SparseLaw(size=self.dim, near=self.nearest, count=1, threshold=1, epsilon=self.epsilon)

    @property
    def code(self) -> tuple[Column, float, Densities]:
        return Column(1, 2 * self.dim), self.epsilon, self.law.weights

    @cached_property
    def _is_near(self) -> exact.InverseCdf:
        others = 2 * self.dim - self.nearest
        return exact.bernoulli(lambda: arb(self.epsilon) + (arb(self.nearest) / others).log())

    def _draw(self, near: Codes, rng: Rng) -> Codes:
        from sqsgd._internal.kernels.sampling import draw_vertices

        side = self._is_near.draw(rng)
        rank = rng.below(self.nearest if side else 2 * self.dim - self.nearest)
        codes = np.empty(1, np.uint32)
        draw_vertices(near[None], np.array([side]), np.array([rank]), codes)
        return codes

    def _draw_many(self, near: Codes, rng: Rng) -> Codes:
        from sqsgd._internal.kernels.sampling import draw_vertices

        sides = self._is_near.draw_many(len(near), rng)
        ranks = rng.below_many(np.where(sides, self.nearest, 2 * self.dim - self.nearest))
        codes = np.empty(len(near), np.uint32)
        draw_vertices(near, sides, ranks, codes)
        return codes[:, None]


def best_nearest(dim: int, epsilon: float, *, central: bool = False) -> int:
    """Return the k with the largest m, on a grid so fine that m varies by a thousandth between neighbours.

    ``central``: the k with the least error for a given central ε instead. The error is about 1/m², and the
    square of the central ε is proportional to E(α - β)² / γ = 2 q (A - B)² / B, q = k / 2n (H1, H3).
    """
    counts = sorted({min(dim, max(1, round(dim * 2 ** (-step / 8)))) for step in range(8 * 25)})

    def log_scale(count: int) -> float:
        rest = math.log(2 * dim) - epsilon
        # ln m = ln S - ln(k + 2n / (e^ε - 1)) + const, without overflow at any ε
        common = math.log(count + math.exp(rest) / -math.expm1(-epsilon))
        length = math.log(largest_sum(dim, count))
        return 2 * length - common - math.log(count) if central else length - common

    return max(counts, key=log_scale)


def privunit_index(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    nearest: int | str | None = None,
    rotation: Rotation = "client",
) -> Scheme:
    """Sends the index of a vertex of a rotated cross-polytope in two bytes, for single-digit values of ε.

    The message size is log2(2 dim) bits. Vectors with fewer than 64 coordinates are padded to 64 coordinates,
    which corresponds to an index of 7 bits.

    The parameter ``nearest`` is the number of vertices with increased probability. By default, it minimises
    the error. With ``nearest="central"``, a smaller number is used. This increases the error of a single
    report but reduces the error for a given central ε (by 5 % at a local ε of 6, 10 % at 2 and 17 % at 1).
    However, it requires more reports and therefore a larger local ε.

    With ``rotation="client"``, each client uses a different rotation. With ``"round"``, the rotation is
    shared by all clients in a round, which allows for counting identical reports.
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bytes, MOST_SIZE)
    size = padded(max(dim, FEWEST))
    needed = Column(1, 2 * size).bits
    if bits is not None and bits < needed:
        raise too_few_bytes(bits, f"an index of {2 * size} vertices", needed)
    if nearest is None or nearest == "central":
        near = best_nearest(size, epsilon, central=nearest is not None)
    else:
        near = checks.integer("nearest", nearest, 1, size)
    mechanism = NearestVertices(dim=size, epsilon=epsilon, nearest=near)
    rotate = gaussian_rotation(dim, near)
    transforms = rotated_by(rotation, (rotate,))
    return Scheme(name="privunit-index", dim=dim, transforms=transforms, mechanism=mechanism)
