"""The public datasets: files, checksums, mirrors and constants. A new dataset is a row of SOURCES."""

from __future__ import annotations

from dataclasses import dataclass

EMBEDDED, SPEAKERS = "mnist5k", "shakespeare"


@dataclass(frozen=True, kw_only=True)
class IdxFile:
    """One file of a dataset: its name without ``.gz``, and its checksums."""

    name: str
    gzip_md5: str  # of the published .gz
    sha256: str | None  # of the content; None if unknown, because we could not obtain the file


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A zip archive that contains the .gz files of a dataset."""

    urls: tuple[str, ...]
    md5: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A public dataset in four IDX files: training images and labels, test images and labels.

    ``mean`` and ``deviation`` of the pixels, scaled to 0..1, are published constants; nothing is ever
    computed from the images that a client holds.
    """

    name: str
    title: str
    files: tuple[IdxFile, ...]
    sizes: tuple[int, int]
    mean: float
    deviation: float
    classes: int = 10
    transposed: bool = False
    mirrors: tuple[str, ...] = ()
    archive: Archive | None = None
    folders: tuple[str, ...] = ()  # other places to look in: relative to the data folder, or absolute
    package: str = ""  # a command that installs the files in one of these folders


def _files(train: str, test: str, checksums: str) -> tuple[IdxFile, ...]:
    """The four files; ``checksums`` has one line each: the MD5 of the .gz and the SHA-256 of the content."""
    parts = [f"{part}-{kind}-ubyte" for part in (train, test) for kind in ("images-idx3", "labels-idx1")]
    sums = [line.split() for line in checksums.strip().splitlines()]
    return tuple(
        IdxFile(name=name, gzip_md5=md5, sha256=None if sha256 == "-" else sha256)
        for name, (md5, sha256) in zip(parts, sums, strict=True)
    )


SOURCES: dict[str, Source] = {
    "mnist": Source(
        name="mnist",
        title="MNIST",
        sizes=(60_000, 10_000),
        mean=0.1307,
        deviation=0.3081,
        files=_files(
            "train",
            "t10k",
            """
            f68b3c2dcbeaaa9fbdd348bbdeb94873 ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db
            d53e105ee54ea40749a09fcbcd1e9432 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5
            9fb629c4189551a2d022fa330f9573f3 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7
            ec29112dd5afa0611ce80d1b7f02629c ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2
            """,
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
        folders=("MNIST/raw",),
    ),
    "fashion-mnist": Source(
        name="fashion-mnist",
        title="Fashion-MNIST",
        sizes=(60_000, 10_000),
        mean=0.2860,
        deviation=0.3530,
        files=_files(
            "train",
            "t10k",
            """
            8d4fb7e6c68d591d4c3dfef9ec88bf0d c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
            25c81989df183df01b3e8a0aad5dffbe bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
            bef4ecab320f06d8554ea6380940ec79 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
            bb300cfdad3c16e7a12a480ee83cd310 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34
            """,
        ),
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        # The second is where Debian's package puts its copy, which is gzipped differently.
        folders=("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
        package="apt install dataset-fashion-mnist",
    ),
    "emnist": Source(
        name="emnist",
        title="EMNIST (MNIST split)",
        sizes=(60_000, 10_000),
        mean=0.1733,
        deviation=0.3317,
        transposed=True,
        # Published checksums, not confirmed: we could not obtain these files.
        files=_files(
            "emnist-mnist-train",
            "emnist-mnist-test",
            """
            3663598a39195d030895b6304abb5065 -
            6c092f03c9bb63e678f80f8bc605fe37 -
            fb51b6430fc4dd67deaada1bf25d4524 -
            ae7f6be798a9a5d5f2bd32e078a402dd -
            """,
        ),
        archive=Archive(
            urls=(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
            ),
            md5="58c8d27c78d21e728a6bc7b3cc06412e",
        ),
        folders=("EMNIST/raw", "gzip"),
    ),
}
