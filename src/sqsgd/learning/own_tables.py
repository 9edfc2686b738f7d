"""The columns of a user's table, a DataFrame or a Hugging Face dataset, as arrays.

pandas and ``datasets`` are not imported here: whoever returns such an object has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LABELS = ("label", "labels", "target")
"""Names of the column with the labels of a table."""
CLIENT = "client"
"""The column of a table that tells whose example it is."""
_REMEDY = "encode it as numbers (pandas.get_dummies makes a column for each value), or drop it"
_LABEL_REMEDY = 'number the classes: .astype("category").cat.codes of a pandas column'

Array = npt.NDArray[Any]
Names = Sequence[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """A table, taken apart: ``names`` are those of the inputs, in their order."""

    inputs: Any
    labels: Any = None
    clients: Any = None
    names: Names = ()


def is_table(value: Any) -> bool:
    """Whether this is a DataFrame or a Hugging Face dataset."""
    return is_frame(value) or _of("datasets", "Dataset", value)


def is_frame(value: Any) -> bool:
    """Whether this is a DataFrame."""
    return _of("pandas", "DataFrame", value)


def are_parts(first: Any, second: Any) -> bool:
    """Whether two tables are training and test data, rather than inputs and labels."""
    if not (is_table(first) and is_table(second)):
        return False
    alike = set(_names(first)) == set(_names(second))
    return alike or not is_frame(first) or any(name in LABELS for name in _names(first))


def read_table(where: str, table: Any, order: Names = ()) -> Columns:
    """Inputs, labels and clients of a table whose columns say which is which.

    ``order``: the columns of the training table, which the test table must have too. ``where`` begins every
    message.
    """
    columns = _distinct(where, table)
    found = [column for column in columns if column in LABELS]
    if len(found) != 1:
        raise ValueError(
            f"{where}table has {' and '.join(found) or 'none'} of the columns {', '.join(LABELS)}; exactly "
            f"one must hold the labels. It has {_listed(columns)}"
        )
    if len(table) == 0:
        raise ValueError(f"{where}table has no rows")
    others = [column for column in columns if column not in (found[0], CLIENT)]
    if not others:
        raise ValueError(f"{where}table has no column besides {_listed(columns)}")
    given = _ordered(where, others, order)
    if is_frame(table):
        return Columns(
            inputs=_frame(where, table, given),
            labels=_column(where, found[0], table[found[0]], _LABEL_REMEDY),
            clients=table[CLIENT].to_numpy() if CLIENT in columns else None,
            names=given,
        )
    arrays = table.with_format("numpy")[:]
    return Columns(
        inputs=_joined(where, {column: arrays[column] for column in given}),
        labels=_checked(where, found[0], np.asarray(arrays[found[0]]), _LABEL_REMEDY),
        clients=arrays.get(CLIENT),
        names=given,
    )


def read_frame(where: str, frame: Any, order: Names = ()) -> Columns:
    """A DataFrame of inputs alone, as numbers."""
    names = _ordered(where, _distinct(where, frame), order)
    return Columns(inputs=_frame(where, frame, names), names=names)


def plain_labels(where: str, value: Any) -> Any:
    """Labels in a Series or a DataFrame as an array; anything else as it is."""
    if _of("pandas", "Series", value):
        return _column(where, str(value.name or "labels"), value, _LABEL_REMEDY)
    if not is_frame(value):
        return value
    columns = [_column(where, name, value[name], _REMEDY) for name in _distinct(where, value)]
    return np.stack(columns, axis=1) if columns else np.empty((len(value), 0))


def _of(package: str, kind: str, value: Any) -> bool:
    """Whether the value is of a class of a package that may not be installed."""
    found = getattr(sys.modules.get(package), kind, None)
    return isinstance(found, type) and isinstance(value, found)


def _names(table: Any) -> list[Any]:
    return list(table.columns if is_frame(table) else table.column_names)


def _listed(names: Names) -> str:
    return ", ".join(map(str, names))


def _distinct(where: str, table: Any) -> list[Any]:
    names = _names(table)
    repeated = [name for place, name in enumerate(names) if name in names[:place]]
    if repeated:
        raise ValueError(f"{where}table has two columns called {repeated[0]!r}; rename or drop one")
    return names


def _ordered(where: str, names: Names, order: Names) -> Names:
    """The names in the order of the training table's."""
    if not order or list(names) == list(order):
        return names
    absent = [name for name in order if name not in names]
    more = [name for name in names if name not in order]
    if absent or more:
        raise ValueError(
            f"{where}table has other columns than the training table: it lacks {_listed(absent) or 'none'}, "
            f"and only it has {_listed(more) or 'none'}"
        )
    return order


def _frame(where: str, frame: Any, names: Names) -> Array:
    """Columns side by side as float32: whole numbers are quantities here."""
    columns = [_column(where, name, frame[name], _REMEDY).astype(np.float32) for name in names]
    return np.stack(columns, axis=1) if columns else np.empty((len(frame), 0), np.float32)


def _column(where: str, name: Any, values: Any, remedy: str) -> Array:
    missing = int(values.isna().sum())
    if missing:
        raise ValueError(f"{where}column {str(name)!r} has {missing:,} missing values; fill them in, or drop "
                         "these rows")  # fmt: skip
    found = values.to_numpy()
    if found.dtype.kind not in "biuf":
        texts = ("object", "str", "string", "category")
        kind = "text or categories" if str(values.dtype) in texts else values.dtype
        raise ValueError(f"{where}column {str(name)!r} holds {kind}; {remedy}")
    return _finite(where, name, found)


def _checked(where: str, name: str, values: Array, remedy: str) -> Array:
    """A column of a Hugging Face dataset, which must hold numbers."""
    if values.dtype.kind == "O" and any(isinstance(value, list | np.ndarray) for value in values):
        raise ValueError(
            f"{where}column {name!r} holds rows of different lengths or images of different sizes; pad or "
            "resize them"
        )
    if values.dtype.kind not in "biuf":
        kind = "text" if values.dtype.kind in "US" else "text, or nothing in some rows"
        raise ValueError(f"{where}column {name!r} holds {kind}; {remedy}")
    return _finite(where, name, values)


def _finite(where: str, name: Any, values: Array) -> Array:
    if values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    if not np.isfinite(found).all():
        raise ValueError(
            f"{where}column {str(name)!r} has missing values, or numbers that are infinite or too large for "
            "float32; fill them in, or drop these rows"
        )
    return found


def _joined(where: str, arrays: Mapping[str, Any]) -> Array:
    """Columns side by side: each a number, a row of numbers or, alone, tokens or an array of any shape."""
    found = {
        column: _checked(where, column, np.asarray(values), _REMEDY) for column, values in arrays.items()
    }
    if len(found) == 1:
        (values,) = found.values()
        if values.ndim in (3, 4) and values.dtype == np.uint8:  # images: channels first
            return np.moveaxis(values, -1, 1) if values.ndim == 4 else values[:, None]
        return values.reshape(-1, 1).astype(np.float32) if values.ndim == 1 else values
    tokens = [column for column, values in found.items() if values.ndim == 2 and values.dtype.kind in "iu"]
    large = [column for column, values in found.items() if values.ndim > 2]
    if len(tokens) > 1 or large:
        what = "rows of whole numbers" if len(tokens) > 1 else "arrays, such as images,"
        raise ValueError(
            f"{where}columns {_listed(list(found))}: {what} in {' and '.join(large or tokens)} are not "
            "joined with other columns; keep one of them (.remove_columns drops the others)"
        )
    return np.concatenate(
        [values.reshape(len(values), -1).astype(np.float32) for values in found.values()], axis=1
    )
