"""Chance on the unit sphere: how much of it lies in a cap, in ball arithmetic."""

from __future__ import annotations

from flint import arb, ctx

_MOST_TERMS = 1 << 13


def edge(log_width: float) -> arb:
    """g from ln(1 - g²): exact enough where the cap is a half sphere and where it is a point."""
    return (-arb(log_width).expm1()).sqrt()


def chance(dim: int, log_width: float) -> tuple[arb, arb, arb]:
    """F = P(t >= g), h = E[t; t >= g] and E[(t - g)+] on the sphere, from ln(1 - g²).

    t is a coordinate of a uniform point; its density is in proportion to (1 - t²)^((d-3)/2).
    h = s^a / (2 a B(a, 1/2)), s = 1 - g², a = (d-1)/2. Far out, F = h K / g with Gauss's continued
    fraction for K = 2F1(1, 1/2; a+1; -s/g²), whose terms are positive, so that what is cut off can be
    enclosed. Near the middle, F = 1/2 - 2 a g h 2F1(1, d/2; 3/2; g²), a series of positive terms.
    """
    log_rest, a = arb(log_width), arb(dim - 1) / 2
    g, square = edge(log_width), -log_rest.expm1()
    log_beta = a.lgamma() + arb.pi().log() / 2 - (a + arb(1) / 2).lgamma()
    moment = (a * log_rest - log_beta).exp() / (dim - 1)
    if square > 0.5 or square * dim > 30:
        rest = _fraction(dim, log_rest.exp() / square)
        return moment / (g * (1 + rest)), moment, moment * rest / (1 + rest)
    tail = arb(1) / 2 - (dim - 1) * g * moment * _series(dim, square)
    return tail, moment, moment - g * tail


def _fraction(dim: int, x: arb) -> arb:
    """k1 x / (1 + k2 x / (1 + ...)), k_i = i (d-2+i) / ((d-3+2i) (d-1+2i)): it is 1/K - 1."""

    def term(i: int) -> arb:
        return x * (i * (dim - 2 + i)) / ((dim - 3 + 2 * i) * (dim - 1 + 2 * i))

    terms = 16
    while True:
        # Not [0, x]: the radius of a ball has 30 bits, so for x above 2^30 that would reach below -1.
        value = arb(0).union(term(terms + 1))
        for i in range(terms, 0, -1):
            value = term(i) / (1 + value)
        if value.rel_accuracy_bits() > ctx.prec - 24 or terms >= _MOST_TERMS:
            return value
        terms *= 2


def _series(dim: int, square: arb) -> arb:
    """2F1(1, d/2; 3/2; g²), until a geometric series bounds the rest below the working precision."""
    total = term = arb(1)
    negligible = arb(2) ** -ctx.prec
    for k in range(_MOST_TERMS):
        term = term * square * (dim + 2 * k) / (3 + 2 * k)
        total += term
        ratio = square * max(dim + 2 * k + 2, 2 * k + 5) / (2 * k + 5)  # of every two terms from here on
        if ratio < 1 and term * ratio / (1 - ratio) < negligible * total:
            return total + (term * ratio / (1 - ratio)).union(arb(0))
    raise ArithmeticError(f"no end of the series for dim = {dim} and g² = {square}")
