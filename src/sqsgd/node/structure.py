"""A model as one float32 vector, and how to get its named arrays back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sqsgd.checks import Vector

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
DIGEST_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Names and shapes of a model's arrays, in order. Arrays that are not floats are constants."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Arrays
    order: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Number of weights in all float arrays together."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def unflatten(self, weights: Vector) -> dict[str, npt.NDArray[Any]]:
        """The model's arrays with these weights; constants included."""
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
        """The float arrays as one vector; ValueError unless names and shapes are the model's."""
        given = set(arrays) - set(self.constants)
        if given != set(self.shapes):
            differing = sorted(set(self.shapes) ^ given)
            raise ValueError(f"array names differ from the model's: {', '.join(differing[:5])}")
        for name, shape in self.shapes.items():
            if arrays[name].dtype != np.float32 or arrays[name].shape != shape:
                raise ValueError(
                    f"array {name!r} is {arrays[name].dtype} {arrays[name].shape}; "
                    f"the model's is float32 {shape}"
                )
        return np.concatenate([arrays[name].reshape(-1) for name in self.shapes])


def flatten(arrays: Arrays) -> tuple[Structure, Vector]:
    """A model's structure and its weights as one float32 vector."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and array.dtype != np.float32):
            raise ValueError(f"array {name!r} is {array.dtype}: a model's weights must be float32")
    structure = Structure(
        shapes={name: array.shape for name, array in arrays.items() if array.dtype.kind == "f"},
        constants={name: array for name, array in arrays.items() if array.dtype.kind != "f"},
        order=tuple(arrays),
    )
    if not structure.dim:
        raise ValueError("the model has no float32 array: there is nothing to train")
    return structure, structure.flatten(arrays)


def digest(weights: Vector) -> str:
    """A digest of the weights' bits."""
    return hashlib.blake2b(np.ascontiguousarray(weights).tobytes(), digest_size=DIGEST_BYTES).hexdigest()
