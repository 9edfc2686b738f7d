"""Something that is done now and then while a loop goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


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
