"""A user's own data as tensors: arrays, DataFrames and Hugging Face datasets, recognised by their methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad
from torch.utils import data as torch_data

from sqsgd._internal.checks import meant
from sqsgd.learning.factories import one_line
from sqsgd.learning.partition import Indices

LABELS, CLIENT = ("label", "labels", "target"), "client"  # columns of a table
_MOST_CLASSES = 1 << 16
_REMEDIES = {
    "numbers": "give its public range (low, high), with ranges or --column",
    "text": "declare its categories, with categories or --column",
    "dates": "turn them into numbers, such as days since a public date",
}
_MOST_NAMED, _WIDE = 100, 20.0  # classes of a table; the spread above which a column is called unscaled
_OUTSIDE = 0.05  # the share of a column's values above which clipping is told
_TOLD, _BATCH = 5, 1000  # columns that a warning names; examples of a torch Dataset that are read at once
_EXPECTED = (
    "expected (inputs, labels), (inputs, labels, clients) or ((train_inputs, train_labels), (test_inputs, "
    "test_labels)); or a DataFrame, a Hugging Face dataset, or a torch Dataset or DataLoader of such pairs"
)
_REMEDY = (
    'encode text as numbers (pandas.get_dummies for inputs, .astype("category").cat.codes for labels), pad '
    "or resize rows of different lengths, or drop it"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Inputs and labels, and the client of each example if the data name clients."""

    inputs: torch.Tensor
    labels: torch.Tensor
    owners: Indices | None = None
    columns: Sequence[Any] = ()  # of a table's inputs

    def at(self, places: Indices) -> Examples:
        owners = None if self.owners is None else self.owners[places]
        return Examples(inputs=self.inputs[places], labels=self.labels[places], owners=owners)


def read_examples(name: str, value: Any) -> list[Examples]:
    """Training and test examples in what a user's dataset factory returned, or one set, still to be split.

    It may be ``(inputs, labels)`` or ``(inputs, labels, clients)`` as arrays or tensors, the inputs perhaps a
    table or a list of texts; a torch Dataset or DataLoader of such pairs or triples; a table with a column
    called label, labels or target and perhaps one called client; or two of these: a pair, or a mapping with
    ``train`` and ``test`` or ``validation``.
    """
    where, pair = f"dataset {name!r}", False
    if isinstance(value, Mapping):
        if "train" not in value:
            given = f"a {type(value).__name__} of {', '.join(map(str, value))}"
            raise ValueError(f"{where} returned {given}; expected train, and test or validation")
        test = value.get("test", value.get("validation"))
        pair, value = test is not None, (value["train"], test) if test is not None else value["train"]
    elif not _is_examples(value):
        raise ValueError(f"{where} returned a {type(value).__name__}; {_EXPECTED}")
    elif not (_is_table(value) or _is_torch(value)) and len(value) == 2:  # tables, or pairs
        pair = _is_examples(value[0]) and _is_examples(value[1])
    if not pair:
        return [_examples(f"{where}: ", value)]
    train = _examples(f"{where}: training ", value[0])
    test = _examples(f"{where}: test ", value[1], train.columns, test=True)
    if train.inputs.dtype == test.inputs.dtype == torch.uint8:  # texts
        width = max(part.inputs.shape[1] for part in (train, test))
        return [
            replace(part, inputs=pad(part.inputs, (0, width - part.inputs.shape[1])))
            for part in (train, test)
        ]
    return [train, test]


