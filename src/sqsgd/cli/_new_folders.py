"""Folders for runs that nobody named."""

from __future__ import annotations

import itertools
import time
from pathlib import Path


def new_folder(name: str, place: Path = Path("runs")) -> Path:
    """Make ``place/name-DATE-TIME``, or the first free one of ``-2``, ``-3``, ...; never one that is there.

    Guarantees
    ----------
    * No two callers get the same folder: tests/cli/test_new_folders.py::test_many_at_once_get_one_each.
    """
    wanted = f"{name.replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file, where runs have their folder; name another with --out")
    place.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = place / (wanted if number == 1 else f"{wanted}-{number}")
        try:
            folder.mkdir()  # who makes it has it
        except FileExistsError:
            continue
        return folder
    raise AssertionError  # the numbers do not end
