"""Runs a sampler once for every outcome of its random choices, and adds up the exact probabilities.

The program under test draws from a ``Choices`` in place of a private generator. ``law`` runs it once for
each path through the tree of choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction

import numpy as np

ONE = 2**53


class Uniform:
    """A uniform multiple of 2^-53 in [0, 1) that decides only when it is compared, once."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def __lt__(self, limit: float) -> bool:
        below = Fraction(min(max(math.ceil(Fraction(limit) * ONE), 0), ONE), ONE)
        return self._choices.choose([below, 1 - below]) == 0

    def __ge__(self, limit: float) -> bool:
        return not self < limit


class Choices:
    """One path through the tree of choices."""

    def __init__(self, path: list[int]) -> None:
        self.path, self.depth, self.probability = path, 0, Fraction(1)
        self.widths: list[int] = []

    def choose(self, chances: Sequence[Fraction]) -> int:
        """A number with these chances; which one, the path says."""
        if self.depth == len(self.path):
            self.path.append(0)
        chosen = self.path[self.depth]
        self.depth += 1
        self.widths.append(len(chances))
        self.probability *= chances[chosen]
        return chosen

    def below(self, bound: int) -> int:
        return self.choose([Fraction(1, bound)] * bound)

    def uniform(self) -> Uniform:
        return Uniform(self)

    def uniforms(self, count: int) -> np.ndarray:
        """A few values in place of all: rounding comes before the private step and may be anything."""
        return np.array([(0.0, 0.4, 0.9)[self.below(3)] for _ in range(count)])


def law(draw: Callable[[Choices], Hashable]) -> dict[Hashable, Fraction]:
    """The exact law of what ``draw`` returns."""
    found: dict[Hashable, Fraction] = {}
    path: list[int] = []
    while True:
        choices = Choices(path)
        outcome = draw(choices)
        found[outcome] = found.get(outcome, Fraction(0)) + choices.probability
        while path and path[-1] == choices.widths[len(path) - 1] - 1:
            path.pop()
        if not path:
            return {key: chance for key, chance in found.items() if chance}
        path[-1] += 1


class Coin:
    """In place of an exact Bernoulli law: 1 with a rational probability."""

    def __init__(self, chance: Fraction) -> None:
        self.chance = chance

    def draw(self, choices: Choices) -> int:
        return 1 - choices.choose([self.chance, 1 - self.chance])


def integers_below(bound: int, count: int, choices: Choices) -> np.ndarray:
    """In place of sqsgd.mechanisms.channels.integers_below."""
    return np.array([choices.below(bound) for _ in range(count)], np.int64)


def largest_ratio(laws: Sequence[dict[Hashable, Fraction]]) -> Fraction:
    """The largest ratio of the probabilities of an outcome under two of the laws."""
    outcomes = set().union(*laws)
    return max(
        max(law.get(key, Fraction(0)) for law in laws) / min(law.get(key, Fraction(0)) for law in laws)
        for key in outcomes
    )
