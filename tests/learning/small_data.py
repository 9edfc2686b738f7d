"""A dataset of four tiny IDX files with its own checksums, for the tests of loading and fetching."""

import gzip
import hashlib

import numpy as np

from sqsgd.learning.dataset_sources import Archive, IdxFile, Source

SIZES = (20, 10)


def encode_idx(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def small_contents(seed: int = 0) -> dict[str, bytes]:
    """The four files by name, not gzipped; every label 0..9 occurs in both parts."""
    generator = np.random.Generator(np.random.PCG64(seed))
    contents = {}
    for part, size in zip(("train", "test"), SIZES, strict=True):
        images = generator.integers(0, 256, (size, 28, 28), np.uint8)
        labels = (np.arange(size) % 10).astype(np.uint8)
        contents[f"small-{part}-images"] = encode_idx(images)
        contents[f"small-{part}-labels"] = encode_idx(labels)
    return contents


def small_source(
    contents: dict[str, bytes],
    *,
    known: bool = True,
    transposed: bool = False,
    archive: Archive | None = None,
) -> Source:
    """The source of these files; ``known`` says whether the content's checksum is known."""
    first, second, third, fourth = (
        IdxFile(
            name=name,
            gzip_md5=hashlib.md5(zipped(content), usedforsecurity=False).hexdigest(),
            sha256=hashlib.sha256(content).hexdigest() if known else None,
        )
        for name, content in contents.items()
    )
    return Source(
        name="small",
        title="Small",
        files=(first, second, third, fourth),
        sizes=SIZES,
        mean=0.5,
        deviation=0.25,
        transposed=transposed,
        archive=archive,
    )


def zipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
