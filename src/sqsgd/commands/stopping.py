"""Ctrl-C and SIGTERM as a request, not as an exception in the middle of something."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def stopping_between_rounds() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in the list that it gives; a second one has its usual effect.

    Python would raise KeyboardInterrupt wherever it stands: in a destructor, where it is lost, or in a
    callback from torch's C++, which then aborts. Both were seen.
    """
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        for each, usual in before.items():
            signal.signal(each, usual)
        os.write(2, b"stopping after this round; once more stops at once\n")  # print may be under way

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for each, usual in before.items():
            signal.signal(each, usual)
