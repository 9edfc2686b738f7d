"""Worst-case inputs: hand-picked extremes and hill-climbed pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sqsgd.audit.subject import Floats
from sqsgd.checks import Vector

_SIZES = (1e-4, 0.5, 30.0)  # times the bound: near zero, inside, far outside
_CORNERS, _RANDOM = 8, 6
_CLIMBS = 120


def extreme_inputs(dim: int, bound: float, numbers: np.random.Generator) -> list[Vector]:
    """Cube corners, axis ends and random vectors, each near zero, inside and outside the bound; and zero."""
    signs = np.array(np.meshgrid(*[[1.0, -1.0]] * min(dim, 3))).reshape(min(dim, 3), -1).T[:_CORNERS]
    corners = np.ones((len(signs), dim))
    corners[:, : signs.shape[1]] = signs
    axes = np.eye(dim)[:4]
    spread = numbers.standard_normal((_RANDOM, dim))
    directions = np.concatenate([corners, -corners[:1], axes, -axes, spread])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sizes = [*(size * bound for size in _SIZES)]
    inputs = [size * direction for size in sizes for direction in directions]
    return [x.astype(np.float32) for x in (*inputs, np.zeros(dim))]


@dataclass(frozen=True, kw_only=True, eq=False)
class WorstPair:
    """The two inputs with the largest likelihood ratio, and the output where it occurs."""

    first: Vector
    second: Vector
    output: int
    ratio: float
    """The absolute log-likelihood ratio at the output."""


def worst_pair(inputs: list[Vector], table: Floats, *, one_coordinate: bool) -> WorstPair:
    """Over all pairs, or those that differ in at most one coordinate; the table has one row per output."""
    if not one_coordinate:
        spread = table.max(axis=1) - table.min(axis=1)
        output = int(np.argmax(spread))
        pairs = [(int(np.argmax(table[output])), int(np.argmin(table[output])), output)]
    else:
        pairs = [
            (i, j, int(np.argmax(table[:, i] - table[:, j])))
            for i, x in enumerate(inputs)
            for j, y in enumerate(inputs)
            if i != j and np.count_nonzero(x != y) <= 1
        ]
    best = max(pairs, key=lambda pair: table[pair[2], pair[0]] - table[pair[2], pair[1]])
    i, j, output = best
    ratio = float(table[output, i] - table[output, j])
    return WorstPair(first=inputs[i], second=inputs[j], output=output, ratio=ratio)


def climbed(
    pair: WorstPair,
    density: Callable[[Vector], float],
    bound: float,
    numbers: np.random.Generator,
    *,
    one_coordinate: bool,
) -> WorstPair:
    """The pair after hill climbing: the output's density rises for one input and falls for the other."""
    found = [pair.first, pair.second]
    differing = np.flatnonzero(pair.first != pair.second)
    for which, sign in ((0, 1.0), (1, -1.0)):
        best = sign * density(found[which])
        for _ in range(_CLIMBS):
            change = numbers.standard_normal(pair.first.size) * bound * 10.0 ** numbers.uniform(-4, 1)
            if numbers.random() < 0.5:
                change[numbers.random(change.size) < 0.7] = 0.0
            if one_coordinate:
                kept = np.zeros_like(change)
                kept[differing] = change[differing]
                change = kept
            candidate = (found[which] + change).astype(np.float32)
            value = sign * density(candidate)
            if value > best:
                best, found[which] = value, candidate
    ratio = density(found[0]) - density(found[1])
    return WorstPair(first=found[0], second=found[1], output=pair.output, ratio=ratio)
