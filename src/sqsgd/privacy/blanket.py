"""The blanket bound: (ε, δ) of n reports in a secret order, from the densities of the mechanism.

With probability γ a user's report is drawn from a law that does not depend on the input, the blanket. The
m - 1 users to whom this happens hide the target:

    δ(ε) <= E over m of (1/m) E(L_1 + ... + L_m)₊,   m - 1 ~ Bin(n - 1, γ),   L = α - e^ε β,

where α and β are the densities of the target's two inputs relative to the blanket, at a draw from it.
docs/proofs/shuffled-reports.md proves this, and that what is computed here is never below it.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from flint import arb, fmpz, fmpz_poly

from sqsgd._internal import exact
from sqsgd._internal.exact import Densities

Sum = TypeVar("Sum")
TOLERANCE = 2.0**-10  # of ε, relative
FINENESS = 2**10  # mean squares over squared steps of the grid
_SLACK_BITS = 14  # about 2^-14 of δ is given away for speed
_CELL = 100  # numbers that differ by one part in so many are treated as the least of them
_REST = 2.0**-6  # the share of the largest numbers that forms one cell
_FRACTION = 64  # bits of a jump's place between two points of the grid
_SHARE = 2**7  # of the mass that a sum may lose, one addition may lose one part in so many


@dataclass(frozen=True, kw_only=True)
class BlanketBound:
    """The bound for ``users`` reports whose ``parts`` are independent given the input; ``share`` is γ.

    Each part has a high and a low density, and the same share of high outputs for all inputs.

    Guarantees
    ----------
    * ``spent`` is an upper bound of δ(ε), and close to it:
      tests/privacy/test_blanket.py::test_the_bound_is_just_above_the_exact_sum.
    * No choice of near sets exceeds it, adaptive ones included:
      tests/privacy/test_blanket.py::test_no_adaptive_choice_exceeds_the_bound.
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
        """Return an upper bound of δ(ε)."""
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
            return rounded_up(total)

    def holds(self, epsilon: float) -> bool:
        """Whether δ(ε) <= δ is certified. As δ falls with ε, a smaller ε that is quicker is tried first."""
        return any(self.spent(each) <= self.delta for each in (min(epsilon, 2 * self._guess()), epsilon))

    def epsilon(self, most: float) -> float:
        """Return the least ε with δ(ε) <= δ, up to ``TOLERANCE`` and never below it; ``most`` if none is
        certified.

        Upwards from a guess until δ is kept, then by false position of the logarithms (the Illinois rule).
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
    """Return the bound of a mechanism with two densities in each part: γ is the product of the low ones."""
    return BlanketBound(
        parts=parts, share=lambda: _product(part()[1] for part in parts), users=users, delta=delta
    )


def generic_bound(epsilon: float, users: int, delta: float) -> BlanketBound:
    """Return the bound for any ε₀-LDP mechanism (Feldman, McMillan and Talwar 2021, section 3).

    With probability e^-ε₀ a report is drawn from the mean of the target's two laws, mixtures with weights
    e^ε₀ : 1 and 1 : e^ε₀, so that a fair bit takes the place of the blanket.
    """

    def bit() -> tuple[arb, arb]:
        low = 2 / (arb(epsilon).exp() + 1)
        return 2 - low, low

    return BlanketBound(parts=(bit,), share=lambda: (-arb(epsilon)).exp(), users=users, delta=delta)


def _product(factors: Iterable[arb]) -> arb:
    return math.prod(factors, start=arb(1))


def rounded_up(ball: arb) -> float:
    """Return a float that is not below any number of the ball."""
    result = float(ball.upper())
    if not math.isfinite(result):
        raise ArithmeticError(f"{ball} has no upper bound")
    while not arb(result) >= ball:
        result = math.nextafter(result, math.inf)
    return result


# ---------------------------------------------------------------- how many users hide the target


def count_cells(trials: int, share: arb, negligible: arb) -> tuple[arb, list[tuple[int, arb]]]:
    """Cells (m, P(m <= M < next m)) of M = 1 + Bin(trials, share), and a bound on P(M < first m).

    The last cell has no upper end. The bound is below ``negligible``. The m are evenly spaced.

    Guarantees
    ----------
    * The cells and the bound cover the law: tests/privacy/test_blanket_sums.py::test_cells_cover_the_law.
    """
    odds = share / (1 - share)
    peak = min(trials, int(float(trials * share)))
    down, below = [_binomial_chance(trials, share, peak)], arb(0)
    for successes in range(peak, 0, -1):
        # P(successes - 1) / P(successes), which falls with the number of successes.
        ratio = successes / ((trials - successes + 1) * odds)
        if ratio < 1 and down[-1] * ratio / (1 - ratio) < negligible:
            below = down[-1] * ratio / (1 - ratio)
            break
        down.append(down[-1] * ratio)
    chances = down[::-1]
    total, term = sum(chances, arb(0)), chances[-1]
    for successes in range(peak + 1, trials + 1):
        if total > 1 - _REST:
            break
        term = term * (trials - successes + 1) * odds / successes
        chances.append(term)
        total += term
    first = peak + 2 - len(down)
    size = max(1, first // _CELL)
    cells = [
        (first + start, sum(chances[start : start + size], arb(0))) for start in range(0, len(chances), size)
    ]
    rest = 1 - sum((chance for _, chance in cells[:-1]), arb(0))
    return below.upper(), [*cells[:-1], (cells[-1][0], rest)]


def _binomial_chance(trials: int, share: arb, successes: int) -> arb:
    """P(Bin(trials, share) = successes)."""
    ways = arb(trials + 1).lgamma() - arb(successes + 1).lgamma() - arb(trials - successes + 1).lgamma()
    failures = trials - successes
    return (ways + successes * share.log() + failures * (-share).log1p()).exp()


# ---------------------------------------------------------------- sums, bounded from above on a grid
#
# A variable is replaced by a larger one in the increasing convex order: a value between two points of the
# grid is split between them with its mean kept, or moved up. Sums keep the order, so E(W - t)₊ of the
# result is an upper bound for the sum. Masses are whole numbers of 2^-bits, rounded down; the mass that is
# missing from a total of one counts at the largest possible value.


@dataclass(frozen=True, kw_only=True)
class GridLaw:
    """``masses`` at the points first, first + 1, ... times 2^exponent. The rest is at ``top`` or below."""

    exponent: int
    first: int
    masses: fmpz_poly
    top: int

    def excess(self, threshold: arb, bits: int) -> arb:
        """Return an upper bound of E(W - threshold)₊."""
        step = arb(2) ** self.exponent
        least = (threshold / step).lower()  # exact, and at most the threshold
        start = max(0, _ceiling(least) - self.first)
        above = self.masses.right_shift(start)
        missing = (fmpz(1) << bits) - self.masses(1)
        whole = arb(above.derivative()(1)) + (self.first + start - least) * arb(above(1))
        if self.top > least:
            whole += (self.top - least) * arb(missing)
        return (whole * step / arb(2) ** bits).upper()


@dataclass(frozen=True, kw_only=True)
class SpreadSums:
    """Sums of up to ``most`` independent jumps, of size s with probability p for each (s, p) of ``jumps``.

    Sizes are relative to the largest. With the remaining probability a jump is zero. Masses have ``bits``
    bits, and a sum of ``most`` jumps loses at most about 2^-spare of its mass.

    Guarantees
    ----------
    * ``excess`` of every sum is an upper bound:
      tests/privacy/test_blanket_sums.py::test_the_excess_is_never_below_the_exact_one.
    """

    jumps: Sequence[tuple[arb, arb]]
    most: int
    bits: int
    spare: int

    # Floats choose the grids and the reach: they decide how close the bound is, not that it is one.

    @cached_property
    def _upward(self) -> list[tuple[float, float]]:
        return [(float(size), float(chance)) for size, chance in self.jumps if float(size) > 0]

    @cached_property
    def _reach(self) -> int:
        """More than all upward jumps together, in effect (Bennett's inequality): what is lower stays lost."""
        mean = max(self.most * sum(chance * size for size, chance in self._upward), 1e-300)
        low, high = mean, mean + 2 * self.spare + 2 * math.sqrt(mean * self.spare) + 2
        for _ in range(30):
            middle = (low + high) / 2
            rare = middle * math.log(middle / mean) - middle + mean > self.spare * math.log(2)
            low, high = (low, middle) if rare else (middle, high)
        return math.ceil(high)

    @cached_property
    def _finest(self) -> int:
        """The grid for single jumps: splitting adds little to the mean square, a little more if many."""
        down = [(max(float(s), -self._reach), float(p)) for s, p in self.jumps if float(s) < 0]
        most = (1 if len(self._upward) == 1 else 8) / FINENESS

        def fine(exponent: int, jumps: list[tuple[float, float]]) -> bool:
            parts = [(size * 2.0**-exponent % 1, chance) for size, chance in jumps]
            added = sum(chance * part * (1 - part) for part, chance in parts) * 4.0**exponent
            return added <= most * _square(jumps)

        return next(e for e in itertools.count(0, -1) if fine(e, self._upward) and fine(e, down))

    def exponent(self, count: int) -> int:
        """Return the grid for sums of ``count`` jumps: a power of two, fine against what varies upward."""
        return max(self._finest, math.floor(math.log2(_square(self._upward) * count / FINENESS) / 2))

    @cached_property
    def single(self) -> GridLaw:
        """One jump: sizes are moved up by less than 2^-64 steps and split between their neighbours."""
        exponent, whole, unit = self.exponent(1), fmpz(1) << self.bits, 1 << _FRACTION
        places: dict[int, fmpz] = {}
        still = arb(1)
        for size, chance in self.jumps:
            clamped = arb(-self._reach) if size < -self._reach else size
            at = _ceiling((clamped * arb(2) ** (_FRACTION - exponent)).upper())
            below, part = at >> _FRACTION, at & (unit - 1)
            mass = _floor((chance * whole).lower())
            places[below] = places.get(below, fmpz(0)) + mass * (unit - part) // unit
            places[below + 1] = places.get(below + 1, fmpz(0)) + mass * part // unit
            still -= chance
        places[0] = places.get(0, fmpz(0)) + _floor((still * whole).lower())
        first, top = min(places), max(places)
        masses = fmpz_poly([places.get(place, fmpz(0)) for place in range(first, top + 1)])
        return GridLaw(exponent=exponent, first=first, masses=masses, top=top)

    def of(self, count: int) -> GridLaw:
        """Return the sum of ``count`` jumps."""
        return repeated(self.single, count, self.added)

    def added(self, one: GridLaw, other: GridLaw, count: int) -> GridLaw:
        """Return the sum of two independent sums, which has ``count`` jumps, on the grid for these."""
        exponent = max(one.exponent, other.exponent)
        one, other = self._coarser(one, exponent), self._coarser(other, exponent)
        law = GridLaw(
            exponent=exponent,
            first=one.first + other.first,
            masses=one.masses * other.masses // (fmpz(1) << self.bits),
            top=one.top + other.top,
        )
        return self._coarser(self._trimmed(law, count), self.exponent(count))

    def _trimmed(self, law: GridLaw, count: int) -> GridLaw:
        """Without the mass at the upper end that may be lost; as much is moved up from the lower end."""
        allowed = (fmpz(1) << (self.bits - self.spare)) * count // (_SHARE * self.most)
        lowest = math.floor(-self._reach * 2.0**-law.exponent)
        start, masses = trimmed(law.masses, allowed, lowest - law.first)
        return replace(law, first=law.first + start, masses=masses)

    @staticmethod
    def _coarser(law: GridLaw, exponent: int) -> GridLaw:
        """On the grid of 2^exponent if that is coarser: odd points are split between their neighbours."""
        while law.exponent < exponent:
            shift = 1 - law.first % 2  # so that the product begins at an even point, below the first one
            spread = (law.masses * fmpz_poly([1, 2, 1])).left_shift(shift)
            law = GridLaw(
                exponent=law.exponent + 1,
                first=(law.first - 1 - shift) // 2,
                masses=fmpz_poly(spread.coeffs()[::2]) // 2,
                top=-(-law.top // 2),
            )
        return law


def repeated(single: Sum, count: int, added: Callable[[Sum, Sum, int], Sum]) -> Sum:
    """Return the sum of ``count`` draws by doubling; ``added`` takes two sums and the draws of both."""
    law, draws = single, 1
    for bit in bin(count)[3:]:
        law, draws = added(law, law, 2 * draws), 2 * draws
        if bit == "1":
            law, draws = added(law, single, draws + 1), draws + 1
    return law


def trimmed(masses: fmpz_poly, allowed: fmpz | int, lowest: int = 0) -> tuple[int, fmpz_poly]:
    """Without a mass of at most ``allowed`` at the upper end; as much moves up to the first place kept.

    What is before the place ``lowest`` moves up in any case.
    """
    length, gone = masses.length(), fmpz(0)
    while length > 1 and (gone := gone + masses[length - 1]) <= allowed:
        length -= 1
    start, moved = 0, fmpz(0)
    while start < length - 1 and (start < lowest or moved + masses[start] <= allowed):
        moved += masses[start]
        start += 1
    return start, masses.truncate(length).right_shift(start) + moved


def _square(jumps: list[tuple[float, float]]) -> float:
    return max(sum(chance * size**2 for size, chance in jumps), 1e-300)


def _ceiling(number: arb) -> int:
    whole = number.ceil().unique_fmpz()
    if whole is None:
        raise ArithmeticError(f"{number} is not exact")
    return int(whole)


def _floor(number: arb) -> fmpz:
    return fmpz(max(0, -_ceiling(-number)))
