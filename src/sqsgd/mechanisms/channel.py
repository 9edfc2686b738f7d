"""Channels: one number in, one private code out. Coordinate-wise schemes are built from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd.randomness import Rng

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[Any]
LEAST_EPSILON, MOST_EPSILON = 1e-6, 1e6


class Channel(ABC):
    """A mechanism for one number in [-1, 1], which is passed as its place from 0 to 1 in that range."""

    alphabet: int
    epsilon: float
    """The ε of one code, as implemented; never rounded down."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The parameters as text; part of the wire format's fingerprint, so it never changes."""

    @abstractmethod
    def randomize(self, places: Floats, rng: Rng) -> Codes:
        """A code for each place, independently."""

    @abstractmethod
    def estimate(self, codes: Codes) -> Floats:
        """Unbiased estimates of the encoded numbers; they may lie outside [-1, 1]."""

    @abstractmethod
    def second_moment(self, places: Floats) -> Floats:
        """E[estimate²] at each place."""

    @abstractmethod
    def log_probability(self, codes: Codes, places: Floats) -> Floats:
        """ln P(code | place) of each pair, over all randomness of ``randomize``."""


def integers_below(bound: int, count: int, rng: Rng) -> Codes:
    """Uniform integers in 0..bound-1, by rejection; int64, or Python integers beyond a bound of 2^63.

    >>> from sqsgd.randomness import seeded_rng
    >>> integers_below(6, 5, seeded_rng(1)).max() < 6, integers_below(10**30, 2, seeded_rng(1)).dtype
    (np.True_, dtype('O'))
    """
    if bound > 2**63:
        return np.array([_long_below(bound, rng) for _ in range(count)] or [], object)
    limit = 2**64 - 2**64 % bound
    words = rng.words(count)
    if limit < 2**64:
        refused = np.flatnonzero(words >= np.uint64(limit))
        if refused.size:
            words = words.copy()
        while refused.size:
            words[refused] = rng.words(refused.size)
            refused = refused[words[refused] >= np.uint64(limit)]
    return (words % np.uint64(bound)).astype(np.int64)


def _long_below(bound: int, rng: Rng) -> int:
    bits = (bound - 1).bit_length()
    while True:
        number = int.from_bytes(rng.take(-(-bits // 8)).tobytes(), "little") & ((1 << bits) - 1)
        if number < bound:
            return number
