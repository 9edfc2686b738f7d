"""A generator that hands out given words, so that a report can be repeated in another language."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sqsgd.randomness import Rng
from sqsgd.randomness.keystream import Bytes

_U8 = np.dtype("<u8")


class GivenWords(Rng):
    """Replays 64-bit words. It protects nobody.

    Requests for bytes take whole words, little-endian.

    >>> rng = GivenWords([1, 2**64 - 1])
    >>> rng.word(), rng.take(3).tolist(), rng.used, rng.protects
    (1, [255, 255, 255], [1, 18446744073709551615], False)
    """

    def __init__(self, words: Iterable[int]) -> None:
        super().__init__(0)
        self._script, self._count = list(words), 0

    @property
    def used(self) -> list[int]:
        """The words handed out so far."""
        return self._script[: self._count]

    def word(self) -> int:
        """The next word."""
        if self._count == len(self._script):
            raise RuntimeError(f"all {self._count} given words are used")
        self._count += 1
        return self._script[self._count - 1]

    def take(self, count: int) -> Bytes:
        """The bytes of the next words."""
        found: npt.NDArray[np.uint64] = np.array([self.word() for _ in range(-(-count // 8))], _U8)
        return found.view(np.uint8)[:count]

    def fill(self, target: Bytes) -> None:
        """Overwrite an array with the bytes of the next words."""
        target[:] = self.take(target.size)
