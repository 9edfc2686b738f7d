"""Vectors whose codes before the private step are known: what was changed in a report can then be seen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sqsgd.audit.subject import Floats, Subject, forward, preimage, task_for
from sqsgd.checks import Vector
from sqsgd.core import Mechanism, Scheme
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.schemes.sqsgd import Direction
from sqsgd.schemes.sqsgd_paper import BoundedRange
from sqsgd.task import Task

Codes = npt.NDArray[np.uint8]
_CLAMPED = 0.9  # a shorter reach than this clamps every coordinate of a flat vector
_MOST_DOUBT = 0.02  # coordinates of a report; their law is corrected to first order in it
_SHARE_OF_BOUND = 0.37  # of the norm, between two symbols, so that its rounding is tried too
TASKS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Certain:
    """A vector for one task, the codes that it is rounded to, and the number that its symbol is about."""

    task: Task
    x: Vector
    codes: Codes
    size: float | None
    doubt: float = 0.0
    """Expected number of coordinates whose code is another: float32 does not hit inner levels exactly."""


def quantizer_of(mechanism: Mechanism) -> PrivQuant | None:
    """The quantiser of a scheme whose codes are PrivQuant's."""
    return mechanism.quantizer if isinstance(mechanism, Direction | BoundedRange) else None


def symbol_of(mechanism: Mechanism) -> ScalarDP | None:
    """What privatises the vector's size, if anything does."""
    if isinstance(mechanism, Direction):
        return mechanism.norm
    return mechanism.largest if isinstance(mechanism, BoundedRange) else None


def certain_vectors(subject: Subject) -> Iterator[Certain]:
    """One for each of some tasks; none where the public steps, or the range, let no vector be certain."""
    scheme, numbers = subject.scheme, subject.numbers("certain")
    for client in range(TASKS):
        task = task_for(scheme, subject.seed, client=client, round=client % 3)
        target = _target(scheme.mechanism, task.bound, numbers)
        found = None if target is None else _reached(scheme, task, *target)
        if found is None:
            return
        yield found


def _target(mechanism: Mechanism, bound: float, numbers: np.random.Generator) -> tuple[Floats, Codes] | None:
    if isinstance(mechanism, BoundedRange):
        levels = mechanism.quantizer.levels
        codes = numbers.integers(0, levels, mechanism.dim).astype(np.uint8)
        return _values(codes, levels, 1.5) * half_range(mechanism, 0.0, bound), codes
    if isinstance(mechanism, Direction):
        flat = _of_reach(mechanism.dim, mechanism.quantizer.levels, mechanism.reach, numbers)
        if flat is not None:
            y, codes = flat
            return y * (_SHARE_OF_BOUND * bound / float(np.linalg.norm(y))), codes
    return None


def _values(codes: Codes, levels: int, stretch: float) -> Floats:
    """The levels' values over [-1, 1]; the ends are stretched outwards, where they are clamped."""
    values = 2.0 * codes / (levels - 1) - 1.0
    return np.where(np.abs(values) == 1.0, stretch * values, values)


def _of_reach(
    dim: int, levels: int, reach: float, numbers: np.random.Generator
) -> tuple[Floats, Codes] | None:
    """Values on the levels of a range of ± reach times their own root mean square.

    With the range as the unit: most coordinates at the innermost levels (± s), m of them at ± a with a >= 1,
    where m a² + (dim - m) s² = dim / reach².
    """
    signs = numbers.integers(0, 2, dim)
    if reach < _CLAMPED:
        return (2.0 * signs - 1.0) * numbers.uniform(1.0, 1.05, dim), (signs * (levels - 1)).astype(np.uint8)
    inner = (levels - 1) // 2 + (signs if levels % 2 == 0 else 0)
    square = float((1 - levels % 2) / (levels - 1)) ** 2
    if not square < min(1.0, 1 / reach**2):
        return None
    count = int(0.95 * dim * (1 / reach**2 - square) / (1 - square))
    if count == 0:
        return None
    outer = np.zeros(dim, bool)
    outer[numbers.choice(dim, count, replace=False)] = True
    codes = np.where(outer, signs * (levels - 1), inner).astype(np.uint8)
    end = math.sqrt((dim / reach**2 - (dim - count) * square) / count)
    return _values(codes, levels, end), codes


def _reached(scheme: Scheme, task: Task, y: Floats, codes: Codes) -> Certain | None:
    """The vector, if the public steps take it so near to y that the codes are all but sure."""
    x = preimage(scheme, y.astype(np.float32), task)
    image = forward(scheme, x, task).astype(np.float64)
    mechanism, bound = scheme.mechanism, task.bound
    quantizer = quantizer_of(mechanism)
    if quantizer is None:
        return None
    norm = float(np.linalg.norm(image))
    top = quantizer.levels - 1
    places = np.clip((image / half_range(mechanism, norm, bound) + 1) * top / 2, 0, top)
    doubt = float(np.abs(places - codes).sum())
    if doubt > _MOST_DOUBT:
        return None
    size = norm if isinstance(mechanism, Direction) else float(np.max(np.abs(image)))
    told = symbol_of(mechanism) is not None
    return Certain(task=task, x=x, codes=codes, size=size / bound if told else None, doubt=doubt)


def half_range(mechanism: Mechanism, norm: float, bound: float) -> float:
    """Of the quantiser: in direction mode it follows the vector's own norm."""
    if isinstance(mechanism, Direction):
        return mechanism.reach * norm / math.sqrt(mechanism.dim)
    if isinstance(mechanism, BoundedRange) and mechanism.reach:
        return mechanism.reach * bound / math.sqrt(mechanism.dim)
    return bound
