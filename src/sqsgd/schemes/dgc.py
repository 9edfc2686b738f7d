"""Deep Gradient Compression (Lin et al. 2018): send the largest coordinates, keep the rest. Not private."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from sqsgd import checks
from sqsgd.checks import Vector
from sqsgd.codec import Column, Columns, Layout, MalformedReport
from sqsgd.core import Estimate, Indices, Mechanism, Scheme
from sqsgd.mechanisms.selection import largest
from sqsgd.randomness import Rng
from sqsgd.schemes._bit_budget import checked_bits, too_few_bits


@dataclass(frozen=True, kw_only=True)
class Largest(Mechanism):
    """The ``count`` coordinates of largest magnitude: their indices in rising order, and values as float32.

    Ties go to the first coordinate. Deterministic: ``rng`` is not used. If all ``dim`` are sent, there are no
    indices. Values are not shortened to 16 bits: sent coordinates leave the residual, so the rounding error
    would never be corrected.

    Guarantees
    ----------
    * Not private: values are sent in the clear, and the indices reveal which coordinates are large.
      tests/schemes/test_clear_schemes.py::test_what_leaks_of_a_vector.
    * Exact on the sent coordinates and zero elsewhere; the residual keeps the others.
      tests/schemes/test_dgc.py::test_the_largest_coordinates_arrive_exactly.
    """

    chooses = True

    dim: int
    count: int

    @property
    def identity(self) -> str:
        return f"largest {self.count} of {self.dim}"

    @cached_property
    def layout(self) -> Layout:
        values = Column(self.count, None)
        return (values,) if self.count == self.dim else (Column(self.count, self.dim), values)

    def _largest(self, x: Vector) -> Columns:
        x = checks.shaped("x", x, self.dim)
        magnitude = np.abs(x)
        checks.finite_size("x", float(np.max(magnitude)))
        if self.count == self.dim:
            return (x,)
        chosen = np.sort(largest(magnitude, self.count))
        return chosen.astype(np.uint32), x[chosen]

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        return self._largest(x)

    def coordinates(self, columns: Columns) -> Indices:
        """The sent coordinates; rejects a report whose indices do not rise strictly."""
        if self.count == self.dim:
            return np.arange(self.dim)
        chosen = columns[0].astype(np.int64)
        if np.any(chosen[1:] <= chosen[:-1]):
            raise MalformedReport("order", "the indices of the report do not rise")
        return chosen

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        whole = np.zeros(self.dim)
        whole[self.coordinates(columns)] = columns[-1]
        return whole

    def add_estimate(self, columns: Columns, bound: float, weight: float, total: Vector) -> None:
        total[self.coordinates(columns)] += (weight * columns[-1].astype(np.float64)).astype(np.float32)

    def relative_error(self, share: float) -> float:
        """The unsent energy for Gaussian coordinates: 1 - 2 (t φ(t) + Φ(-t)), 2 Φ(-t) = k / n.

        It is the error on the whole vector; with a residual, the rest is sent later.
        """
        if self.count == self.dim:
            return 0.0
        normal, tail = NormalDist(), self.count / self.dim / 2
        least = -normal.inv_cdf(tail)
        return 1 - 2 * (least * normal.pdf(least) + tail)

    def unbiased_error(self, share: float) -> float:
        """What is sent has no noise, so of its energy and its overlap with the vector one is the other."""
        lost = self.relative_error(share)
        return lost / (1 - lost)

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        return 0.0 if all(map(np.array_equal, columns, self._largest(x))) else -math.inf


def _affordable(dim: int, bits: int) -> int:
    """How many coordinates fit with their indices, or all of them without."""
    if 32 * dim <= bits:
        return dim
    most = min(dim - 1, bits // 32)
    count = bisect_right(range(1, most + 1), bits, key=lambda k: 32 * k + Column(k, dim).bits)
    if count == 0:
        least = 32 if dim == 1 else 32 + Column(1, dim).bits
        raise too_few_bits(bits, "one coordinate and its index", least)
    return count


def dgc(
    dim: int,
    epsilon: float | None = None,
    bits: int | None = None,
    *,
    count: int | None = None,
    momentum: float = 0.9,
) -> Scheme:
    """The largest coordinates of the accumulated velocity (DGC, Algorithm 4), as many as ``bits`` hold.

    ``federated.client_step`` does momentum correction (the residual accumulates velocities) and factor
    masking (a sent coordinate's velocity is reset). ``count`` fixes the number of coordinates; without it and
    without ``bits`` it is the paper's 0.1 %. If all coordinates are sent, there is no residual. The paper's
    sparsity warm-up, local gradient clipping and layer-wise thresholds are out of scope. ``epsilon`` is
    ignored.
    """
    dim = checks.integer("dim", dim, 1, 2**32 - 1)
    momentum = checks.real("momentum", momentum, 0.0, 0.9999)
    affordable = dim if (bits := checked_bits(bits)) is None else _affordable(dim, bits)
    if count is None:
        count = -(-dim // 1000) if bits is None else affordable
    count = checks.integer("count", count, 1, affordable)
    keeps_rest = count < dim
    return Scheme(
        name="dgc",
        dim=dim,
        transforms=(),
        mechanism=Largest(dim=dim, count=count),
        residual=keeps_rest,
        momentum=momentum if keeps_rest else 0.0,
    )
