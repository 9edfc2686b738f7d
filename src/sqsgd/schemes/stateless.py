"""Which scheme to send a whole vector with in one report, where a client keeps nothing for a next one."""

from __future__ import annotations

from dataclasses import dataclass

from sqsgd.schemes.privunit import privunit
from sqsgd.schemes.privunit_index import privunit_index
from sqsgd.schemes.sqsgd import sqsgd_stateless


@dataclass(frozen=True, kw_only=True)
class Stateless:
    """A scheme that keeps nothing between rounds, and the relative error of its report for |x| = bound."""

    name: str
    nmse: float
    message_bytes: int


def stateless_choices(*, dim: int, epsilon: float, bits: int) -> list[Stateless]:
    """Ways to send a whole vector in one report under a budget, the best first.

    Direction-mode PrivQuant, PrivUnit on a grid, and PrivUnit as an index. All are unbiased, so the mean
    over any number of clients keeps their order.

    >>> [choice.name for choice in stateless_choices(dim=3920, epsilon=8.0, bits=512)][0]
    'privunit-index'
    """
    found = []
    for name, make in (
        ("sqsgd-stateless", sqsgd_stateless),
        ("privunit", privunit),
        ("privunit-index", privunit_index),
    ):
        try:
            scheme = make(dim, epsilon, bits)
        except ValueError:  # the bits do not hold it
            continue
        found.append(Stateless(name=name, nmse=scheme.nmse, message_bytes=scheme.bits // 8))
    if not found:
        raise ValueError(f"bits = {bits} hold no report of {dim} numbers at epsilon = {epsilon:g}")
    return sorted(found, key=lambda choice: choice.nmse)
