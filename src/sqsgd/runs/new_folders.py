"""Folders for runs that were not given one with ``--out``."""

from __future__ import annotations

import itertools
import time
from pathlib import Path


def new_folder(name: str, place: Path = Path("runs")) -> Path:
    """Create ``place/name-DATE-TIME``, with ``-2``, ``-3``, ... appended if that name is taken.

    Guarantees
    ----------
    * No two callers get the same folder: tests/runs/test_new_folders.py::test_many_at_once_get_one_each.
    """
    wanted = f"{name.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file, but runs go into a folder of that name; choose one with --out")
    place.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = place / (wanted if number == 1 else f"{wanted}-{number}")
        try:
            folder.mkdir()  # atomic: only one process can create it
        except FileExistsError:
            continue
        return folder
    raise AssertionError  # itertools.count does not end
