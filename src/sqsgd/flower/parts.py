"""Limits on fetching the parts of an answer: its round's deadline, and the size of a report.

Flower's grid fetches whatever a node announces, waits two hours for what does not arrive, and inflates what
it has fetched: an array of a few thousand bytes that names one chunk a million times would fill the server's
memory. There is no setting for this, so Flower's function is replaced. Limits belong to the fetching thread:
an abandoned fetch keeps its own deadline, and other threads fetch as Flower does.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqsgd.codec import MalformedReport
from sqsgd.flower.internals import internal, internal_module

_GRID: Any = internal_module("flwr.superlink.grid.http_grid:pull_objects")
_FLOWERS: Callable[..., dict[str, bytes]] = internal(
    "flwr.supercore.inflatable.inflatable_utils:pull_objects"
)
_object_type: Callable[[bytes], str] = internal(
    "flwr.supercore.inflatable.inflatable_object:get_object_type_from_object_content"
)
_ObjectPullError: type[Exception] = internal("flwr.supercore.inflatable.inflatable_utils:ObjectPullError")
KINDS = ("Message", "RecordDict", "ConfigRecord")
"""The parts of a report, one of each; an error has only the first."""
MOST_BYTES = 1024 * 1024
"""The most bytes of one part, in addition to twice the report."""
_thread = threading.local()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on one answer."""

    deadline: float
    """In seconds of ``time.monotonic``."""
    most_bytes: int = MOST_BYTES
    discard: Callable[[str], None] = lambda _: None
    """Called with the name of an answer that is not fetched, or not to its end."""


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Flower's grid keeps to these limits in this thread, and raises MalformedReport beyond them."""
    _GRID.pull_objects = _pull_objects  # even if somebody else replaced it: limits belong to the thread
    _thread.limits = limits
    try:
        yield
    finally:
        _thread.limits = None


@functools.wraps(_FLOWERS)  # it takes the same arguments, for whoever asks
def _pull_objects(
    object_ids: Sequence[str], pull_object_fn: Callable[[str], bytes], **options: Any
) -> dict[str, bytes]:
    limits: Limits | None = getattr(_thread, "limits", None)
    if limits is None:
        return _FLOWERS(object_ids, pull_object_fn, **options)
    try:
        return _within(limits, object_ids, pull_object_fn, options)
    except (MalformedReport, _ObjectPullError):
        limits.discard(object_ids[-1])  # the last one is the message itself, which holds all others
        raise


def _within(
    limits: Limits, object_ids: Sequence[str], pull_object_fn: Callable[[str], bytes], options: dict[str, Any]
) -> dict[str, bytes]:
    if len(object_ids) > len(KINDS):
        problem = f"the answer has {len(object_ids)} parts and a report has {len(KINDS)}: nothing was fetched"
        raise MalformedReport("clear", f"{problem}; does the node's app use SqsgdMod?")

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
    kind = _object_type(content)
    if kind not in KINDS:
        problem = f"the answer holds {kind[:20]!r}, which is not part of a report"
        raise MalformedReport("clear", f"{problem}; does the node's app use SqsgdMod?")
