"""Inputs of the tally: every branch of a mechanism and every length, whatever its density says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqsgd.audit.subject import Floats, Small, forward, preimage
from sqsgd.checks import Vector

_BANDS = 20  # of lengths up to the bound
_BEYOND = ((1.0, 1.5), (1.5, 2.2), (2.2, 3.3), (3.3, 5.0))
_FAR = 30.0
_TINY = 1e-6
"""Mechanisms that send a direction treat vectors shorter than this part of the bound as zero."""
_MOST_SYMBOLS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Input:
    """A vector, or a vector times a uniform factor from a band: the guarantee holds for mixtures as well."""

    name: str
    x: Vector
    image: Vector
    """What the mechanism sees of x."""
    band: tuple[float, float] | None = None


def tally_inputs(small: Small, numbers: np.random.Generator) -> list[Input]:
    """Zero, tiny, all lengths, the middles and edges of norm symbols, ties, sparse, dense, and too long.

    Directions are those that the mechanism sees, after the public transforms; two more are raw vectors.
    """
    dim, bound = small.scheme.mechanism.dim, small.task.bound
    directions = _directions(dim, numbers)
    dense, opposite = directions["dense"], directions["dense, reversed"]
    targets: list[tuple[str, Floats, tuple[float, float] | None]] = [("zero", 0 * dense, None)]
    for part, words in ((0.99 * _TINY, "just below"), (1.01 * _TINY, "just above")):
        targets += [
            (f"{words} a millionth of the bound", part * dense, None),
            (f"{words} a millionth of the bound, reversed", part * opposite, None),
        ]
    targets.append(("a billionth of the bound", 1e-9 * directions["one axis"], None))
    bands = [(i / _BANDS, (i + 1) / _BANDS) for i in range(_BANDS)]
    for i, (low, high) in enumerate([*bands, *_BEYOND]):
        name = f"length {low:.3g} to {high:.3g} of the bound"
        targets.append((name, opposite if i % 2 else dense, (low, high)))
    steps = 2 * _symbols(small)
    targets += [(f"length {i}/{steps} of the bound", i / steps * dense, None) for i in range(1, steps)]
    targets += [(f"at the bound, {name}", each, None) for name, each in directions.items()]
    targets += [
        (f"{_FAR:g} times the bound, {name}", _FAR * directions[name], None)
        for name in ("dense, reversed", "one axis", "equal magnitudes", "equal magnitudes, reversed")
    ]
    found: list[Input] = []
    for name, target, band in targets:
        x = preimage(small.scheme, (bound * target).astype(np.float32), small.task)
        found.append(Input(name=name, x=x, image=forward(small.scheme, x, small.task), band=band))
    for name, raw in (("raw vector, one axis", np.eye(small.scheme.dim)[0]), ("raw vector of ones", 1.0)):
        x = (bound * raw * np.ones(small.scheme.dim)).astype(np.float32)
        found.append(Input(name=name, x=x, image=forward(small.scheme, x, small.task)))
    unique = {(each.x.tobytes(), each.band): each for each in reversed(found)}
    return [*reversed(unique.values())]


def _directions(dim: int, numbers: np.random.Generator) -> dict[str, Floats]:
    axes, ones = np.eye(dim), np.ones(dim)
    dense = numbers.standard_normal(dim)
    found = {
        "dense": dense,
        "dense, reversed": -dense,
        "one axis": axes[0],
        "last axis, reversed": -axes[-1],
        "equal magnitudes": ones,
        "equal magnitudes, reversed": -ones,
        "equal magnitudes, alternating": (-1.0) ** np.arange(dim),
        "two equal, others zero": axes[0] + axes[-1],
    }
    return {name: each / float(np.linalg.norm(each)) for name, each in found.items()}


def _symbols(small: Small) -> int:
    """The steps of the norm symbol's grid; a few where there is no symbol, or where they are many."""
    mechanism = small.scheme.mechanism
    alphabet = mechanism.layout[-1].alphabet if mechanism.has_symbol else None
    return min((alphabet or 3) - 1, _MOST_SYMBOLS)


def differing(one: Input, other: Input) -> int:
    """In how many coordinates of the mechanism's input two inputs may differ."""
    same = one.image == other.image
    for each in (one, other):
        if each.band is not None:
            same &= each.image == 0
    return int(np.count_nonzero(~same))
