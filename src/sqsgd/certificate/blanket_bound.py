"""The blanket bound: (ε, δ) of n reports in a secret order, from the densities of the mechanism.

With probability γ a user's report is drawn from a law that does not depend on the input, the blanket. The
m - 1 users to whom this happens hide the target:

    δ(ε) <= E over m of (1/m) E(L_1 + ... + L_m)₊,   m - 1 ~ Bin(n - 1, γ),   L = α - e^ε β,

where α and β are the densities of the target's two inputs relative to the blanket, at a draw from it.
docs/proofs/shuffled-reports.md proves this, and that what is computed here is never below it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from flint import arb

from sqsgd.certificate.count_cells import count_cells
from sqsgd.certificate.spread_sums import SpreadSums
from sqsgd.numerics import exact
from sqsgd.numerics.exact import Densities

TOLERANCE = 2.0**-10  # of ε, relative
_SLACK_BITS = 14  # about 2^-14 of δ is given away for speed


@dataclass(frozen=True, kw_only=True)
class BlanketBound:
    """The bound for ``users`` reports whose ``parts`` are independent given the input, and a target δ.

    Each part has a high and a low density relative to its blanket, and the same share of high outputs for
    all inputs. ``share`` is γ.

    Guarantees
    ----------
    * ``spent`` is an upper bound of δ(ε), and close to it:
      tests/certificate/test_blanket_bound.py::test_the_bound_is_just_above_the_exact_sum.
    * No choice of near sets exceeds it, adaptive ones included:
      tests/certificate/test_blanket_bound.py::test_no_adaptive_choice_exceeds_the_bound.
    """

    parts: tuple[Densities, ...]
    share: Callable[[], arb]
    users: int
    delta: float

    @cached_property
    def _spare(self) -> int:
        """Bits: a mass of 2^-spare at the largest density is negligible against δ."""
        with exact.precision(exact.START_BITS):
            highest = sum(float(part()[0].log()) for part in self.parts) / math.log(2)
        return math.ceil(_SLACK_BITS + max(0.0, highest) - math.log2(self.delta))

    @cached_property
    def _bits(self) -> int:
        """The precision of masses."""
        return self._spare + self.users.bit_length() + 16

    @cached_property
    def _cells(self) -> tuple[arb, list[tuple[int, arb]]]:
        return count_cells(self.users - 1, self.share(), arb(self.delta) / 2**_SLACK_BITS)

    def _pairs(self) -> list[tuple[arb, arb, arb]]:
        """(α, β, probability) in the worst case, disjoint near sets; α = β in the last one."""
        options = []
        for part in self.parts:
            high, low = part()
            near = (1 - low) / (high - low)  # the share of the near set
            apart = near.min(1 - near)
            same = high if near > 0.5 else low
            options.append([(high, low, apart), (low, high, apart), (same, same, 1 - 2 * apart)])
        return [
            (_product(a for a, _, _ in each), _product(b for _, b, _ in each), _product(p for *_, p in each))
            for each in itertools.product(*options)
        ]

    def spent(self, epsilon: float) -> float:
        """An upper bound of δ(ε)."""
        with exact.precision(self._bits + 64):
            below, cells = self._cells
            *pairs, (base, _, _) = self._pairs()
            growth = arb(epsilon).exp()
            drift = base * (growth - 1)  # L = jump - drift
            jumps = [((a - base) - growth * (b - base), chance) for a, b, chance in pairs]
            unit = max((size for size, _ in jumps), key=float)
            sums = SpreadSums(
                jumps=[(arb(1) if size is unit else size / unit, chance) for size, chance in jumps],
                most=cells[-1][0],
                bits=self._bits,
                spare=self._spare,
            )
            law, total = sums.of(cells[0][0]), below
            step = sums.of(cells[1][0] - cells[0][0]) if len(cells) > 1 else law
            for number, (count, chance) in enumerate(cells):
                if number:
                    law = sums.added(law, step, count)
                total += chance * unit / count * law.excess(count * drift / unit, self._bits)
            return _rounded_up(total)

    def holds(self, epsilon: float) -> bool:
        """Whether δ(ε) <= δ is certified. As δ falls with ε, a smaller ε that is quicker is tried first."""
        return any(self.spent(each) <= self.delta for each in (min(epsilon, 2 * self._guess()), epsilon))

    def epsilon(self, most: float) -> float:
        """The least ε with δ(ε) <= δ, up to ``TOLERANCE`` and never below it.

        ``most`` is an ε that holds with δ = 0, and the result if none below it is certified. The search goes
        upwards from a guess until δ is kept. Then each step asks where the line through the logarithms at
        both ends crosses δ; an end that stays twice counts half (the Illinois rule).
        """
        ends, above = [0.0, self._guess()], [self._excess(0.0), 1.0]
        if above[0] <= 0:
            return 0.0
        while above[1] > 0:
            if ends[0] >= most * (1 - TOLERANCE):
                return most
            ends[1] = min(ends[1], most * (1 - TOLERANCE))
            above[1] = self._excess(ends[1])
            if above[1] > 0:
                ends, above[0] = [ends[1], 2 * ends[1]], above[1]
        last = -1
        while ends[1] - ends[0] > TOLERANCE * ends[1]:
            share = min(max(above[0] / (above[0] - above[1]), 0.01), 0.99)
            guess = ends[0] + (ends[1] - ends[0]) * share
            found = self._excess(guess)
            side = int(found <= 0)
            ends[side], above[side] = guess, found
            if side == last:
                above[1 - side] /= 2
            last = side
        return ends[1]

    def _excess(self, epsilon: float) -> float:
        """ln(δ(ε) / δ), positive unless δ(ε) <= δ is certified."""
        spent = self.spent(epsilon)
        ratio = math.log(max(spent / self.delta, 1e-300))
        return max(ratio, 1e-12) if spent > self.delta else min(ratio, 0.0)

    def _guess(self) -> float:
        """Where the search begins: ε if the sum of the L were Gaussian."""
        with exact.precision(exact.START_BITS):
            count = 1 + (self.users - 1) * float(self.share())
            square = sum(float(chance) * float(a - b) ** 2 for a, b, chance in self._pairs())
        deviation = math.sqrt(square / count)
        low, high = 0.0, 40.0
        for _ in range(40):
            u = (low + high) / 2
            spent = math.exp(-u * u / 2) / math.sqrt(2 * math.pi) - u * math.erfc(u / math.sqrt(2)) / 2
            low, high = (u, high) if deviation * spent > self.delta else (low, u)
        return max(high * deviation, 1e-300)


def blanket_bound(parts: tuple[Densities, ...], users: int, delta: float) -> BlanketBound:
    """The bound of a mechanism with two densities in each part: γ is the product of the low ones."""
    return BlanketBound(
        parts=parts, share=lambda: _product(part()[1] for part in parts), users=users, delta=delta
    )


def generic_bound(epsilon: float, users: int, delta: float) -> BlanketBound:
    """The bound for any ε₀-LDP mechanism (Feldman, McMillan and Talwar 2021, section 3).

    With probability e^-ε₀ a report is drawn from the mean of the target's two laws. These are mixtures of
    two laws, with weights e^ε₀ : 1 and 1 : e^ε₀, so that a fair bit takes the place of the blanket.
    """

    def bit() -> tuple[arb, arb]:
        low = 2 / (arb(epsilon).exp() + 1)
        return 2 - low, low

    return BlanketBound(parts=(bit,), share=lambda: (-arb(epsilon)).exp(), users=users, delta=delta)


def _product(factors: Iterable[arb]) -> arb:
    return math.prod(factors, start=arb(1))


def _rounded_up(ball: arb) -> float:
    """A float that is not below any number of the ball."""
    result = float(ball.upper())
    if not math.isfinite(result):
        raise ArithmeticError(f"{ball} has no upper bound")
    while not arb(result) >= ball:
        result = math.nextafter(result, math.inf)
    return result
