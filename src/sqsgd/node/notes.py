"""A node's records for its owner: ``answers.jsonl`` and ``refusals.jsonl`` in its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024
"""Size of a file beyond which refusals and repeats, which cost a server nothing, are no longer noted."""
_MAX_TEXT = 500


def note(folder: Path, kind: str, entry: Mapping[str, object]) -> None:
    """Append a line, on disk on return; the last one before the file is full says so.

    Answers that were paid for are always noted. The budget limits their number: a hundred for each unit of
    epsilon, if a server always asks for the smallest, 0.01.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{kind}.jsonl"
    free = kind == "refusals" or bool(entry.get("again"))
    size = path.stat().st_size if path.exists() else 0
    if free and size >= MAX_BYTES:
        return
    shown = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
    line = json.dumps(shown | {key: shortened(value) for key, value in entry.items()})
    if free and size + len(line) + 1 >= MAX_BYTES:
        last = {"full": f"the file has {MAX_BYTES} bytes: further refusals and repeats are not noted"}
        line = json.dumps(json.loads(line) | last).ljust(MAX_BYTES - size - 1)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def shortened(value: object) -> object:
    """A number or None unchanged; anything else as text of at most 500 characters."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
        return value
    text = value if isinstance(value, str) else type(value).__name__
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