def check_shapes(where: str, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Raise ValueError unless there are examples, and as many labels as inputs."""
    if inputs.ndim == 1 and len(inputs) == len(labels):
        raise ValueError(f"{where}inputs are numbers; if each is one example, write inputs.reshape(-1, 1)")
    if inputs.ndim < 2 or labels.ndim < 1 or len(inputs) != len(labels) or len(inputs) == 0:
        shapes = f"inputs have shape {tuple(inputs.shape)} and labels {tuple(labels.shape)}"
        raise ValueError(f"{where}{shapes}; expected (count, ...) and (count,) with count at least 1")


def _is_table(value: Any) -> bool:
    return (hasattr(value, "iloc") and hasattr(value, "columns")) or hasattr(value, "with_format")


def _is_torch(value: Any) -> bool:
    return isinstance(value, torch_data.Dataset | torch_data.DataLoader)


def _is_examples(value: Any) -> bool:
    known = _is_table(value) or _is_torch(value)
    return known or (isinstance(value, tuple | list) and len(value) in (2, 3))


def _loaded(where: str, value: Any) -> list[torch.Tensor]:
    """Return all examples of a torch Dataset or DataLoader, each read once, in the order of the dataset.

    A loader's sampler decides which examples are used. Its order, its batches and its workers are ignored.
    """
    if not isinstance(value, torch_data.DataLoader):
        value = torch_data.DataLoader(value, batch_size=_BATCH)
    try:
        with torch.random.fork_rng(devices=[]):  # a loader draws, even if it shuffles nothing
            if not isinstance(value.dataset, torch_data.IterableDataset) and value.batch_size is not None:
                more = {"sampler": sorted(value.sampler), "collate_fn": value.collate_fn}
                value = torch_data.DataLoader(value.dataset, batch_size=_BATCH, **more)
            batches = list(value)
        if not all(isinstance(batch, tuple | list) and len(batch) in (2, 3) for batch in batches or [()]):
            raise TypeError(f"{type(batches[0]).__name__} in place of a pair" if batches else "no example")
        found = [torch.cat([torch.as_tensor(part) for part in each]) for each in zip(*batches, strict=True)]
        if len(found) == 3 and found[2].is_floating_point():
            raise TypeError("a third value names the client, by a whole number, not a weight")
        return found
    except Exception as error:
        wanted = "each example must be (input, label) or (input, label, client), all tensors or numbers"
        told = f"{one_line(error)}; {wanted} of one shape: give images a transform"
        raise ValueError(f"{where}{told}") from error


def _examples(where: str, value: Any, order: Sequence[Any] = (), *, test: bool = False) -> Examples:
    """``order``: the columns of the training table, which the test table must have too."""
    if not _is_examples(value):
        raise ValueError(f"{where}part is a {type(value).__name__}; {_EXPECTED}")
    value = _loaded(where, value) if _is_torch(value) else value
    given, labels, clients = (_taken_apart(where, value, test) if _is_table(value) else (*value, None))[:3]
    columns: Sequence[Any] = ()
    texts = isinstance(given, list | tuple | np.ndarray) and {*map(type, given)} in ({str}, {np.str_})
    if _is_table(given):
        given = _columns(where, given)
    if isinstance(given, dict):
        columns = order or list(given)
        if set(columns) != set(given):
            differing = ", ".join(map(str, sorted(set(columns) ^ set(given), key=str)))
            raise ValueError(f"{where}table has other columns than the training table: {differing}")
        given = _joined(where, {name: given[name] for name in columns})
    given = text_rows(given) if texts else given
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
    if inputs.dtype == torch.uint8 and inputs.ndim < 3 and not texts:
        wrong = "inputs are rows of uint8, which may be numbers, pixels or tokens; write .astype('float32')"
        raise ValueError(f"{where}{wrong}, .astype('float32') / 255 or .astype('int64')")
    if inputs.dtype == torch.uint8:
        inputs = inputs if texts else inputs.float() / 255
    elif inputs.is_floating_point() or inputs.dtype == torch.bool:
        inputs = inputs.float()
    else:
        inputs = inputs.long()  # tokens
    owners = None if clients is None else _owners(where, clients, len(labels))
    return Examples(inputs=inputs, labels=labels, owners=owners, columns=columns)


def text_rows(texts: Sequence[str]) -> torch.Tensor:
    """Texts as rows of UTF-8 bytes, filled up with zeros.

    >>> texts_of(text_rows(["tea", "caf\u00e9"]))
    ['tea', 'caf\u00e9']
    """
    rows = np.array([text.encode() for text in texts])
    return torch.from_numpy(rows.view(np.uint8).reshape(len(texts), -1))


def texts_of(rows: torch.Tensor) -> list[str]:
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.numpy()]


def _label_problem(labels: torch.Tensor) -> str:
    """Return the error in classes that are known by their numbers, or an empty string."""
    found = [] if labels.is_floating_point() or labels.ndim > 1 else np.unique(labels.numpy()).tolist()
    if len(found) == 1 and len(labels) > 1:
        return f"all labels are {found[0]}: one class cannot be learned"
    if len(found) < 2 or found[0] < 0 or (found[0] == 0 and 2 * len(found) > found[-1] + 1):
        return ""
    few = str(found[:5])[1:-1] + (", ..." if len(found) > 5 else "")
    numbered = f"number the classes 0 to {len(found) - 1} (pandas.factorize)"
    return f"labels are {few}: {numbered}, or write numbers to predict as floats"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Public facts about a table, with which a row becomes a vector that is at most 1 long.

    A value is scaled from its column's range to -1..1 and clipped; a category becomes a one among zeros. The
    first entry is constant, for the intercept. All are divided by the root of the number of columns. A vector
    depends on its row alone: tests/training/test_estimators.py::test_rows_are_public.
    """

    label: str = ""
    owner: str = ""  # without one, each row belongs to somebody else
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def inputs(self) -> list[str]:
        return [name for name in (*self.ranges, *self.categories) if name not in (self.label, self.owner)]

    def rows(self, table: Any, more: Sequence[str] = ()) -> torch.Tensor:
        """Return the inputs of a table. One ValueError lists these problems and ``more``."""
        if wrong := [*more, *filter(None, (self._problem(table, name) for name in self.inputs))]:
            raise ValueError(f"the table cannot be used: {listed(wrong)}")
        parts = [np.ones((len(table), 1)), *(self._values(table, name) for name in self.inputs)]
        return torch.from_numpy(np.hstack(parts).astype(np.float32)).div(len(parts) ** 0.5)

    def examples(self, table: Any) -> tuple[Examples, list[Any]]:
        """All of a table, and its classes. If the label has a range, it is a number scaled to -1..1."""
        if not len(table) or not table.columns.is_unique:
            twice = table.columns[table.columns.duplicated()].tolist()
            why = f"two columns are called {twice[0]!r}: rename or drop one" if twice else "it has no rows"
            raise ValueError(f"the table cannot be used: {why}")
        named = [self.label, self.owner] if self.owner else [self.label]
        wrong = [text for name in named if (text := self._problem(table, name))]
        for name in table.columns.difference([*self.inputs, self.label, self.owner], sort=False):
            fact = _REMEDIES[kind := _kind(table[name])]
            fact = "name it as owner" if name == CLIENT and not self.owner else fact
            wrong.append(f"column {name!r} holds {kind}: {fact}, or drop it")
        classes = list(self.categories.get(self.label, ()))
        if self.label in table.columns and self.label not in self.ranges:
            classes = classes or sorted(table[self.label].dropna().unique().tolist(), key=str)
            if not 2 <= len(classes) <= _MOST_NAMED:
                wanted = f"write 2 to {_MOST_NAMED}, or give the range of a number to predict"
                wrong.append(f"the label {self.label!r} has {len(classes):,} classes; {wanted}")
        inputs = self.rows(table, wrong)
        values = replace(self, categories={**self.categories, self.label: classes})._values(table, self.label)
        labels = torch.from_numpy(values.argmax(axis=1) if classes else values[:, 0].astype(np.float32))
        owners = _owners("", table[self.owner].astype(str).to_numpy(), len(table)) if self.owner else None
        return Examples(inputs=inputs, labels=labels, owners=owners), classes

    def _values(self, table: Any, name: str) -> npt.NDArray[Any]:
        if name not in self.ranges:
            known = np.array([str(value) for value in self.categories[name]], object)
            return np.asarray(table[name].astype(str).to_numpy(object)[:, None] == known)
        low, high = self.ranges[name]
        shares = (table[name].to_numpy(float)[:, None] - low) / (high - low)
        return np.asarray(np.clip(2 * shares - 1, -1, 1))

    def clipped(self, table: Any) -> str:
        """One line if many values are outside of their ranges; it says how many, so for simulations."""
        shares = {name: 1 - table[name].between(*self.ranges[name]).mean() for name in self.ranges}
        found = [f"{name} ({share:.0%})" for name, share in shares.items() if share > _OUTSIDE]
        return f"values outside of their ranges are clipped: {', '.join(found[:_TOLD])}" if found else ""

    def _problem(self, table: Any, name: str) -> str:
        """Return the error in a column or its declaration, or an empty string."""
        if name not in table.columns:
            hint = meant(name, list(table.columns)) if name else ": set label to the column to predict"
            return f"no column {name!r}{hint}"
        if missing := int(table[name].isna().sum()):
            return f"column {name!r} has {missing:,} missing values: fill them in, or drop these rows"
        if name in self.ranges:
            limits, kind = self.ranges[name], _kind(table[name])
            ends = np.asarray(limits).tolist() if _kind(np.asarray(limits)) == "numbers" else ()
            pair = isinstance(ends, list) and len(ends) == 2 and -np.inf < ends[0] < ends[1] < np.inf
            if not pair or name in self.categories:
                return f"{name!r} has the range {limits}: write (low, high) with low < high, or categories"
            return "" if kind == "numbers" else f"column {name!r} has a range, but holds {kind}"
        chosen = self.categories.get(name, ("a", "b"))
        if isinstance(chosen, str) or len(set(map(str, chosen))) < 2:
            return f"the categories of {name!r} are {chosen!r}: list two or more"
        if name in self.categories and not (known := self._values(table, name).any(axis=1)).all():
            return f"column {name!r} has undeclared categories: {table[name][~known].unique().tolist()[:9]}"
        return ""


def _kind(column: Any) -> str:
    kind = column.dtype.kind
    return "numbers" if kind in "biuf" else "dates" if kind in "mM" else "text"


def unscaled(examples: Examples) -> str:
    """One line if columns are wide, or a table's narrow. It tells their spread, so it is for simulations."""
    if examples.inputs.ndim != 2 or not examples.inputs.is_floating_point():
        return ""
    sizes = examples.inputs.abs().amax(dim=0).tolist()
    named = len(examples.columns) == len(sizes)
    names, least = (examples.columns, 1 / _WIDE) if named else ([f"column {i}" for i in range(len(sizes))], 0)
    found = zip(names, sizes, strict=True)
    wide = [f"{name} (up to {size:.3g})" for name, size in found if size > _WIDE or 0 < size < least]
    more = f" and {len(wide) - _TOLD} more" if len(wide) > _TOLD else ""
    remedy = "give each a public range (ranges)" if named else "divide each by a public constant"
    return f"columns are not scaled: {', '.join(wide[:_TOLD])}{more}; {remedy}" if wide else ""


def _taken_apart(where: str, table: Any, test: bool) -> tuple[dict[Any, Any], Any, Any]:
    """Inputs, labels and clients of a table whose columns say which is which."""
    columns = _columns(where, table)
    found = [name for name in columns if name in LABELS]
    if len(found) != 1:
        has = f"{' and '.join(found) or 'none'} of the columns {', '.join(LABELS)}; one must hold the labels"
        raise ValueError(f"{where}table has {has}. It has {', '.join(map(str, columns))}")
    clients = columns.pop(CLIENT, None)
    numbers = _all_numbers(where, columns, "" if test else found[0])
    labels = numbers.pop(found[0])
    if not numbers:
        raise ValueError(f"{where}table has no column besides labels and clients")
    return numbers, labels, clients


def _all_numbers(where: str, columns: Mapping[Any, Any], label: Any = None) -> dict[Any, torch.Tensor]:
    """Return the columns as tensors. One ValueError lists the errors in all of them."""
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
    """One problem as it is; several, one per line."""
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
        remedy = "are not joined with other columns; keep one of them (.remove_columns drops the others)"
        raise ValueError(f"{where}rows of tokens, or arrays, in {' and '.join(large or tokens)} {remedy}")
    return torch.cat([values.reshape(len(values), -1).float() for values in found.values()], dim=1)


def _owners(where: str, clients: Any, count: int) -> Indices:
    """Return the clients' names as numbers 0, 1, 2, ... in the order of the names."""
    names = np.asarray(clients)
    if names.shape != (count,):
        expected = f"expected one for each of the {count:,} examples"
        raise ValueError(f"{where}clients have shape {names.shape}; {expected}")
    kinds = {type(name).__name__ for name in names.tolist()}
    if len(kinds) > 1 or any(name is None or name != name for name in names.tolist()):
        wrong = f"are of types {' and '.join(sorted(kinds))}, or some are missing; name all by text or all"
        raise ValueError(f"{where}clients {wrong} by numbers, or drop these rows")
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
