"""What a user's dataset factory may return, as tensors: arrays, or tables (learning/own_tables.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sqsgd.learning.own_tables import (
    Columns,
    Names,
    are_parts,
    is_frame,
    is_table,
    plain_labels,
    read_frame,
    read_table,
)
from sqsgd.learning.partition import Indices

_MOST_CLASSES = 1 << 16
_EXPECTED = (
    "expected (inputs, labels), (inputs, labels, clients) or ((train_inputs, train_labels), (test_inputs, "
    "test_labels)); or a DataFrame or Hugging Face dataset"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Examples: inputs and labels, and the client of each if the data say so."""

    inputs: torch.Tensor
    labels: torch.Tensor
    owners: Indices | None = None
    columns: Names = ()
    """The names of a table's inputs."""

    def at(self, places: Indices) -> Part:
        """The examples at these places."""
        owners = None if self.owners is None else self.owners[places]
        return Part(inputs=self.inputs[places], labels=self.labels[places], owners=owners)


def read_parts(name: str, value: Any) -> list[Part]:
    """The training part and the test part, or one part to be split; ValueError names what is wrong."""
    where, two = f"dataset {name!r}: ", False
    if isinstance(value, Mapping):
        test = "test" if "test" in value else "validation"
        if "train" not in value:
            parts = ", ".join(map(str, value)) or "nothing"
            raise ValueError(
                f"dataset {name!r} returned a {type(value).__name__} of {parts}; expected train, and test or "
                "validation"
            )
        two = test in value
        value = (value["train"], value[test]) if two else value["train"]
    if not (two or _is_part(value)):
        length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise ValueError(f"dataset {name!r} returned a {type(value).__name__}{length}; {_EXPECTED}")
    if two or (len(value) == 2 and _are_two(*value)):
        train = _part(f"{where}training ", value[0])
        return [train, _part(f"{where}test ", value[1], train.columns)]
    return [_part(where, value)]


def _is_part(value: Any) -> bool:
    return is_table(value) or (isinstance(value, tuple | list) and len(value) in (2, 3))


def _are_two(first: Any, second: Any) -> bool:
    """Whether a pair is training and test data."""
    if is_table(first) and is_table(second):
        return are_parts(first, second)
    return all(_is_part(part) for part in (first, second)) and not is_table(first)


def _part(where: str, value: Any, order: Names = ()) -> Part:
    if not _is_part(value):
        raise ValueError(f"{where}part is a {type(value).__name__}; {_EXPECTED}")
    found = read_table(where, value, order) if is_table(value) else _of_arrays(where, value, order)
    inputs, labels = _numbers(where, "inputs", found.inputs), _numbers(where, "labels", found.labels)
    if inputs.ndim == 1 and len(inputs) == len(labels):
        raise ValueError(
            f"{where}inputs have shape {tuple(inputs.shape)}; if each is one number, write "
            "inputs.reshape(-1, 1)"
        )
    if inputs.ndim < 2 or labels.ndim < 1 or len(inputs) != len(labels) or len(inputs) == 0:
        raise ValueError(
            f"{where}inputs have shape {tuple(inputs.shape)} and labels {tuple(labels.shape)}; expected "
            "(count, ...) and (count,) with count at least 1"
        )
    sets = labels.dtype == torch.bool and labels.ndim > 1  # of labels, for multi-label
    labels = labels.float() if labels.is_floating_point() or sets else labels.long()
    if not labels.is_floating_point() and int(labels.max()) >= _MOST_CLASSES:
        raise ValueError(
            f"{where}labels go up to {int(labels.max()):,}; number classes 0, 1, 2, ..., "
            "or write numbers to predict as floats"
        )
    owners = None if found.clients is None else _owners(where, found.clients, len(labels))
    return Part(inputs=_as_inputs(where, inputs), labels=labels, owners=owners, columns=found.names)


def _of_arrays(where: str, value: Any, order: Names) -> Columns:
    """The parts of (inputs, labels) or (inputs, labels, clients)."""
    inputs, labels, clients = (*value, None)[:3]
    found = read_frame(where, inputs, order) if is_frame(inputs) else Columns(inputs=inputs)
    return Columns(
        inputs=found.inputs, labels=plain_labels(where, labels), clients=clients, names=found.names
    )


def _as_inputs(where: str, inputs: torch.Tensor) -> torch.Tensor:
    """Pixels scaled to 0..1, floats and flags as float32, other whole numbers (tokens) as int64."""
    if inputs.dtype == torch.uint8:
        if inputs.ndim < 3:
            raise ValueError(
                f"{where}inputs are rows of uint8, which may be numbers, pixels or tokens; write "
                ".astype('float32'), .astype('float32') / 255 or .astype('int64')"
            )
        return inputs.float() / 255
    whole = not inputs.is_floating_point() and inputs.dtype != torch.bool
    return inputs.long() if whole else inputs.float()


def _owners(where: str, clients: Any, count: int) -> Indices:
    """The clients' names as numbers 0, 1, 2, ... in the order of the names."""
    names = np.asarray(clients)
    if names.shape != (count,):
        raise ValueError(
            f"{where}clients have shape {names.shape}; expected one for each of the {count:,} examples"
        )
    missing = sum(map(_is_missing, names.tolist())) if names.dtype.kind in "OfmM" else 0
    if missing:
        raise ValueError(f"{where}clients have {missing:,} missing values; name them, or drop these rows")
    kinds = sorted({type(each).__name__ for each in names.tolist()}) if names.dtype.kind == "O" else []
    if len(kinds) > 1:
        raise ValueError(f"{where}clients are of types {' and '.join(kinds)}; make all of them text")
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _is_missing(value: Any) -> bool:
    """Whether this is None, NaN, or what pandas writes instead."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _numbers(where: str, what: str, value: Any) -> torch.Tensor:
    """A tensor of real, finite numbers."""
    if not isinstance(value, np.ndarray | torch.Tensor):
        raise ValueError(f"{where}{what} are a {type(value).__name__}; expected an array or a tensor")
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{where}{what} are a masked array; fill in what is masked, or drop these rows")
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        raise ValueError(f"{where}{what} are of type {value.dtype}; expected numbers")
    # A copy: torch warns about read-only arrays and rejects negative strides.
    found = (
        value.detach().cpu()
        if isinstance(value, torch.Tensor)
        else torch.from_numpy(np.array(value, order="C"))
    )
    if found.is_complex():
        raise ValueError(f"{where}{what} are {found.dtype}; expected real numbers")
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        raise ValueError(f"{where}{what} contain NaN or infinity")
    return found
