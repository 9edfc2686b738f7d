"""A model as one float32 vector, and how to get its named arrays back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sqsgd._internal.checks import Vector

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
DIGEST_BYTES = 16
TYPES = "efd"
"""NumPy's letters for float16, float32 and float64."""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What PyTorch's normalisation layers measure and do not train."""


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Names and shapes of a model's arrays, in order. Arrays that are not floats are constants."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Arrays
    order: tuple[str, ...]
    types: str = ""
    """The app's own type of each array of weights, as NumPy's letters (e, f, d) in order; empty: float32."""

    @property
    def dim(self) -> int:
        """Number of weights in all float arrays together."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def typed(self, types: str) -> Structure:
        """The same arrays in other types; ValueError unless there is one letter for each array of weights."""
        if types and len(types) != len(self.shapes):
            raise ValueError(
                f"types = {types[:20]!r} must have {len(self.shapes)} letters, one for each array"
            )
        return replace(self, types=types)

    def unflatten(self, weights: Vector) -> dict[str, npt.NDArray[Any]]:
        """The model's arrays for the app: in its types, constants included, and no variance below zero.

        Reports of running variances are noisy like others, and a layer divides by their root.
        """
        arrays = self.sent(weights)
        for name, letter in zip(self.shapes, self.types or "f" * len(self.shapes), strict=True):
            if _last_part(name) == "running_var":
                arrays[name] = np.maximum(arrays[name], np.float32(0))
            with np.errstate(over="ignore"):
                arrays[name] = arrays[name].astype(letter, copy=False)
        return arrays

    def sent(self, weights: Vector) -> dict[str, npt.NDArray[Any]]:
        """The model's arrays as they travel: the weights as they are, in float32."""
        arrays, start = {}, 0
        for name in self.order:
            if name in self.constants:
                arrays[name] = self.constants[name]
                continue
            stop = start + math.prod(self.shapes[name])
            # ascontiguousarray would turn a scalar into an array of one number
            arrays[name] = np.array(weights[start:stop].reshape(self.shapes[name]), order="C")
            start = stop
        return arrays

    def flatten(self, arrays: Arrays) -> Vector:
        """The weights as one float32 vector; ValueError unless names and shapes are the model's."""
        given = set(arrays) - set(self.constants)
        if given != set(self.shapes):
            differing = sorted(set(self.shapes) ^ given)
            raise ValueError(f"array names differ from the model's: {', '.join(differing[:5])}")
        for name, shape in self.shapes.items():
            if arrays[name].dtype.kind != "f" or arrays[name].shape != shape:
                raise ValueError(
                    f"array {name!r} is {arrays[name].dtype} {arrays[name].shape}; "
                    f"the model's is a float array of shape {shape}"
                )
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is not reported
            return np.concatenate([arrays[name].reshape(-1) for name in self.shapes], dtype=np.float32)

    def change(self, weights: Vector, after: Arrays) -> Vector:
        """The weights, rounded to the app's types as it got them, minus those that it returned.

        A variance below zero, which the app gets as zero, counts as it is, so that it moves towards zero.
        """
        if "e" not in self.types:
            return weights - self.flatten(after)
        arrays = self.sent(weights)
        with np.errstate(over="ignore"):
            given = {
                name: arrays[name].astype(letter)
                for name, letter in zip(self.shapes, self.types, strict=True)
            }
        return self.flatten(given) - self.flatten(after)


def flatten(arrays: Arrays) -> tuple[Structure, Vector]:
    """A model's structure and its weights as one float32 vector."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and array.dtype.char not in TYPES):
            raise ValueError(f"array {name!r} is {array.dtype}: weights must be float32, float64 or float16")
    types = "".join(array.dtype.char for array in arrays.values() if array.dtype.kind == "f")
    structure = Structure(
        shapes={name: array.shape for name, array in arrays.items() if array.dtype.kind == "f"},
        constants={name: array for name, array in arrays.items() if array.dtype.kind != "f"},
        order=tuple(arrays),
        types=types if types.strip("f") else "",
    )
    if not structure.dim:
        raise ValueError("the model has no array of floats: there is nothing to train")
    return structure, structure.flatten(arrays)


def untrained(structure: Structure) -> Iterator[str]:
    """Which arrays are not trained, or not by descent, and what becomes of them; for the server's log."""
    measured = [name for name in structure.order if _last_part(name) in _STATISTICS]
    others = [name for name in structure.constants if name not in measured]
    if others:
        yield f"arrays without floats are not trained, and stay as they are: {_listed(others)}"
    if measured:
        yield (
            f"the model has running statistics: {_listed(measured)}. They are reported among the weights, "
            "with the same noise; counts of batches stay as they are. A layer without them, such as "
            "GroupNorm, needs no such report: docs/flower.md"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]


def digest(weights: Vector) -> str:
    """A digest of the weights' bits."""
    return hashlib.blake2b(np.ascontiguousarray(weights).tobytes(), digest_size=DIGEST_BYTES).hexdigest()
