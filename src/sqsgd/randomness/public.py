"""Public randomness: what the server and the clients must agree on, from seed, round and client alone.

The words are an AES-256-CTR keystream (counter blocks from 2) under a key hashed from (seed, round, client,
purpose), read as little-endian words. docs/wire-format.md specifies the map; golden vectors in
tests/randomness/test_public.py hold it, because two versions of this program must always agree.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np

from sqsgd.randomness.keystream import COUNTER_MODES, SHORT, Keystream, beginning

EVERYONE = 2**64 - 1  # the client number of a stream that all clients of a round share
_U4 = np.dtype("<u4")


class PublicStream:
    """The public words of (seed, round, client, purpose); the same on every machine, for ever.

    The key is BLAKE2b-256, personalised with ``sqsgd public``, of the little-endian 64-bit integers
    seed, round, client, then the purpose in ASCII.

    >>> PublicStream(seed=1, round=0, client=3, purpose="signs").words(2).tolist()
    [937708708, 385051552]
    """

    def __init__(self, *, seed: int, round: int, client: int, purpose: str) -> None:
        message = struct.pack("<QQQ", seed, round, client) + purpose.encode("ascii")
        self._key = hashlib.blake2b(message, digest_size=32, person=b"sqsgd public").digest()
        self._drawn = 0  # bytes
        self._keystream: Keystream | None = None

    def words(self, count: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The next ``count`` 32-bit little-endian words."""
        size = 4 * count
        if self._drawn == 0 and size <= SHORT:  # a stream that begins, and mostly ends, here
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

        Words are mapped to 0..dim-1 by multiply-and-shift with rejection; a number that was drawn
        before is skipped. Past half of dim, the numbers left out are drawn instead.
        """
        from sqsgd.kernels.selecting import mark, marked

        drawn = min(size, dim - size)
        marks = np.zeros((dim + 63) // 64, np.uint64)
        missing = drawn
        while missing:
            # Expected number of words, and a little more; the words are used in order whatever the
            # length of a piece, so the result does not depend on it.
            words = self.words(missing + (missing * drawn) // dim + 32)
            missing = mark(marks, np.uint64(dim), missing, words)
        chosen = np.empty(size, np.int64)
        marked(marks, dim, size == drawn, chosen)
        return chosen
