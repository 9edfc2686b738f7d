"""The IDX format of MNIST: two zero bytes, type, rank, big-endian sizes, then the elements."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_UNSIGNED_BYTE = 0x08


def parse_idx(data: bytes, rank: int, where: str) -> npt.NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes, as a read-only view; ``where`` names it in errors.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), 1, "labels")
    array([7, 9], dtype=uint8)
    """
    header = 4 + 4 * rank
    if len(data) < header or data[:2] != b"\0\0":
        raise ValueError(f"{where} is not an IDX file: it begins with {data[:4].hex() or 'nothing'}")
    if data[2] != _UNSIGNED_BYTE or data[3] != rank:
        raise ValueError(
            f"{where} has elements of type {data[2]:#04x} in {data[3]} dimensions; "
            f"expected unsigned bytes ({_UNSIGNED_BYTE:#04x}) in {rank}"
        )
    sizes = [int.from_bytes(data[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(rank)]
    # math.prod uses Python integers: NumPy's product could overflow on a damaged header.
    expected = header + math.prod(sizes)
    if len(data) != expected:
        raise ValueError(f"{where} has {len(data):,} bytes; its header {sizes} implies {expected:,}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(sizes)
