"""vqSGD (Gandikota et al. 2021) with the cross-polytope: a random vertex, by randomised response, b times."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.exact import divided, total
from sqsgd.core import Estimate, Mechanism, Privacy, Scheme
from sqsgd.core.codec import Column, Columns, Layout
from sqsgd.core.random import Rng, check_rng, idle_rng
from sqsgd.mechanisms.scalardp import respond
from sqsgd.schemes.budgets import checked_budget, too_few_bytes

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CrossPolytope(Mechanism):
    """x / bound as a mean of vertices ± √d e_i; b are drawn, each through randomised response.

    For |v| <= 1, vertex ± √d e_i has weight |v_i| / √d if its sign is that of v_i, and all 2d share the
    remaining weight equally, which cancels out. Each vertex is ε/b-LDP, exactly, however weights are rounded.
    Vectors longer than ``bound`` are scaled down to it.
    """

    dim: int
    repeats: int
    epsilon: float  # ε/b, of one vertex

    @property
    def identity(self) -> str:
        return f"cross-polytope {self.dim} {self.repeats} {self.epsilon!r}"

    @cached_property
    def layout(self) -> Layout:
        return (Column(self.repeats, 2 * self.dim),)

    @cached_property
    def privacy(self) -> Privacy:
        return Privacy(epsilon=total(self.epsilon, self.repeats), notion="local")

    @cached_property
    def _stays(self) -> exact.InverseCdf:
        return exact.bernoulli(lambda: arb(self.epsilon) - arb(2 * self.dim - 1).log())

    @property
    def inflation(self) -> float:
        """M = (e^ε + 2d - 1) / (e^ε - 1), ε of one vertex: the factor that makes the mean unbiased."""
        return (1 + (2 * self.dim - 1) * math.exp(-self.epsilon)) / -math.expm1(-self.epsilon)

    def _shares(self, x: Vector, bound: float) -> Doubles:
        """|v_i| / √d: the weights of the vertices on v's side beyond the common remainder."""
        shares = np.abs(x.astype(np.float64))
        norm = checks.finite_size("x", math.sqrt(float(shares @ shares)))
        shares /= max(norm, bound) * math.sqrt(self.dim)
        return shares

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        x = checks.shaped("x", x, self.dim)
        sums = np.cumsum(self._shares(x, bound))
        places = np.searchsorted(sums, check_rng(rng).uniforms(self.repeats), side="right")
        codes = np.empty(self.repeats, np.uint32)
        for i, place in enumerate(places.tolist()):
            rest = place >= self.dim
            own = 2 * place + int(x[min(place, self.dim - 1)] < 0)
            other = (idle_rng(), rng)[rest].below(2 * self.dim)
            codes[i] = respond((own, other)[rest], 2 * self.dim, self._stays, rng)
        return (codes,)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        codes = columns[0].astype(np.int64)
        unit = bound * math.sqrt(self.dim) * self.inflation / self.repeats
        return np.bincount(codes >> 1, unit * (1.0 - 2.0 * (codes & 1)), self.dim).astype(np.float64)

    def relative_error(self, share: float) -> float:
        return (self.dim * (self.inflation / share) ** 2 - 1) / self.repeats

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        x = checks.shaped("x", x, self.dim)
        shares, codes = self._shares(x, bound), columns[0].astype(np.int64)
        rest = max(0.0, 1.0 - float(np.sum(shares))) / (2 * self.dim)
        on_its_side = (x[codes >> 1] < 0) == (codes & 1)
        chances = np.minimum(np.where(on_its_side, shares[codes >> 1], 0.0) + rest, 1.0)
        with np.errstate(divide="ignore"):
            kept = np.logaddexp(np.log(chances), np.log1p(-chances) - self.epsilon)
        return float(np.sum(kept - math.log1p((2 * self.dim - 1) * math.exp(-self.epsilon))))


def best_repeats(dim: int, epsilon: float, most: int) -> int:
    """The b up to ``most`` with the least M(ε/b)² / b. The best ε/b is at least 2.18, so b < ε/2 or b = 1."""
    repeats = np.arange(1, min(most, 1 + int(epsilon / 2)) + 1)
    each = epsilon / repeats
    log_inflation = np.log1p((2 * dim - 1) * np.exp(-each)) - np.log(-np.expm1(-each))
    return int(repeats[np.argmin(2 * log_inflation - np.log(repeats))])


def vqsgd(dim: int, epsilon: float, bytes: int | None = None, *, repeats: int | None = None) -> Scheme:
    """Sends several vertices of the cross-polytope with the vector as their mean, sharing the budget.

    Each vertex is sent using a budget of ε/b, where the number of vertices b is optimised for the budget
    unless ``repeats`` is specified.
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bytes)
    most = 10**6
    if bits is not None:
        most = bisect_right(range(1, most + 1), bits, key=lambda count: Column(count, 2 * dim).bits)
        if most == 0:
            raise too_few_bytes(bits, f"one vertex out of {2 * dim}", Column(1, 2 * dim).bits)
    given = None if repeats is None else checks.integer("repeats", repeats, 1, most)
    count = given or best_repeats(dim, epsilon, most)
    mechanism = CrossPolytope(dim=dim, repeats=count, epsilon=divided(epsilon, count))
    return Scheme(name="vqsgd", dim=dim, transforms=(), mechanism=mechanism)
