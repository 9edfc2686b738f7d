"""A model as one float32 vector, and how to get its named arrays back."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sqsgd._internal.checks import Vector

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
DIGEST_BYTES = 16
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # measured by PyTorch, not trained


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Names, shapes and types of a model's arrays, in order. Arrays that are not floats are constants."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Arrays
    order: tuple[str, ...]
    types: str = ""
    """The type of each array of weights, as NumPy's letters (e, f, d) in order; empty: float32."""

    @property
    def dim(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def sent(self, weights: Vector) -> dict[str, npt.NDArray[Any]]:
        """The model's arrays in their own types, constants included, and no running variance below zero."""
        found, start = dict(self.constants), 0
        for name, letter in zip(self.shapes, self.types or "f" * len(self.shapes), strict=True):
            stop = start + math.prod(self.shapes[name])
            # ascontiguousarray would turn a scalar into an array of one number
            array = np.array(weights[start:stop].reshape(self.shapes[name]), order="C")
            if name.endswith("running_var"):
                array = np.maximum(array, np.float32(0))
            with np.errstate(over="ignore"):
                found[name] = array.astype(letter, copy=False)
            start = stop
        return {name: found[name] for name in self.order}

    def flatten(self, arrays: Arrays) -> Vector:
        """The weights as one float32 vector. Raises ValueError unless names and shapes are the model's."""
        given = set(arrays) - set(self.constants)
        if given != set(self.shapes):
            differing = sorted(set(self.shapes) ^ given)
            raise ValueError(f"array names differ from the model's: {', '.join(differing[:5])}")
        for name, shape in self.shapes.items():
            if arrays[name].dtype.kind != "f" or arrays[name].shape != shape:
                found = f"{arrays[name].dtype} {arrays[name].shape}"
                raise ValueError(f"array {name!r} is {found}; the model's is a float array of shape {shape}")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is not reported
            return np.concatenate([arrays[name].reshape(-1) for name in self.shapes], dtype=np.float32)

    def digest(self, weights: Vector) -> str:
        """Return a digest of the weights as a node receives them, rounded to the arrays' types."""
        return digest(self.flatten(self.sent(weights)))


def flatten(arrays: Arrays) -> tuple[Structure, Vector]:
    """Return a model's structure and its weights."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or (array.dtype.kind == "f" and array.dtype.char not in "efd"):
            raise ValueError(f"array {name!r} is {array.dtype}: weights must be float32, float64 or float16")
    floats = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    structure = Structure(
        shapes={name: array.shape for name, array in floats.items()},
        constants={name: array for name, array in arrays.items() if name not in floats},
        order=tuple(arrays),
        types="".join(array.dtype.char for array in floats.values()),
    )
    if not structure.dim:
        raise ValueError("the model has no array of floats to train")
    return structure, structure.flatten(arrays)


def untrained(structure: Structure, *, per_record: bool = False) -> Iterator[str]:
    """Which arrays are not trained, or not by descent, for the server's log; per record this is an error."""
    measured = [name for name in structure.order if name.endswith(_STATISTICS)]
    if measured and per_record:
        raise ValueError(f"{measured[0]} belongs to a layer that mixes the records of a batch: use GroupNorm")
    others = [name for name in structure.constants if name not in measured]
    if others:
        yield f"arrays without floats are not trained, and stay as they are: {', '.join(others[:6])}"
    if measured:
        yield (
            f"the model has running statistics: {', '.join(measured[:6])}. They are reported among the "
            "weights, with the same noise; counts of batches stay as they are. A layer without them, such as "
            "GroupNorm, needs no such report: docs/flower.md"
        )


def digest(weights: Vector) -> str:
    """Return a digest of the weights' bits."""
    return hashlib.blake2b(np.ascontiguousarray(weights).tobytes(), digest_size=DIGEST_BYTES).hexdigest()
