"""A private generator that plays back chosen 64-bit words, for edges that chance never hits."""

from __future__ import annotations


class ScriptedRng:
    """Hands out the given words in order and counts them."""

    def __init__(self, *words: int) -> None:
        self.words, self.used = list(words), 0

    def word(self) -> int:
        self.used += 1
        return self.words[self.used - 1]
