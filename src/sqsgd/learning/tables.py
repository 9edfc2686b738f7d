"""A user's own data as tensors: arrays, DataFrames and Hugging Face datasets, recognised by their methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sqsgd.learning.partition import Indices

LABELS, CLIENT = ("label", "labels", "target"), "client"  # columns of a table
_MOST_CLASSES = 1 << 16
_MOST_NAMED, _WIDE = 100, 20.0  # classes of a table; the spread above which a column is called unscaled
_EXPECTED = (
    "expected (inputs, labels), (inputs, labels, clients) or ((train_inputs, train_labels), (test_inputs, "
    "test_labels)); or a DataFrame or Hugging Face dataset"
)
_REMEDY = (
    'encode text as numbers (pandas.get_dummies for inputs, .astype("category").cat.codes for labels), pad '
    "or resize rows of different lengths, or drop it"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Inputs and labels, and the client of each example if the data say so."""

    inputs: torch.Tensor
    labels: torch.Tensor
    owners: Indices | None = None
    columns: Sequence[Any] = ()  # of a table's inputs

    def at(self, places: Indices) -> Examples:
        owners = None if self.owners is None else self.owners[places]
        return Examples(inputs=self.inputs[places], labels=self.labels[places], owners=owners)


def read_examples(name: str, value: Any) -> list[Examples]:
    """The examples in the value that a user's dataset factory returned.

    Args:
        name: The dataset's name, for error messages.
        value: ``(inputs, labels)`` or ``(inputs, labels, clients)`` as arrays or tensors, where inputs may be
            a table; a table with a column called label, labels or target and perhaps one called client; or
            two of these: a pair, or a mapping with ``train`` and ``test`` or ``validation``.

    Returns training and test examples, or one set that is still to be split.
    """
    where, pair = f"dataset {name!r}", False
    if isinstance(value, Mapping):
        if "train" not in value:
            raise ValueError(
                f"{where} returned a {type(value).__name__} of {', '.join(map(str, value))}; "
                "expected train, and test or validation"
            )
        test = value.get("test", value.get("validation"))
        pair, value = test is not None, (value["train"], test) if test is not None else value["train"]
    elif not _is_examples(value):
        raise ValueError(f"{where} returned a {type(value).__name__}; {_EXPECTED}")
    elif not _is_table(value) and len(value) == 2:  # tables, or pairs of inputs and labels
        pair = _is_examples(value[0]) and _is_examples(value[1])
    if not pair:
        return [_examples(f"{where}: ", value)]
    train = _examples(f"{where}: training ", value[0])
    return [train, _examples(f"{where}: test ", value[1], train.columns, test=True)]


