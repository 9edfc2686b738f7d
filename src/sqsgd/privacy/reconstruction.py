"""The reconstruction bound: the largest cosine with the true direction that an attacker can reach.

The target is a direction u in r dimensions. The density of the attacker's prior is at most e^ρ₀ times that
of the uniform distribution (paper, line 130). Reports of total ε raise the probability of any set by at most
a factor e^ε, and a guess w is a bet on the cap of directions around it:

    P(<u, w> >= a | reports) <= e^{ε + ρ₀} Cap_r(a),    Cap_r(a) = ½ I_{1-a²}((r-1)/2, ½).

The paper's bound of the cap, √8 exp(-(r-1) a²/2) (line 148), is always larger; as printed, with the
radius √(2-2a) instead of 2-2a, it does not hold.
"""

import math
import sys
from dataclasses import asdict, dataclass

from flint import arb

from sqsgd._internal import checks, exact
from sqsgd._internal.exact import total
from sqsgd._internal.files import worded
from sqsgd._internal.geometry import chance, edge

MOST_DIMENSIONS = 10**12
MOST_ROUNDS = 2**40
_BITS = 192
_FARTHEST = -80.0  # ln(1 - a²) from here on: a is above every float below one


def reconstruction_bound(
    epsilon: float, dimensions: int, probability: float = 1e-6, prior: float = 0.0
) -> float:
    """Return the bound on an attacker's cosine: the least a >= 0 with e^{ε+ρ₀} Cap_r(a) <= p.

    With probability at least 1 - ``probability``, no guess from reports of total ``epsilon`` has a larger
    cosine with the true direction.

    Args:
        epsilon: The total ε of all reports; infinity for a scheme without privacy.
        dimensions: The dimensions r of the direction.
        probability: The probability p with which the bound may fail, above 0.
        prior: The prior knowledge of the attacker as a log density ratio ρ₀.

    Returns:
        The largest cosine; 1.0 means that the bound is vacuous.

    Raises:
        ValueError: If an argument is out of range.

    Guarantees
    ----------
    * Rounded up: the inequality holds at the result, and fails ten units in the last place below it.
      tests/privacy/test_reconstruction.py::test_it_holds_at_the_result_and_fails_just_below
    * No attacker beats it, and one comes close.
      tests/audit/test_attackers.py

    >>> round(reconstruction_bound(400.0, 119850), 4), round(reconstruction_bound(400.0, 512), 3)
    (0.0825, 0.894)
    """
    dimensions = _checked(epsilon, dimensions, probability, prior)
    if epsilon == math.inf:
        return 1.0
    with exact.precision(_BITS):
        if 2 * arb(float(probability)) >= (arb(float(epsilon)) + float(prior)).exp():
            return 0.0  # the half sphere suffices
        if dimensions == 1:
            return 1.0  # a direction is a sign: a guess is either right or wrong
        # ln of the largest share of the sphere that the attacker may bet on
        share = arb(float(probability)).log() - float(epsilon) - float(prior)
        if not share < -arb(2).log():
            share -= arb(2) ** -150  # too close to decide: a is about 1e-40
        if chance(dimensions, _FARTHEST)[0].log() >= share:
            return 1.0
        log_width = _least(dimensions, share)
    return min(1.0, exact.rounded(lambda: edge(log_width), math.inf))


def _checked(epsilon: float, dimensions: int, probability: float, prior: float) -> int:
    if epsilon != math.inf:  # of a scheme without privacy
        checks.real("epsilon", epsilon, 0.0, sys.float_info.max)
    checks.real("prior", prior, 0.0, sys.float_info.max)
    if not checks.real("probability", probability, 0.0, 1.0) > 0:
        raise ValueError(f"probability = {probability!r} must be above 0")
    return checks.integer("dimensions", dimensions, 1, MOST_DIMENSIONS)


