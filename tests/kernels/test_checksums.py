"""Checksums of many messages are zlib's."""

import zlib

import numpy as np
import pytest
from sqsgd.kernels.coding import checksums


@pytest.mark.parametrize(("middle", "length"), [(0, 0), (32, 2), (5, 300)])
def test_checksums_are_zlibs(middle, length):
    draw = np.random.default_rng(length)
    numbers = np.array([0, 1, 2**64 - 1, *draw.integers(0, 2**64, 20, np.uint64)], np.uint64)
    between = draw.integers(0, 256, middle, np.uint8)
    bodies = draw.integers(0, 256, (numbers.size, length), np.uint8)
    start, results = zlib.crc32(b"before"), np.empty(numbers.size, np.uint32)
    checksums(np.uint32(start), numbers, between, bodies, results)
    for number, body, result in zip(numbers, bodies, results, strict=True):
        message = int(number).to_bytes(8, "little") + between.tobytes() + body.tobytes()
        assert result == zlib.crc32(message, start)
