"""A dataset of four tiny IDX files with its own checksums, for the tests of loading and fetching."""

import gzip
import hashlib

import numpy as np

from sqsgd.learning.files import Source


def encode_idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def small_contents():
    """The four files by name, not gzipped: 20 training and 10 test images; every label 0..9 is in both."""
    generator, contents = np.random.default_rng(0), {}
    for part, size in (("train", 20), ("test", 10)):
        images = generator.integers(0, 256, (size, 28, 28), np.uint8)
        contents[f"small-{part}-images"] = encode_idx(images)
        contents[f"small-{part}-labels"] = encode_idx((np.arange(size) % 10).astype(np.uint8))
    return contents


def small_source(contents, *, known=True, **changes):
    """The source of these files; ``known`` says whether the content's checksum is known."""
    files = {name: hashlib.sha256(content).hexdigest() if known else "" for name, content in contents.items()}
    about = {"title": "Small", "sizes": (20, 10), "mean": 0.5, "deviation": 0.25, **changes}
    return Source(name="small", files=files, **about)


def zipped(content):
    return gzip.compress(content, mtime=0)


def write(folder, contents, *, gzipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / (f"{name}.gz" if gzipped else name)).write_bytes(zipped(content) if gzipped else content)
    return folder
