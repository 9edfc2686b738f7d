"""Spherical caps in ball arithmetic: the probability and the mean height of a uniform point in the cap."""

from __future__ import annotations

from flint import arb, ctx

_MOST_TERMS = 1 << 13


def edge(log_width: float) -> arb:
    """g from ln(1 - g²), a form that is precise both for half spheres and for tiny caps."""
    return (-arb(log_width).expm1()).sqrt()


def chance(dim: int, log_width: float) -> tuple[arb, arb, arb]:
    """F = P(t >= g), h = E[t; t >= g] and E[(t - g)+] for a uniform point of the sphere, from ln(1 - g²).

    t is one coordinate of the point; its density is proportional to (1 - t²)^((d-3)/2). With s = 1 - g²
    and a = (d-1)/2, h = s^a / (2 a B(a, 1/2)). Near the middle F = (1 - I_{g²}(1/2, a)) / 2. Far out, where
    Arb's incomplete beta function is slow and loses precision, F = h K / g with Gauss's continued fraction
    for K = 2F1(1, 1/2; a+1; -s/g²): its terms are positive, so the truncation error can be enclosed.
    """
    log_rest, a = arb(log_width), arb(dim - 1) / 2
    g, square = edge(log_width), -log_rest.expm1()
    log_beta = a.lgamma() + arb.pi().log() / 2 - (a + arb(1) / 2).lgamma()
    moment = (a * log_rest - log_beta).exp() / (dim - 1)
    if square > 0.5 or square * dim > 30:
        rest = _fraction(dim, log_rest.exp() / square)
        return moment / (g * (1 + rest)), moment, moment * rest / (1 + rest)
    tail = (1 - square.beta_lower(arb(1) / 2, a, regularized=1)) / 2
    return tail, moment, moment - g * tail


def _fraction(dim: int, x: arb) -> arb:
    """k1 x / (1 + k2 x / (1 + ...)), k_i = i (d-2+i) / ((d-3+2i) (d-1+2i)), which equals 1/K - 1."""

    def term(i: int) -> arb:
        return x * (i * (dim - 2 + i)) / ((dim - 3 + 2 * i) * (dim - 1 + 2 * i))

    terms = 16
    while True:
        # Not [0, x]: a ball's radius has 30 bits, so for x above 2^30 the ball would reach below -1.
        value = arb(0).union(term(terms + 1))
        for i in range(terms, 0, -1):
            value = term(i) / (1 + value)
        if value.rel_accuracy_bits() > ctx.prec - 24 or terms >= _MOST_TERMS:
            return value
        terms *= 2
