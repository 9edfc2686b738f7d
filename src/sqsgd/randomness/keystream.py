"""AES-256 in counter mode as a source of bytes: the keystream behind all randomness here."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Mode: TypeAlias = modes.CTR | modes.GCM

_ZEROS = np.zeros(1 << 18, np.uint8)
_NONCE = bytes(12)  # each key is used for one stream
COUNTER_MODES: tuple[Mode, ...] = (modes.CTR(_NONCE + b"\0\0\0\2"), modes.GCM(_NONCE))
"""Two ways to the same keystream: GCM encrypts from block 2 on."""
MOST_BYTES = 1 << 35
"""The limit for one key: GCM has at most 2^32 blocks."""
SHORT = 1 << 16
"""The largest size in bytes for which ``beginning`` is faster than a ``Keystream``."""


class Keystream:
    """The keystream of a key: the encryption of zeros."""

    def __init__(self, key: bytes, mode: Mode) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), mode).encryptor()

    def fill(self, target: Bytes) -> None:
        """Overwrite an array with the next bytes."""
        if target.size <= _ZEROS.size:
            self._encryptor.update_into(_ZEROS.data[: target.size], target.data)
            return
        for start in range(0, target.size, _ZEROS.size):
            part = target[start : start + _ZEROS.size]
            self._encryptor.update_into(_ZEROS.data[: part.size], part.data)


def beginning(key: bytes, size: int) -> bytearray:
    """The first ``size`` (at most SHORT) bytes of a keystream and a tag, in one call without cipher setup."""
    return bytearray(AESGCM(key).encrypt(_NONCE, _ZEROS.data[:size], None))


@lru_cache(maxsize=1)
def fastest_mode() -> Mode:
    """Plain counter mode from block 2 on, or GCM, which gives the same keystream: the faster one here.

    With wide AES instructions OpenSSL's GCM is twice as fast as its plain counter mode; without them it is
    slower. tests/randomness/test_keystream.py::test_both_modes_give_one_keystream.
    """
    target = np.empty(1 << 16, np.uint8)
    seconds: list[float] = []
    for mode in COUNTER_MODES:
        keystream, best = Keystream(bytes(32), mode), math.inf
        for _ in range(5):
            started = time.perf_counter()
            keystream.fill(target)
            best = min(best, time.perf_counter() - started)
        seconds.append(best)
    return COUNTER_MODES[seconds.index(min(seconds))]
