"""Many clients at once: parts that fit in a processor's cache, shared by threads, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sqsgd import checks
from sqsgd.task import Tasks

Result = TypeVar("Result")
_FLOATS = 1 << 20
"""Coordinates in a part: four megabytes."""


def each_part(work: Callable[[int, Tasks], Result], tasks: Tasks, workers: int) -> Iterator[Result]:
    """``work(start, part)`` of each part of the tasks, in order; ``workers`` parts are under way at a time.

    Kernels release Python's lock, so threads suffice. The results do not depend on ``workers``.
    """
    checks.integer("workers", workers, 1, 1024)
    size = max(1, _FLOATS // tasks.task.dim)
    parts = [(i * size, part) for i, part in enumerate(tasks.parts(size))]
    if workers == 1 or len(parts) < 2:
        for start, part in parts:
            yield work(start, part)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for start, part in parts:
                waiting.append(pool.submit(work, start, part))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # the reader stopped early
                future.cancel()