def _least(dimensions: int, share: arb) -> float:
    """ln(1 - a²) of the least a that certainly satisfies ln Cap_r(a) <= share.

    By Newton's method in u = √-ln(1 - a²), in which ln Cap is concave, from beyond the solution: by
    Cap <= ½ (1 - a²)^((r-1)/2), or by the tangent at zero, whose slope is at least √((2r-3) / π).
    """
    gap = float((-share - arb(2).log()).mid())
    u = min(math.sqrt(2 * gap / (dimensions - 1)), gap * math.sqrt(math.pi / (2 * dimensions - 3)))
    for _ in range(100):
        tail, moment, _ = chance(dimensions, -u * u)
        slope = (dimensions - 1) * u * moment / (edge(-u * u) * tail)
        step = float(((tail.log() - share) / slope).mid())
        u += step
        if abs(step) <= 2.0**-50 * u:
            break
    start, beyond = u * u * (1 - 2.0**-50), 0
    while not chance(dimensions, -start * (1 + beyond * 2.0**-52))[0].log() <= share:
        beyond += 1 + beyond // 8
    return -start * (1 + beyond * 2.0**-52)


@dataclass(frozen=True, kw_only=True)
class ReconstructionStatement:
    """The reconstruction bound for one or more reports, in numbers and as a sentence."""

    scope: str
    """``"block"``: the coordinates that were sent; ``"full"``: the whole vector."""
    dimensions: int
    rounds: int
    epsilon: float  # the total of all rounds, rounded up
    probability: float
    prior: float
    cosine: float  # the bound

    @property
    def vacuous(self) -> bool:
        return self.cosine >= 1.0

    @property
    def sentence(self) -> str:
        what = "the block that was sent" if self.scope == "block" else "the full vector"
        after = f"After one report (epsilon {self.epsilon:,.12g})"
        if self.rounds > 1:
            after = f"After {self.rounds:,} reports (epsilon {self.epsilon:,.12g} in all)"
        of = f"the direction of {what} ({self.dimensions:,} dimensions)"
        if self.vacuous:
            return f"{after} nothing is guaranteed about {of}: an attacker may know it exactly."
        if _up(self.cosine) == "1":
            return (
                f"{after} almost nothing is guaranteed about {of}: a guess may come as close as a cosine "
                f"of {self.cosine:.15g}."
            )
        belief = "all directions were equally likely to the attacker before"
        if self.prior > 0:
            belief = f"no direction was more than e^{self.prior:g} times likelier to the attacker than chance"
        degrees = math.floor(math.degrees(math.acos(self.cosine)))
        text = (
            f"{after} no guess at {of} comes closer to it than a cosine of {_up(self.cosine)} "
            f"({degrees} degrees), except with probability {self.probability:g}, provided that {belief}."
        )
        return text if self.scope == "block" else f"{text} It says nothing about the block alone."

    def to_dict(self) -> dict[str, object]:
        """Return all fields and the sentence, for JSON."""
        values = {**asdict(self), "vacuous": self.vacuous, "sentence": self.sentence}
        return {name: worded(value) for name, value in values.items()}


def reconstruction_statements(
    epsilon: float, block: int, full: int, rounds: int, probability: float = 1e-6, prior: float = 0.0
) -> tuple[ReconstructionStatement, ...]:
    """For the block and for the full vector, after one round and after all, which add up as in the ledger.

    The worst case for the block: the same coordinates are sent in every round.
    """
    checks.integer("full", full, 1, MOST_DIMENSIONS)
    checks.integer("block", block, 1, full)
    checks.integer("rounds", rounds, 1, MOST_ROUNDS)
    _checked(epsilon, full, probability, prior)
    if probability == 1:
        raise ValueError("probability = 1 makes the bound vacuous; choose a small probability, such as 1e-6")
    return tuple(
        ReconstructionStatement(
            scope=scope,
            dimensions=dimensions,
            rounds=count,
            epsilon=(spent := total(float(epsilon), count)),
            probability=probability,
            prior=prior,
            cosine=reconstruction_bound(spent, dimensions, probability, prior),
        )
        for count in sorted({1, rounds})
        for scope, dimensions in (("block", block), ("full", full))
    )


def _up(cosine: float) -> str:
    """Return the number with three significant digits, rounded up."""
    if cosine == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(cosine)) - 2)
    return f"{math.ceil(cosine / unit) * unit:.3g}"
