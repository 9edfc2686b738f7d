"""cpSGD (Agarwal et al. 2018): quantised coordinates plus binomial noise, private only in the sum."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np

from sqsgd._internal import checks, exact
from sqsgd._internal.checks import Vector
from sqsgd._internal.geometry import Positions, kept_share, normal_points, round_unbiased, rounding_chance
from sqsgd.core import Estimate, Mechanism, Privacy, Scheme, Transform
from sqsgd.core.codec import Column, Columns, Layout
from sqsgd.core.random import Rng
from sqsgd.core.transforms import Rotate, Subsample
from sqsgd.mechanisms.binomial import BinomialPrivacy, fair_binomial
from sqsgd.schemes.budgets import checked_budget, codes_that_fit, too_few_bytes

MOST_ALPHABET = 2**32
MOST_LEVELS = 1 << 20
_LEVELS = sorted({round(2 ** (step / 4)) for step in range(4, 65)})  # candidates: the minimum is flat
_SLACK = 1 + 2.0**-30  # far more than the rounding error between a vector and its positions on the grid


@dataclass(frozen=True, kw_only=True)
class ShareOfNoise(Mechanism):
    """Each coordinate on a grid of k levels, plus Bin(``trials``, 1/2): a share of the noise of the sum.

    The vector is clipped to norm ``bound``, its n coordinates to ± ``reach`` bound / √n, then rounded without
    bias to k = ``levels`` levels. The noise of ``clients`` reports adds up to Bin(clients · trials, 1/2),
    whose (ε, δ) is ``BinomialPrivacy``: the paper's Theorem 1 is false for large ε. The sensitivities
    follow docs/proofs/binomial.md. A code is as wide as the sum of all ``clients`` codes, as secure
    aggregation adds modulo that.

    Central, not local: (ε, δ) holds for the equally weighted sum of the reports of ``clients`` honest
    clients, as secure aggregation shows it to the server. It does not hold for a single report, when fewer
    clients answer, or for a server that sees reports one by one, as a simulation here does.
    tests/schemes/test_cpsgd.py::test_the_sum_is_as_private_as_claimed, ::test_a_single_report_is_not.

    Unbiased except for clipping, which at the bound shortens the mean by about 0.3 / √n.
    """

    dim: int
    levels: int
    trials: int
    clients: int
    delta: float
    reach: float

    @property
    def identity(self) -> str:
        sizes = f"{self.dim} {self.levels} {self.trials} {self.clients}"
        return f"share of noise {sizes} {self.delta!r} {self.reach!r}"

    @cached_property
    def layout(self) -> Layout:
        return (Column(self.dim, self.alphabet),)

    @property
    def alphabet(self) -> int:
        return self.clients * (self.levels - 1 + self.trials) + 1

    @property
    def accounting(self) -> BinomialPrivacy:
        each = min(self.levels - 1.0, (self.levels - 1) / self.reach * _SLACK + 1)
        return BinomialPrivacy(
            dim=self.dim,
            delta=self.delta,
            l1=self.dim * each * _SLACK,
            l2=math.sqrt(self.dim) * each * _SLACK,
            most=self.levels - 1.0,
        )

    @cached_property
    def privacy(self) -> Privacy:
        epsilon = self.accounting.epsilon(self.clients * self.trials)
        return Privacy(epsilon=epsilon, notion="central", delta=self.delta)

    def _positions(self, x: Vector, bound: float) -> Positions:
        exact_x = checks.shaped("x", x, self.dim).astype(np.float64)
        norm = checks.finite_size("x", float(np.linalg.norm(exact_x)))
        if norm > bound:
            exact_x *= bound / norm
        top = self.levels - 1
        return np.clip(exact_x / self._step(bound) + top / 2, 0.0, float(top))

    def _step(self, bound: float) -> float:
        return 2 * self.reach * bound / math.sqrt(self.dim) / (self.levels - 1)

    def randomize(self, x: Vector, bound: float, rng: Rng) -> Columns:
        position = self._positions(x, bound)
        codes = round_unbiased(position, rng) + fair_binomial(self.trials).draw_many(self.dim, rng)
        return (codes.astype(np.uint32),)

    def estimate(self, columns: Columns, bound: float) -> Estimate:
        """Affine in the codes: the estimate of a mean of codes is the mean of their estimates."""
        return (columns[0].astype(np.float64) - (self.levels - 1 + self.trials) / 2) * self._step(bound)

    def relative_error(self, share: float) -> float:
        """E[(clamped y)² + rounding + noise] - 2 E[y clamped y] + 1 for Gaussian coordinates y."""
        reach = self.reach / share
        step = 2 * reach / (self.levels - 1)
        y = np.clip(normal_points(), -reach, reach)
        part = ((y + reach) / step) % 1.0
        energy = float(np.mean(y**2 + step**2 * part * (1 - part))) + step**2 * self.trials / 4
        return energy - 2 * kept_share(reach) + 1

    def log_density(self, columns: Columns, x: Vector, bound: float) -> float:
        position, total = self._positions(x, bound), 0.0
        for code, at in zip(columns[0].astype(np.int64).tolist(), position, strict=True):
            below = math.floor(at)
            chance = 0.0
            for level, share in zip((below, below + 1), rounding_chance(at, (below, below + 1)), strict=True):
                if share > 0 and 0 <= code - level <= self.trials:
                    heads = partial(exact.log_match_probability, self.trials, 2, code - level)
                    chance += float(share) * math.exp(exact.nearest(heads))
            total += math.log(chance) if chance else -math.inf
        return total


def _best(
    bare: ShareOfNoise, epsilon: float, bits: int | None, whole: int, candidates: list[int]
) -> ShareOfNoise:
    """The least predicted error within the bits; without a limit, the fewest levels within 1 % of it."""
    clients = bare.clients

    @cache
    def draft(size: int, levels: int) -> ShareOfNoise:
        draft = replace(bare, dim=size, levels=levels)
        return replace(draft, trials=-(-draft.accounting.about(epsilon) // clients))

    def fits(mechanism: ShareOfNoise) -> bool:
        if mechanism.alphabet > MOST_ALPHABET:
            return False
        return bits is None or codes_that_fit(bits, mechanism.alphabet) >= mechanism.dim

    def most(levels: int) -> int:
        return bisect_left(range(1, whole + 1), True, key=lambda size: not fits(draft(size, levels)))

    drafts = [draft(size, levels) for levels in candidates if (size := most(levels))]
    if not drafts:
        levels, needed = candidates[0], draft(1, candidates[0]).alphabet
        noise = f"epsilon = {epsilon:g}, delta = {bare.delta:g} and clients = {clients}"
        if needed > MOST_ALPHABET:
            raise ValueError(
                f"levels = {levels} is too many: with the noise of {noise} a code needs {needed} values"
            )
        raise too_few_bytes(bits, f"one coordinate with the noise of {noise}", Column(1, needed).bits)
    errors = [(1 + draft.relative_error(1.0)) / draft.dim for draft in drafts]
    enough = min(errors) * (1.01 if bits is None else 1.0)
    chosen = next(draft for draft, error in zip(drafts, errors, strict=True) if error <= enough)
    while True:  # with exactly the trials that ε requires
        needed = chosen.accounting.least(epsilon, clients)
        final = replace(chosen, trials=-(-needed // clients))
        if fits(final) or final.dim == 1:
            return final
        chosen = replace(chosen, dim=chosen.dim - 1)


def cpsgd(
    dim: int,
    epsilon: float,
    bytes: int | None = None,
    *,
    clients: int = 10,
    delta: float = 1e-5,
    levels: int | None = None,
    reach: float = 3.0,
) -> Scheme:
    """Sends levels with binomial noise, which is only private for the sum under secure aggregation.

    The vector is rotated twice. Then, a rescaled sample that fits into ``bytes`` is quantised, and a share of
    the noise is added by each client.

    The (``epsilon``, ``delta``) guarantee refers to the sum over ``clients`` honest clients. They use the
    same rotation and sample because their codes are added by secure aggregation. By default, ``levels``
    minimises the predicted error. Since the noise of a client consists of an integer number of coin tosses, a
    large ``epsilon`` is not used completely.
    """
    dim, epsilon, bits = checked_budget(dim, epsilon, bytes)
    bare = ShareOfNoise(
        dim=1,
        levels=2,
        trials=1,
        clients=checks.integer("clients", clients, 1, 2**20),
        delta=checks.real("delta", delta, 1e-15, 0.1),
        reach=checks.real("reach", reach, 0.1, 20.0),
    )
    rotate = Rotate(rounds=2, shared=True)
    whole = rotate.out_dim(dim)
    given = None if levels is None else [checks.integer("levels", levels, 2, MOST_LEVELS)]
    mechanism = _best(bare, epsilon, bits, whole, given or _LEVELS)
    sample = Subsample(size=mechanism.dim, shared=True, rescale=True)
    transforms: tuple[Transform, ...] = (rotate,) if mechanism.dim == whole else (rotate, sample)
    return Scheme(name="cpsgd", dim=dim, transforms=transforms, mechanism=mechanism)