def check_shapes(where: str, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Raise ValueError unless there are examples, and as many labels as inputs."""
    if inputs.ndim == 1 and len(inputs) == len(labels):
        raise ValueError(f"{where}inputs are numbers; if each is one example, write inputs.reshape(-1, 1)")
    if inputs.ndim < 2 or labels.ndim < 1 or len(inputs) != len(labels) or len(inputs) == 0:
        raise ValueError(
            f"{where}inputs have shape {tuple(inputs.shape)} and labels {tuple(labels.shape)}; expected "
            "(count, ...) and (count,) with count at least 1"
        )


def _is_table(value: Any) -> bool:
    return (hasattr(value, "iloc") and hasattr(value, "columns")) or hasattr(value, "with_format")


def _is_examples(value: Any) -> bool:
    return _is_table(value) or (isinstance(value, tuple | list) and len(value) in (2, 3))


def _examples(where: str, value: Any, order: Sequence[Any] = (), *, test: bool = False) -> Examples:
    """``order``: the columns of the training table, which the test table must have too."""
    if not _is_examples(value):
        raise ValueError(f"{where}part is a {type(value).__name__}; {_EXPECTED}")
    given, labels, clients = (_taken_apart(where, value, test) if _is_table(value) else (*value, None))[:3]
    columns: Sequence[Any] = ()
    if _is_table(given):
        given = _columns(where, given)
    if isinstance(given, dict):
        columns = order or list(given)
        if set(columns) != set(given):
            differing = ", ".join(map(str, sorted(set(columns) ^ set(given), key=str)))
            raise ValueError(f"{where}table has other columns than the training table: {differing}")
        given = _joined(where, {name: given[name] for name in columns})
    labels = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
    inputs, labels = _numbers(f"{where}inputs", given), _numbers(f"{where}labels", labels)
    check_shapes(where, inputs, labels)
    sets = labels.dtype == torch.bool and labels.ndim > 1  # of labels, for multi-label
    labels = labels.float() if labels.is_floating_point() or sets else labels.long()
    if not labels.is_floating_point() and int(labels.max()) >= _MOST_CLASSES:
        numbers = "number classes 0, 1, 2, ..., or write numbers to predict as floats"
        raise ValueError(f"{where}labels go up to {int(labels.max()):,}; {numbers}")
    if not test and (wrong := _label_problem(labels)):
        raise ValueError(f"{where}{wrong}")
    if inputs.dtype == torch.uint8 and inputs.ndim < 3:
        raise ValueError(
            f"{where}inputs are rows of uint8, which may be numbers, pixels or tokens; write "
            ".astype('float32'), .astype('float32') / 255 or .astype('int64')"
        )
    if inputs.dtype == torch.uint8:
        inputs = inputs.float() / 255
    real = inputs.is_floating_point() or inputs.dtype == torch.bool
    inputs = inputs.float() if real else inputs.long()  # tokens
    owners = None if clients is None else _owners(where, clients, len(labels))
    return Examples(inputs=inputs, labels=labels, owners=owners, columns=columns)


def _label_problem(labels: torch.Tensor) -> str:
    """What is wrong with classes that are known by their numbers; empty if nothing is."""
    if labels.is_floating_point() or labels.ndim > 1 or labels.numel() < 2:
        return ""
    found = labels.unique().tolist()
    if len(found) == 1:
        return f"all labels are {found[0]}: with one class there is nothing to learn"
    if found[0] < 0 or 2 * len(found) > found[-1] + 1 or found[-1] >= _MOST_CLASSES:
        return ""
    return (
        f"labels are {', '.join(map(str, found[:5]))}{', ...' if len(found) > 5 else ''}: number the classes "
        f"0 to {len(found) - 1} (pandas.factorize), or write numbers to predict as floats"
    )


def unscaled(examples: Examples) -> str:
    """One line if columns of a table are wide or narrow; it tells their spread, so it is for simulations."""
    if not examples.columns or not examples.inputs.is_floating_point() or examples.inputs.ndim != 2:
        return ""
    sizes = examples.inputs.abs().amax(dim=0)
    wide = [i for i, size in enumerate(sizes.tolist()) if size > _WIDE or 0 < size < 1 / _WIDE]
    if not wide or len(sizes) != len(examples.columns):
        return ""
    named = ", ".join(f"{examples.columns[i]} (up to {sizes[i].item():.3g})" for i in wide[:5])
    more = f" and {len(wide) - 5} more" if len(wide) > 5 else ""
    return f"columns are not scaled: {named}{more}; give each a public range: ranges = {{name: (low, high)}}"


def _taken_apart(where: str, table: Any, test: bool) -> tuple[dict[Any, Any], Any, Any]:
    """Inputs, labels and clients of a table whose columns say which is which."""
    columns = _columns(where, table)
    found = [name for name in columns if name in LABELS]
    if len(found) != 1:
        raise ValueError(
            f"{where}table has {' and '.join(found) or 'none'} of the columns {', '.join(LABELS)}; exactly "
            f"one must hold the labels. It has {', '.join(map(str, columns))}"
        )
    clients = columns.pop(CLIENT, None)
    numbers = _all_numbers(where, columns, "" if test else found[0])
    labels = numbers.pop(found[0])
    if not numbers:
        raise ValueError(f"{where}table has no column besides labels and clients")
    return numbers, labels, clients


def _all_numbers(where: str, columns: Mapping[Any, Any], label: Any = None) -> dict[Any, torch.Tensor]:
    """The columns as tensors; one ValueError says what is wrong with all of them."""
    found, wrong = dict[Any, torch.Tensor](), list[str]()
    for name, values in columns.items():
        try:
            found[name] = _numbers(f"column {str(name)!r}", values)
        except ValueError as error:
            wrong.append(str(error).removesuffix(f"; {_REMEDY}"))
    if label in found and (problem := _label_problem(found[label])):
        wrong.append(problem)
    if wrong:
        remedy = f"; {_REMEDY}" if any("expected real" in each for each in wrong) else ""
        raise ValueError(f"{where}{listed(wrong)}{remedy}")
    return found


def listed(problems: Sequence[str]) -> str:
    """One problem as it is; several, each on a line of its own."""
    return problems[0] if len(problems) == 1 else "".join(f"\n- {problem}" for problem in problems)


def _columns(where: str, table: Any) -> dict[Any, npt.NDArray[Any]]:
    if len(table) == 0:
        raise ValueError(f"{where}table has no rows")
    if hasattr(table, "with_format"):  # Hugging Face's
        return {name: np.asarray(values) for name, values in table.with_format("numpy")[:].items()}
    if not table.columns.is_unique:
        raise ValueError(f"{where}table has two columns of one name; rename or drop one")
    return {name: table[name].to_numpy() for name in table.columns}


def _joined(where: str, columns: Mapping[Any, npt.NDArray[Any]]) -> torch.Tensor:
    """Columns side by side as float32: whole numbers are quantities. One alone may hold tokens or images."""
    found = _all_numbers(where, columns)
    if len(found) == 1 and (alone := next(iter(found.values()))).ndim > 1:
        if alone.dtype == torch.uint8 and alone.ndim > 2:  # images: channels first
            return alone.movedim(-1, 1) if alone.ndim == 4 else alone[:, None]
        return alone
    tokens = [name for name, values in found.items() if values.ndim == 2 and not values.is_floating_point()]
    large = [name for name, values in found.items() if values.ndim > 2]
    if len(tokens) > 1 or large:
        raise ValueError(
            f"{where}rows of whole numbers or arrays such as images in {' and '.join(large or tokens)} are "
            f"not joined with other columns; keep one of them (.remove_columns drops the others)"
        )
    return torch.cat([values.reshape(len(values), -1).float() for values in found.values()], dim=1)


def _owners(where: str, clients: Any, count: int) -> Indices:
    """The clients' names as numbers 0, 1, 2, ... in the order of the names."""
    names = np.asarray(clients)
    if names.shape != (count,):
        expected = f"expected one for each of the {count:,} examples"
        raise ValueError(f"{where}clients have shape {names.shape}; {expected}")
    kinds = {type(name).__name__ for name in names.tolist()}
    if len(kinds) > 1 or any(name is None or name != name for name in names.tolist()):
        raise ValueError(
            f"{where}clients are of types {' and '.join(sorted(kinds))}, or some are missing; name all of "
            "them by text or all by numbers, or drop these rows"
        )
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _numbers(what: str, value: Any) -> torch.Tensor:
    if not isinstance(value, np.ndarray | torch.Tensor) or isinstance(value, np.ma.MaskedArray):
        raise ValueError(f"{what}: expected an array or a tensor, not a {type(value).__name__}")
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            raise ValueError(f"{what}: expected real numbers, not {value.dtype}; {_REMEDY}")
        value = torch.from_numpy(np.array(value, order="C"))  # a copy: torch warns about read-only arrays
    found: torch.Tensor = value.detach().cpu()
    if found.is_complex():
        raise ValueError(f"{what}: expected real numbers, not {found.dtype}")
    if found.is_floating_point() and not bool(torch.isfinite(found.float()).all()):
        wrong = "missing values, NaN, infinity or numbers too large for float32"
        raise ValueError(f"{what}: {wrong}; fill them in, or drop these rows")
    return found
