"""Features that take minutes to extract: progress on standard error, and a cache on disk by content."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

Network: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_PART = 1000


def cache_folder() -> Path:
    """Where features are kept: $SQSGD_FEATURES, else the user's cache folder."""
    if os.environ.get("SQSGD_FEATURES"):
        return Path(os.environ["SQSGD_FEATURES"])
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sqsgd" / "features"


def kept(name: str, identity: bytes, network: Network, inputs: torch.Tensor) -> torch.Tensor:
    """The network's values for each input, as float16, from disk where they were computed before.

    ``identity`` must change whenever the network does: its name and the checksum of its weights. Inputs are
    taken 1,000 at a time, so that an interrupted extraction resumes.
    """
    parts = torch.split(inputs, _PART)
    paths = [cache_folder() / f"{_digest(identity, part)}.npy" for part in parts]
    absent = [place for place, path in enumerate(paths) if not path.is_file()]
    with torch.inference_mode():
        for place in progress(name, absent):
            values = network(parts[place]).half().numpy()
            paths[place].parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                dir=paths[place].parent, suffix=".partial", delete=False
            ) as file:
                np.save(file, values, allow_pickle=False)
            Path(file.name).replace(paths[place])
    return torch.cat([torch.from_numpy(np.load(path, allow_pickle=False)) for path in paths])


def progress(name: str, steps: Sequence[int]) -> Iterator[int]:
    """The steps, with a line about the time left: renewed on a terminal, else one a minute."""
    began = shown = time.monotonic()
    renewed = sys.stderr.isatty()
    for done, step in enumerate(steps):
        now = time.monotonic()
        if done and now - shown > (1 if renewed else 60):
            left = (now - began) / done * (len(steps) - done)
            text = f"features {name}: {done / len(steps):.0%}, {left / 60:.1f} min left"
            sys.stderr.write(f"\r{text}  " if renewed else f"{text}\n")
            sys.stderr.flush()
            shown = now
        yield step
    if renewed and shown > began:
        sys.stderr.write("\n")


def _digest(identity: bytes, inputs: torch.Tensor) -> str:
    about = f"\0{inputs.dtype} {tuple(inputs.shape)}\0".encode()
    return hashlib.sha256(identity + about + inputs.contiguous().numpy().tobytes()).hexdigest()
