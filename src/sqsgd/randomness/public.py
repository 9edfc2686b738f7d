"""Public randomness, shared by the server and the clients, from seed, round and client alone.

The words are an AES-256-CTR keystream (counter blocks from 2) under a key hashed from (seed, round, client,
purpose), read as little-endian words. docs/wire-format.md specifies it, and golden vectors in
tests/randomness/test_public.py fix it, because all versions of this library must agree.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np

from sqsgd.randomness import Keystream
from sqsgd.randomness.keystream import COUNTER_MODES, SHORT, beginning

EVERYONE = 2**64 - 1  # the client number of a stream shared by all clients of a round
_U4 = np.dtype("<u4")
_PERSON = b"sqsgd public"


class PublicStream:
    """The public words of (seed, round, client, purpose); the same on every machine and in every version.

    The key is BLAKE2b-256, personalised with ``sqsgd public``, of the little-endian 64-bit integers
    seed, round, client, then the purpose in ASCII.

    >>> PublicStream(seed=1, round=0, client=3, purpose="signs").words(2).tolist()
    [937708708, 385051552]
    """

    def __init__(self, *, seed: int, round: int, client: int, purpose: str) -> None:
        message = struct.pack("<QQQ", seed, round, client) + purpose.encode("ascii")
        self._key = hashlib.blake2b(message, digest_size=32, person=_PERSON).digest()
        self._drawn = 0  # bytes
        self._keystream: Keystream | None = None

    def words(self, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The next ``count`` 32-bit little-endian words."""
        size = 4 * count
        if self._drawn == 0 and size <= SHORT:  # most streams need only this one call
            self._drawn = size
            return np.frombuffer(beginning(self._key, size), _U4, count)
        if self._keystream is None:
            self._keystream = Keystream(self._key, COUNTER_MODES[0])
            self._keystream.fill(np.empty(self._drawn, np.uint8))
        buffer = np.empty(size, np.uint8)
        self._keystream.fill(buffer)
        self._drawn += size
        return buffer.view(_U4)

    def subset(self, dim: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A uniform ``size``-subset of 0..dim-1, sorted.

        Words are mapped to 0..dim-1 by multiply-and-shift with rejection; repeated numbers are skipped. If
        ``size`` exceeds half of dim, the complement is drawn instead.
        """
        from sqsgd.kernels.selecting import mark, marked

        drawn = min(size, dim - size)
        marks = np.zeros((dim + 63) // 64, np.uint64)
        missing = drawn
        while missing:
            # The expected number of words and some more. Words are used in order, so the result does not
            # depend on how many are drawn at a time.
            words = self.words(missing + (missing * drawn) // dim + 32)
            missing = mark(marks, np.uint64(dim), missing, words)
        chosen = np.empty(size, np.int64)
        marked(marks, dim, size == drawn, chosen)
        return chosen


def many_words(
    *,
    seed: int,
    round: int,
    clients: np.ndarray[Any, np.dtype[np.uint64]],
    purpose: str,
    count: int,
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The first ``count`` 64-bit words of each client's stream: one row per client.

    >>> many_words(seed=1, round=0, clients=np.array([3], np.uint64), purpose="signs", count=1) % 2**32
    array([[937708708]], dtype=uint64)
    """
    from sqsgd.kernels.keystreams import streams

    message = struct.pack("<QQQ", seed, round, 0) + purpose.encode("ascii")
    rows = np.empty((clients.size, count), np.uint64)
    streams(derived(_PERSON, message, 16, clients), 0, rows)
    return rows


def derived(
    person: bytes, message: bytes, place: int, numbers: np.ndarray[Any, np.dtype[np.uint64]]
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Keys hashed from copies of a message, each with one of the numbers at byte ``place``."""
    from sqsgd.kernels.keystreams import derived_keys, starting_state

    template = np.zeros(16, np.uint64)
    template.view(np.uint8)[: len(message)] = np.frombuffer(message, np.uint8)
    keys = np.empty((numbers.size, 4), np.uint64)
    derived_keys(starting_state(person), template, len(message), place // 8, numbers, keys)
    return keys
