"""How far a loop has come: a bar on a terminal, elsewhere something that is done now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


class Pace:
    """Says when it is time again: at once, and then when ``seconds`` have passed since the last time.

    >>> pace = Pace(60, clock=iter([0.0, 1.0, 60.0, 61.0]).__next__)
    >>> [pace.due() for _ in range(4)]
    [True, False, True, False]
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self._last = seconds, clock, -math.inf

    def due(self) -> bool:
        """Whether it is time; the answer True starts a new wait."""
        now = self._clock()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar with these columns and the time that is left; it becomes shorter, so that no text is cut."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    bar = BarColumn(None, table_column=Column(ratio=1))
    return Progress(bar, *columns, TimeRemainingColumn(), TextColumn("{task.description}"), expand=True)
