"""What reports with Gaussian noise cost together: ρ, and ε for a δ.

A report under ρ = L² / 2σ² is, up to a factor within 1 ± 10^-100, processed from the continuous Gaussian
mechanism with ρ (1 + 2^-30): docs/proofs/discrete-gaussian.md. So the tight profile of Gaussians holds.
Reports of sampled records are composed by dp-accounting, whose estimates are upper bounds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from flint import arb, fmpq

from sqsgd._internal import checks, exact
from sqsgd.core import Privacy

MOST_RHO = 512
"""With it σ² is 2^34 in units of the grid: above it the profile of the continuous Gaussian is not claimed."""
LEAST_EPSILON, MOST_EPSILON = 0.001, 1e5
LEAST_DELTA = 1e-12
"""Of sampled reports: dp-accounting's floats and cut tails are not precise enough for a smaller δ."""
_LATTICE = 1 + Fraction(1, 2**30)
_FINE, _MOST_STEPS = 256, 1 << 16
"""dp-accounting's grid of privacy losses has the former number of steps in about a deviation of their sum, or
more, so that a report has at most the latter number. A wider grid only raises ε."""


@dataclass(frozen=True, kw_only=True)
class Uses:
    """``count`` reports that used a record with ρ each, every time with probability ``rate``."""

    rho: Fraction
    count: int = 1
    rate: float = 1.0


