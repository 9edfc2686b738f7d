"""Which scheme sends a whole vector in one report best, for clients that keep nothing between rounds."""

from __future__ import annotations

from dataclasses import dataclass

from sqsgd.schemes import STATELESS, make_scheme


@dataclass(frozen=True, kw_only=True)
class Stateless:
    """A scheme that keeps nothing between rounds, and the relative error of its report for |x| = bound."""

    name: str
    nmse: float
    message_bytes: int


def stateless_choices(*, dim: int, epsilon: float, bits: int) -> list[Stateless]:
    """The schemes of ``STATELESS`` under a budget, the best first.

    All are unbiased, so the order is the same for the mean over any number of clients.

    >>> [choice.name for choice in stateless_choices(dim=3920, epsilon=8.0, bits=512)][0]
    'privunit-index'
    """
    found = []
    for name in STATELESS:
        try:
            scheme = make_scheme(name, dim=dim, epsilon=epsilon, bits=bits)
        except ValueError:  # the bits do not hold it
            continue
        found.append(Stateless(name=name, nmse=scheme.nmse, message_bytes=scheme.bits // 8))
    if not found:
        raise ValueError(f"bits = {bits} cannot hold a report of {dim} numbers at epsilon = {epsilon:g}")
    return sorted(found, key=lambda choice: choice.nmse)
