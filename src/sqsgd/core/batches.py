"""Many clients at once: parts that fit in a processor's cache, shared by threads, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from sqsgd import checks
from sqsgd.task import Tasks

Result = TypeVar("Result")
_FLOATS = 1 << 20
"""Coordinates in a part: four megabytes."""


def parts_of(tasks: Tasks) -> Iterator[tuple[slice, Tasks]]:
    """The tasks in parts, each with its place among all of them."""
    size = max(1, _FLOATS // tasks.task.dim)
    for i, part in enumerate(tasks.parts(size)):
        yield slice(i * size, i * size + len(part)), part


def in_order(
    work: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Result]:
    """``work`` of each tuple of arguments, in their order, by this many threads: kernels release the lock."""
    checks.integer("workers", workers, 1, 1024)
    if workers == 1:
        for each in arguments:
            yield work(*each)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for each in arguments:
                waiting.append(pool.submit(work, *each))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # the reader stopped early
                future.cancel()
