"""Fetching the parts of an answer: no longer than its round lasts, and no more than a report has.

Flower's grid fetches whatever a node announces, waits two hours for what does not come, and builds what it
has fetched: an array of a few thousand bytes that names one chunk a million times would fill the server's
memory.
It has no setting for any of this, so its function is replaced. What is allowed belongs to the thread that
fetches: a fetch that was given up keeps its own deadline, and other threads fetch as Flower does.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.supercore.inflatable.inflatable_object import get_object_type_from_object_content

from sqsgd.codec import MalformedReport

_GRID: Any = importlib.import_module("flwr.superlink.grid.http_grid")
_FLOWERS: Callable[..., dict[str, bytes]] = importlib.import_module(
    "flwr.supercore.inflatable.inflatable_utils"
).pull_objects
KINDS = ("Message", "RecordDict", "ConfigRecord")
"""An answer's parts, one of each; of an error there is the first alone."""
MOST_BYTES = 1024 * 1024
"""Of one part, beside twice the report."""
_thread = threading.local()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one answer."""

    deadline: float
    """By ``time.monotonic``."""
    most_bytes: int = MOST_BYTES


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """What Flower's grid fetches in this thread keeps to these limits; raises MalformedReport beyond them."""
    _GRID.pull_objects = _pull_objects  # whoever replaced it before: ours asks the thread
    _thread.limits = limits
    try:
        yield
    finally:
        _thread.limits = None


def _pull_objects(
    object_ids: Sequence[str], pull_object_fn: Callable[[str], bytes], **options: Any
) -> dict[str, bytes]:
    limits: Limits | None = getattr(_thread, "limits", None)
    if limits is None:
        return _FLOWERS(object_ids, pull_object_fn, **options)
    if len(object_ids) > len(KINDS):
        raise MalformedReport(
            "parts",
            f"the answer has {len(object_ids)} parts and a report has {len(KINDS)}: nothing of it was fetched"
            "; does the node's app use SqsgdMod?",
        )

    def pull(object_id: str) -> bytes:
        content = pull_object_fn(object_id)
        _check(content, limits.most_bytes)
        return content

    left = max(0.0, limits.deadline - time.monotonic())
    patience = {"backoff_cap": 1.0, "max_tries_per_object": None, "max_time": left}
    return _FLOWERS(object_ids, pull, **{**options, **patience})


def _check(content: bytes, most: int) -> None:
    if len(content) > most:
        raise MalformedReport("length", f"a part of the answer has {len(content)} bytes, more than {most}")
    kind = get_object_type_from_object_content(content)
    if kind not in KINDS:
        raise MalformedReport(
            "parts",
            f"the answer holds {kind[:20]!r}, which no report does; does the node's app use SqsgdMod?",
        )
