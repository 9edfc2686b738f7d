"""The divergence of shuffled reports by brute force, and the formula of their bound in fractions.

Odds e^ε₀ and growth e^ε are fractions here, so that everything is exact.
"""

import itertools
import math
from fractions import Fraction


def levels(odds, near, outputs):
    """(high, low) densities relative to the uniform law for ``near`` of ``outputs`` outputs."""
    low = 1 / (1 + (odds - 1) * Fraction(near, outputs))
    return odds * low, low


def pairs(parts):
    """(α, β, probability) for disjoint near sets; ``parts`` are (odds, near, outputs)."""
    options = []
    for odds, near, outputs in parts:
        (high, low), share = levels(odds, near, outputs), Fraction(near, outputs)
        apart = min(share, 1 - share)
        same = low if share <= Fraction(1, 2) else high
        options.append([(high, low, apart), (low, high, apart), (same, same, 1 - 2 * apart)])
    return [
        tuple(math.prod(each) for each in zip(*chosen, strict=True)) for chosen in itertools.product(*options)
    ]


def law_of_sum(values, count):
    """The law of the sum of ``count`` independent draws from (value, probability)."""
    law = {Fraction(0): Fraction(1)}
    for _ in range(count):
        after = {}
        for total, chance in law.items():
            for value, more in values:
                after[total + value] = after.get(total + value, 0) + chance * more
        law = after
    return law


def formula(parts, share, users, growth):
    """E over m of (1/m) E(L_1 + ... + L_m)₊ in fractions: the right side of Theorem H1."""
    values = [(a - growth * b, chance) for a, b, chance in pairs(parts) if chance]
    total = Fraction(0)
    for m in range(1, users + 1):
        weight = math.comb(users - 1, m - 1) * share ** (m - 1) * (1 - share) ** (users - m)
        excess = sum(max(value, 0) * chance for value, chance in law_of_sum(values, m).items())
        total += weight * excess / m
    return total


def blanket_share(parts):
    """γ = Π b."""
    return math.prod(levels(*part)[1] for part in parts)


def orders_of_passes(users, passes, kind="apart"):
    """All orders of all passes: one pass after the other, alternating, or the same order in each."""
    orders = list(itertools.permutations(range(users)))
    if kind == "shared":
        return [order * passes for order in orders]
    chosen = itertools.product(orders, repeat=passes)
    return [sum(zip(*each, strict=True) if kind == "alternating" else each, ()) for each in chosen]


def view(users, parts, near, orders=None):
    """The law of all reports over all orders; ``near(user, slot, earlier)`` is a near set for each part.

    User 0 is the target; ``orders`` may be those of several passes. A near set may also be a list of
    (probability, near sets): a mixture.
    """
    spaces = [range(outputs) for _, _, outputs in parts]
    reports = list(itertools.product(*spaces))
    scale = math.prod(outputs for _, _, outputs in parts)

    def density(user, slot, earlier):
        chosen = near(user, slot, earlier)
        mixture = chosen if isinstance(chosen, list) else [(Fraction(1), chosen)]
        return {
            report: sum(
                chance * math.prod(levels(*part)[0 if place in part_near else 1] for part, place, part_near in
                                   zip(parts, report, sets, strict=True))
                for chance, sets in mixture
            ) / scale
            for report in reports
        }  # fmt: skip

    law = {}
    orders = orders or orders_of_passes(users, 1)

    def extend(earlier, weights):
        """``weights``: for each order, the probability of the earlier reports."""
        if len(earlier) == len(orders[0]):
            law[earlier] = sum(weights) / len(orders)
            return
        laws = [density(user, len(earlier), earlier) for user in range(users)]
        for report in reports:
            extend(
                (*earlier, report),
                [w * laws[order[len(earlier)]][report] for w, order in zip(weights, orders, strict=True)],
            )

    extend((), [Fraction(1)] * len(orders))
    return law


def divergence(one, other, growth):
    """Σ (P - e^ε P′)₊."""
    return sum(max(one[z] - growth * other[z], 0) for z in one)
