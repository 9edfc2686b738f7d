"""A private generator that replays given 64-bit words, for edge cases that random draws never hit."""

from __future__ import annotations

import numpy as np


class ScriptedRng:
    """Hands out the given words in order and counts them."""

    def __init__(self, *words: int) -> None:
        self.script, self.used = list(words), 0

    def word(self) -> int:
        self.used += 1
        return self.script[self.used - 1]

    def words(self, count: int) -> np.ndarray:
        return np.array([self.word() for _ in range(count)], np.uint64)
