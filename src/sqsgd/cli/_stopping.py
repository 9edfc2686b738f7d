"""Ctrl-C and SIGTERM as a request to stop after the round, not as an exception in the middle of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

_ONE_REQUEST = 0.5  # seconds; timeout(1) signals the command, and then its group with the command in it


@contextlib.contextmanager
def stopping_between_rounds() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in the yielded list; a second one, later, has its usual effect.

    Python would raise KeyboardInterrupt at any point: in a destructor, where it is lost, or in a
    callback from torch's C++, which then aborts. We have seen both.
    """
    seen: list[int] = []
    first = 0.0

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal first
        if not seen:
            first = time.monotonic()
            seen.append(number)
            os.write(2, b"stopping after this round; press again to stop now\n")  # print may be under way
        elif time.monotonic() - first > _ONE_REQUEST:
            restore()
            signal.raise_signal(number)

    def restore() -> None:
        for each, usual in before.items():
            signal.signal(each, usual)

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        restore()
