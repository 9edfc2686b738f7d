"""How many bits of the operating system's answers decide what a generator draws: they are varied."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqsgd.randomness import Rng

ENOUGH = 128
"""Bits of a key that nobody can guess."""
_CALLS = ("urandom", "getrandom")
_MOST_VARIED, _DRAWN = 512, 4096  # bits of what was read, bytes of what is drawn


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a fresh generator reads from the operating system, and how much of it matters."""

    read: int
    """Bytes read before the first draw returns."""
    repeats: bool
    """The same answers of the operating system give the same draws: nothing else goes into them."""
    bits: int
    """Bits of the answers, of the first 512, each of which changes the draws in its own way."""

    @property
    def enough(self) -> bool:
        """At least 128 bits of the operating system decide the draws, and nothing else does."""
        return self.repeats and self.bits >= ENOUGH


def key_of(noise: Callable[[], Rng]) -> Key:
    """Watch a fresh generator read its key, then flip one bit of the key after another.

    A key made from the time of day reads nothing, or repeats nothing; one from four bytes depends on 32
    bits. A key folded from longer answers draws the same for two different flips, which counts once.
    """
    noise().take(_DRAWN)  # imports, and whatever is read once for the whole process, happen before
    answers = _Answers()

    def drawn(flipped: int | None = None) -> bytes:
        answers.read, answers.flipped = 0, flipped
        return noise().take(_DRAWN).tobytes()

    with _replaced(answers):
        first, read = drawn(), answers.read
        repeats = drawn() == first
        others = {drawn(flipped) for flipped in range(min(8 * read, _MOST_VARIED))} - {first}
    return Key(read=read, repeats=repeats, bits=len(others))


class _Answers:
    """Stands in for ``os.urandom`` and ``os.getrandom``: known bytes, except for one flipped bit."""

    read = 0
    flipped: int | None = None

    def __call__(self, size: int, _flags: int = 0) -> bytes:
        answer = bytearray((self.read + place) * 151 % 251 for place in range(size))
        if self.flipped is not None:
            place = self.flipped // 8 - self.read
            if 0 <= place < size:
                answer[place] ^= 1 << self.flipped % 8
        self.read += size
        return bytes(answer)


@contextmanager
def _replaced(answers: Callable[..., bytes]) -> Iterator[None]:
    """Every name that a loaded module has for the operating system's calls means ``answers`` instead."""
    real = {id(getattr(os, name)) for name in _CALLS if hasattr(os, name)}
    found: list[tuple[dict[str, Any], str, Any]] = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        found += [(names, name, value) for name, value in list(names.items()) if id(value) in real]
    try:
        for names, name, _ in found:
            names[name] = answers
        yield
    finally:
        for names, name, value in found:
            names[name] = value