def spent(privacy: Privacy, reports: int) -> float:
    """ε after so many reports of a client, rounded up; per record at the guarantee's δ."""
    if privacy.notion != "record":
        return exact.total(privacy.epsilon, reports)
    if reports == privacy.reports:
        return privacy.epsilon
    uses = Uses(rho=privacy.rho, count=-(-reports // privacy.turns), rate=privacy.rate)
    return epsilon_of([uses], privacy.delta)


def epsilon_of(uses: Iterable[Uses], delta: float) -> float:
    """ε of all these reports together at δ, rounded up: adding or removing one record of one silo.

    Guarantees
    ----------
    * Without sampling the tight ε of composed Gaussians; with sampling an upper bound within 0.1 %:
      tests/mechanisms/test_gaussian_account.py.
    """
    checks.real("delta", delta, 1e-300, 0.5)
    every, counts = Fraction(), dict[tuple[Fraction, float], int]()
    for each in uses:
        if each.rate == 1 or delta < LEAST_DELTA:
            every += each.rho * each.count
        elif each.count:
            key = (each.rho, each.rate)
            counts[key] = counts.get(key, 0) + each.count
    if not counts:
        return gaussian_epsilon(every, delta)
    return _sampled_epsilon(every, tuple(sorted(counts.items())), delta)


def mixed_epsilon(uses: Sequence[Uses], pure: Fraction, pure_as_rho: Fraction, delta: float) -> float:
    """ε at δ of ``uses`` and of pure reports, whose ε add up to ``pure`` and zCDP to ``pure_as_rho``."""
    basic = exact.rounded_up(Fraction(epsilon_of(uses, delta)) + pure)
    if not pure:
        return basic
    whole = sum((each.rho * each.count for each in uses), pure_as_rho)
    return min(basic, concentrated_epsilon(whole, delta))


def gaussian_epsilon(rho: Fraction, delta: float) -> float:
    """Return the ε with Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) = δ, μ² = 2ρ (Balle and Wang 2018), rounded up."""
    if rho == 0:
        return 0.0
    above = 2 * (math.sqrt(float(rho) * -math.log(delta)) + float(rho)) + 1  # of zCDP: surely enough
    return _least(lambda epsilon: covers(rho, epsilon, delta), 0.0, above)


def covers(rho: Fraction, epsilon: float, delta: float) -> bool:
    """Return whether unsampled reports that cost ρ in all are (ε, δ)-private, in ball arithmetic."""

    def question() -> bool | None:
        mu, loss = (
            (2 * arb(fmpq(*(rho * _LATTICE).as_integer_ratio()))).sqrt(),
            arb(epsilon) * (1 - arb(2) ** -40),
        )
        found = _normal(mu / 2 - loss / mu) - loss.exp() * _normal(-mu / 2 - loss / mu)
        limit = arb(delta) * (1 - arb(2) ** -40)
        return True if found <= limit else False if found > limit else None

    return exact.settle(question)


def _normal(x: arb) -> arb:
    return (-x / arb(2).sqrt()).erfc() / 2


def most_rho(epsilon: float, delta: float) -> Fraction:
    """The largest ρ of unsampled reports that is (ε, δ)-private, to one part in 10^12, rounded down."""
    low, high = 0.0, epsilon + 1.0  # ρ below ε wherever δ < 1/2
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if covers(Fraction(middle), epsilon, delta) else (low, middle)
    return Fraction(low * (1 - 1e-12))  # so that ``gaussian_epsilon`` of it is not above epsilon


def pure_rho(epsilon: float) -> Fraction:
    """The zCDP of a pure ε-private report: ε tanh(ε/2), rounded up (not above ε²/2; Bun and Steinke 2016)."""
    value = exact.rounded(lambda: arb(epsilon) * (arb(epsilon) / 2).tanh(), math.inf)
    return Fraction(value)


def concentrated_epsilon(rho: Fraction, delta: float) -> float:
    """ε at δ of any ρ-zCDP mechanism: min over α of ρα + (ln(1/(δα)) + (α-1) ln(1-1/α)) / (α-1), rounded up.

    Proposition 12 of Canonne, Kamath and Steinke (2020); every α gives a valid ε.
    """
    if rho == 0:
        return 0.0

    def at(order: float) -> float:
        alpha = arb(order)
        ball = lambda: (  # noqa: E731
            arb(fmpq(*rho.as_integer_ratio())) * alpha
            + (-(arb(delta) * alpha).log() / (alpha - 1) + (-1 / alpha).log1p())
        )
        return exact.rounded(ball, math.inf)

    first = 1 + math.sqrt(-math.log(delta) / float(rho))
    return max(0.0, min(at(1 + (first - 1) * 2 ** (step / 8)) for step in range(-24, 9)))


@lru_cache(maxsize=64)
def _sampled_epsilon(
    every: Fraction, counts: tuple[tuple[tuple[Fraction, float], int], ...], delta: float
) -> float:
    terms = [(float(rho), rate, count) for (rho, rate), count in counts]
    squares = (count * rate**2 * math.expm1(min(2 * rho, 500)) for rho, rate, count in terms)
    total = 2 * float(every) + sum(squares)
    # dp-accounting looks at ten deviations of one report; 500, so that floats hold the exponential
    ends = [(rate, min(rho + 10 * math.sqrt(2 * rho), 500)) for rho, rate, _ in terms]
    largest = max(math.log1p(rate * math.expm1(loss)) for rate, loss in ends)
    width = 2.0 ** math.floor(math.log2(min(1.0, math.sqrt(total)) / _FINE))
    width = max(width, 2.0 ** math.ceil(math.log2(largest / _MOST_STEPS)))
    parts = [_losses(rho, rate, count, width) for (rho, rate), count in counts]
    if every:
        parts.append(_losses(every, 1.0, 1, width))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    return math.nextafter(whole.get_epsilon_for_delta(delta) * (1 + 2.0**-30), math.inf)


@lru_cache(maxsize=64)
def _losses(rho: Fraction, rate: float, count: int, width: float):  # type: ignore[no-untyped-def]
    """The distribution of privacy losses: dp-accounting's, whose estimate is pessimistic."""
    from dp_accounting.pld import privacy_loss_distribution as distributions

    deviation = 1 / math.sqrt(2 * float(rho * _LATTICE) * (1 + 2.0**-40))
    one = distributions.from_gaussian_mechanism(
        deviation,
        sampling_prob=math.nextafter(rate, 1.0) if rate < 1 else 1.0,
        value_discretization_interval=width,
        use_connect_dots=True,
    )
    return one.self_compose(count) if count > 1 else one


@lru_cache(maxsize=64)
def rho_for(epsilon: float, delta: float, count: int, rate: float = 1.0) -> Fraction:
    """Return the largest ρ of a report such that ``count`` of them are (ε, δ)-private together, rounded down.

    Raises:
        ValueError: If there is none up to ``MOST_RHO``, or dp-accounting is not installed.

    >>> rho = rho_for(1.0, 1e-5, count=200)
    >>> round(1 / (2 * float(rho)) ** 0.5, 1)  # σ / L, the noise of a report
    52.8
    """
    checks.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)
    checks.real("delta", delta, 1e-30, 0.1)
    if rate == 1:
        return min(most_rho(epsilon, delta) / count, Fraction(MOST_RHO))
    whole = float(most_rho(min(epsilon, 4.0 * MOST_RHO), delta))
    if delta < LEAST_DELTA:
        raise ValueError(
            f"delta = {delta!r} must be at least {LEAST_DELTA} for sampled batches: use batching = 'disjoint'"
        )
    # the central limit: μ² = T q² (e^{2ρ} - 1); the search needs a few steps around it
    guess = math.log1p(2 * whole / (count * rate**2)) / 2
    low, high = guess / 4, min(4 * guess, float(MOST_RHO))

    def fits(rho: float) -> bool:
        return epsilon_of([Uses(rho=Fraction(rho), count=count, rate=rate)], delta) <= epsilon

    while not fits(low):
        low, high = low / 4, low
    steps = 0
    while high - low > 2e-4 * high and steps < 40:
        middle, steps = (low + high) / 2, steps + 1
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Fraction(low)


def _least(enough, low: float, high: float) -> float:  # type: ignore[no-untyped-def]
    """Return the least float that is enough, to one part in 10^14, from above."""
    while not enough(high):
        high *= 2
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
