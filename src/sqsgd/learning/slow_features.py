"""Features that take minutes to extract: progress on standard error, and a cache on disk by content."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

_PATIENCE = 3.0
"""Seconds after which progress is shown."""


def cache_folder() -> Path:
    """Where features are kept: $SQSGD_FEATURES, else the user's cache folder."""
    if os.environ.get("SQSGD_FEATURES"):
        return Path(os.environ["SQSGD_FEATURES"])
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sqsgd" / "features"


def cached(identity: bytes, inputs: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What ``make`` returns for these inputs, from disk if it was computed before.

    ``identity`` must change whenever the extractor does: its name and the checksum of its weights.
    """
    path = cache_folder() / f"{_digest(identity, inputs)}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path, allow_pickle=False))
    rows = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as written:
        np.save(written, rows.numpy(), allow_pickle=False)
    Path(written.name).replace(path)
    return rows


def progress(name: str, starts: range, total: int) -> Iterator[int]:
    """The starts, with a line on standard error about the time left: renewed on a terminal, else one a minute."""
    began = shown = time.monotonic()
    renewed = sys.stderr.isatty()
    for start in starts:
        now = time.monotonic()
        if start and now - began > _PATIENCE and now - shown > (1 if renewed else 60):
            left = (now - began) / start * (total - start)
            text = f"features {name}: {start:,} of {total:,} images, {left / 60:.1f} min left"
            sys.stderr.write(f"\r{text}  " if renewed else f"{text}\n")
            sys.stderr.flush()
            shown = now
        yield start
    if renewed and shown > began:
        sys.stderr.write("\n")


def _digest(identity: bytes, inputs: torch.Tensor) -> str:
    digest = hashlib.sha256(identity + f"\0{inputs.dtype} {tuple(inputs.shape)}\0".encode())
    for part in inputs.split(1000):
        digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()
