"""Lines that a node writes down for people: ``answers.jsonl`` and ``refusals.jsonl`` in its own folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

MOST = 4 * 1024 * 1024
"""Bytes of a file beyond which nothing is noted that a server can have for nothing: refusals and repeats."""
_LONGEST = 500


def note(folder: Path, kind: str, entry: Mapping[str, object]) -> None:
    """Append a line, on the disk on return; the last one before the file is full says so.

    Answers that were paid for are always noted: the budget limits them.
    """
    path = folder / f"{kind}.jsonl"
    free = kind == "refusals" or bool(entry.get("again"))
    size = path.stat().st_size if path.exists() else 0
    if free and size >= MOST:
        return
    shown = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
    line = json.dumps(shown | {key: shortened(value) for key, value in entry.items()})
    if free and size + len(line) + 1 >= MOST:
        last = {"full": f"the file has {MOST} bytes: from here on refusals and repeats are not noted"}
        line = json.dumps(json.loads(line) | last).ljust(MOST - size - 1)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def shortened(value: object) -> object:
    """A number or None as it is, anything else as a text of at most so many characters."""
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**64):
        return value
    text = value if isinstance(value, str) else type(value).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
