"""Vectors whose codes before the private step are known, so that a report shows which codes were changed."""

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
from sqsgd.mechanisms.quantized import Quantized
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.task import Task

Codes = npt.NDArray[np.uint8]
_CLAMPED = 0.9  # a reach below this clamps every coordinate of a flat vector
_MOST_DOUBT = 0.02  # coordinates per report; their law is corrected to first order in it
_SHARE_OF_BOUND = 0.37  # the norm lies between two symbols, so that its rounding is tested too
TASKS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Certain:
    """A vector for one task, the codes that it is rounded to, and its size over the bound for the symbol."""

    task: Task
    x: Vector
    codes: Codes
    size: float | None
    doubt: float = 0.0
    """Expected number of coordinates with another code: float32 does not hit inner levels exactly."""


def quantizer_of(mechanism: Mechanism) -> PrivQuant | None:
    """The quantiser of a mechanism whose codes are PrivQuant's, else None."""
    return mechanism.quantizer if isinstance(mechanism, Quantized) else None


def symbol_of(mechanism: Mechanism) -> ScalarDP | None:
    """The mechanism that privatises the vector's size; None where the size is not reported."""
    return mechanism.symbol if isinstance(mechanism, Quantized) else None


def certain_vectors(subject: Subject) -> Iterator[Certain]:
    """One for each of ``TASKS`` tasks; none where the public steps or the range leave the codes uncertain."""
    scheme, numbers = subject.scheme, subject.numbers("certain")
    mechanism = scheme.mechanism
    if not isinstance(mechanism, Quantized):
        return
    for client in range(TASKS):
        task = task_for(scheme, subject.seed, client=client, round=client % 3)
        target = _target(mechanism, task.bound, numbers)
        found = None if target is None else _reached(scheme, mechanism, task, *target)
        if found is None:
            return
        yield found


def _target(mechanism: Quantized, bound: float, numbers: np.random.Generator) -> tuple[Floats, Codes] | None:
    """A vector on the levels, as the mechanism sees it, and its codes."""
    dim, levels, reach = mechanism.dim, mechanism.quantizer.levels, mechanism.own_reach
    if reach is None:
        codes = numbers.integers(0, levels, dim).astype(np.uint8)
        _, half_range, _ = mechanism.prepared(np.zeros(dim, np.float32), bound)
        return _values(codes, levels, 1.5) * half_range, codes
    flat = _of_reach(dim, levels, reach, numbers)
    if flat is None:
        return None
    y, codes = flat
    return y * (_SHARE_OF_BOUND * bound / float(np.linalg.norm(y))), codes


def _values(codes: Codes, levels: int, stretch: float) -> Floats:
    """The values of codes over [-1, 1]; the ends are stretched outwards, where they are clamped."""
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


def _reached(scheme: Scheme, mechanism: Quantized, task: Task, y: Floats, codes: Codes) -> Certain | None:
    """The vector, if the public steps take it so close to y that its codes are all but certain."""
    x = preimage(scheme, y.astype(np.float32), task)
    image, half_range, size = mechanism.prepared(forward(scheme, x, task), task.bound)
    top = mechanism.quantizer.levels - 1
    places = np.clip((image.astype(np.float64) / half_range + 1) * top / 2, 0, top)
    doubt = float(np.abs(places - codes).sum())
    return None if doubt > _MOST_DOUBT else Certain(task=task, x=x, codes=codes, size=size, doubt=doubt)
