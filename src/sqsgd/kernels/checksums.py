"""CRC-32, as in zlib, of many messages at once."""

from __future__ import annotations

import numpy as np

from sqsgd.kernels.compiling import compiled, inlined


def _table() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """What a byte adds to the checksum."""
    entries = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        entries = np.where(entries & 1, (entries >> 1) ^ np.uint32(0xEDB88320), entries >> 1)
    return entries.astype(np.uint32)


_TABLE = _table()


@inlined
def _step(checksum, byte):
    return np.uint32(_TABLE[(checksum ^ np.uint32(byte)) & np.uint32(255)] ^ (checksum >> np.uint32(8)))


@compiled
def checksums(start, numbers, middle, bodies, results):
    """results[i] = the checksum ``start`` continued by numbers[i] (8 bytes), ``middle`` and bodies[i]."""
    for i in range(numbers.size):
        checksum = ~np.uint32(start)
        for place in range(8):
            checksum = _step(checksum, (numbers[i] >> np.uint64(8 * place)) & np.uint64(255))
        for byte in middle:
            checksum = _step(checksum, byte)
        for j in range(bodies.shape[1]):
            checksum = _step(checksum, bodies[i, j])
        results[i] = ~checksum
