"""What a user's dataset factory may return, as tensors: arrays, DataFrames, Hugging Face datasets.

pandas and ``datasets`` are not imported here: whoever returns such an object has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sqsgd.learning.partition import Indices

LABELS = ("label", "labels", "target")
"""Names of the column with the labels of a table."""
CLIENT = "client"
"""The column of a table that tells whose example it is."""
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

    def at(self, places: Indices) -> Part:
        """The examples at these places."""
        owners = None if self.owners is None else self.owners[places]
        return Part(inputs=self.inputs[places], labels=self.labels[places], owners=owners)


def read_parts(name: str, value: Any) -> list[Part]:
    """The training part and the test part, or one part to be split; ValueError names what is wrong."""
    if isinstance(value, Mapping):
        test = "test" if "test" in value else "validation"
        if "train" not in value:
            parts = ", ".join(map(str, value)) or "nothing"
            raise ValueError(
                f"dataset {name!r} returned a {type(value).__name__} of {parts}; expected train, and test or "
                "validation"
            )
        value = (value["train"], value[test]) if test in value else value["train"]
    if _is_table(value):
        return [_part(name, "", value)]
    if not isinstance(value, tuple | list) or len(value) not in (2, 3):
        length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise ValueError(f"dataset {name!r} returned a {type(value).__name__}{length}; {_EXPECTED}")
    if len(value) == 2 and all(_is_part(part) for part in value):
        return [_part(name, which, part) for which, part in zip(("training ", "test "), value, strict=True)]
    return [_part(name, "", value)]


def _is_part(value: Any) -> bool:
    pair = isinstance(value, tuple | list) and len(value) in (2, 3)
    return pair or (_is_table(value) and bool(_label_columns(value)))


def _is_table(value: Any) -> bool:
    return _of("pandas", "DataFrame", value) or _of("datasets", "Dataset", value)


def _of(package: str, kind: str, value: Any) -> bool:
    """Whether the value is of a class of a package that may not be installed."""
    found = getattr(sys.modules.get(package), kind, None)
    return isinstance(found, type) and isinstance(value, found)


def _label_columns(table: Any) -> list[str]:
    return [column for column in _columns(table) if column in LABELS]


def _columns(table: Any) -> list[str]:
    return list(table.columns if _of("pandas", "DataFrame", table) else table.column_names)


def _part(name: str, which: str, value: Any) -> Part:
    inputs, labels, clients = _from_table(name, which, value) if _is_table(value) else (*value, None)[:3]
    features = _numbers(name, which, "inputs", _plain(name, which, "inputs", inputs))
    classes = _numbers(name, which, "labels", _plain(name, which, "labels", labels))
    if features.ndim < 2 or classes.ndim < 1 or len(features) != len(classes) or len(features) == 0:
        raise ValueError(
            f"dataset {name!r}: {which}inputs have shape {tuple(features.shape)} and labels "
            f"{tuple(classes.shape)}; expected (count, ...) and (count,) with count at least 1"
        )
    if features.dtype == torch.uint8:
        features = features.float() / 255
    else:
        whole = not features.is_floating_point() and features.dtype != torch.bool
        features = features.long() if whole else features.float()
    sets = classes.dtype == torch.bool and classes.ndim > 1  # of labels, for multi-label
    classes = classes.float() if classes.is_floating_point() or sets else classes.long()
    if not classes.is_floating_point() and int(classes.max()) >= _MOST_CLASSES:
        raise ValueError(
            f"dataset {name!r}: {which}labels go up to {int(classes.max()):,}; number classes 0, 1, 2, ..., "
            "or write numbers to predict as floats"
        )
    return Part(inputs=features, labels=classes, owners=_owners(name, which, clients, len(classes)))


def _owners(name: str, which: str, clients: Any, count: int) -> Indices | None:
    """The clients' names as numbers 0, 1, 2, ... in the order of the names."""
    if clients is None:
        return None
    names = np.asarray(clients)
    if names.shape != (count,):
        raise ValueError(
            f"dataset {name!r}: {which}clients have shape {names.shape}; expected one for each of the "
            f"{count:,} examples"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _from_table(name: str, which: str, table: Any) -> tuple[Any, Any, Any]:
    """Inputs, labels and clients of a table whose columns say which is which."""
    columns, found = _columns(table), _label_columns(table)
    if len(found) != 1:
        raise ValueError(
            f"dataset {name!r}: the {which}table has {' and '.join(found) or 'none'} of the columns "
            f"{', '.join(LABELS)}; exactly one must hold the labels. It has {', '.join(map(str, columns))}"
        )
    given = [column for column in columns if column not in (found[0], CLIENT)]
    if not given:
        raise ValueError(f"dataset {name!r}: the {which}table has no column besides {', '.join(columns)}")
    if _of("datasets", "Dataset", table):
        arrays = table.with_format("numpy")[:]
        return (
            _joined(name, which, {column: arrays[column] for column in given}),
            np.asarray(arrays[found[0]]),
            arrays.get(CLIENT),
        )
    clients = table[CLIENT].to_numpy() if CLIENT in columns else None
    return table[given], table[found[0]], clients


def _joined(name: str, which: str, arrays: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Columns side by side: each a number, a row of numbers or, alone, an array of any shape."""
    found = {column: np.asarray(values) for column, values in arrays.items()}
    for column, values in found.items():
        if values.dtype.kind not in "biuf":
            kind = "text" if values.dtype.kind in "US" else "rows of different lengths, text or nothing"
            raise ValueError(f"dataset {name!r}: {which}column {column!r} holds {kind}; {_REMEDY}")
    if len(found) == 1:
        (values,) = found.values()
        if values.ndim in (3, 4) and values.dtype == np.uint8:  # images: channels first
            return np.moveaxis(values, -1, 1) if values.ndim == 4 else values[:, None]
        return values.reshape(len(values), -1) if values.ndim == 1 else values
    return np.concatenate([values.reshape(len(values), -1) for values in found.values()], axis=1)


_REMEDY = "encode it as numbers (pandas.get_dummies makes a column for each value), or drop it"


def _plain(name: str, which: str, what: str, value: Any) -> Any:
    """A DataFrame or Series as an array, after checking that every column holds numbers."""
    if _of("pandas", "Series", value):
        return _column(name, which, str(value.name or what), value)
    if not _of("pandas", "DataFrame", value):
        return value
    columns = [_column(name, which, str(column), value[column]) for column in value.columns]
    return np.stack(columns, axis=1) if columns else np.empty((len(value), 0))


def _column(name: str, which: str, column: str, values: Any) -> npt.NDArray[Any]:
    missing = int(values.isna().sum())
    if missing:
        raise ValueError(
            f"dataset {name!r}: {which}column {column!r} has {missing:,} missing values; fill them in, or "
            "drop these rows"
        )
    found = values.to_numpy()
    if found.dtype.kind not in "biuf":
        kind = (
            "text or categories"
            if str(values.dtype) in ("object", "str", "string", "category")
            else values.dtype
        )
        raise ValueError(f"dataset {name!r}: {which}column {column!r} holds {kind}; {_REMEDY}")
    return found.astype(np.float32) if found.dtype.kind == "f" else found  # type: ignore[no-any-return]


def _numbers(name: str, which: str, what: str, value: Any) -> torch.Tensor:
    """A tensor of real, finite numbers."""
    if not isinstance(value, np.ndarray | torch.Tensor):
        raise ValueError(
            f"dataset {name!r}: {which}{what} are a {type(value).__name__}; expected an array or a tensor"
        )
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        raise ValueError(f"dataset {name!r}: {which}{what} are of type {value.dtype}; expected numbers")
    # A copy: torch warns about read-only arrays and rejects negative strides.
    found = (
        value.detach().cpu()
        if isinstance(value, torch.Tensor)
        else torch.from_numpy(np.array(value, order="C"))
    )
    if found.is_complex():
        raise ValueError(f"dataset {name!r}: {which}{what} are {found.dtype}; expected real numbers")
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        raise ValueError(f"dataset {name!r}: {which}{what} contain NaN or infinity")
    return found
