"""The keystream is that of AES-256 in counter mode, in every mode."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sqsgd.randomness import Keystream
from sqsgd.randomness.keystream import COUNTER_MODES, SHORT, beginning, fastest_mode

KEY = bytes(range(32))


def plain(size):
    """From block 2 on, by the cipher itself."""
    mode = modes.CTR(bytes(12) + (2).to_bytes(4, "big"))
    return Cipher(algorithms.AES256(KEY), mode).encryptor().update(bytes(size))


@pytest.mark.parametrize("mode", COUNTER_MODES)
def test_both_modes_give_one_keystream(mode):
    """In pieces of any size, also longer than the array of zeros."""
    sizes, keystream, filled = (1, 15, 100_000, 1 << 18, (1 << 18) + 5, 3), Keystream(KEY, mode), []
    for size in sizes:
        target = np.empty(size, np.uint8)
        keystream.fill(target)
        filled.append(target.tobytes())
    assert b"".join(filled) == plain(sum(sizes))


@pytest.mark.parametrize("size", [1, 16, 1000, SHORT])
def test_the_beginning_in_one_call_is_the_same(size):
    assert beginning(KEY, size)[:size] == plain(size)


def test_the_faster_mode_is_one_of_the_two():
    assert fastest_mode() in COUNTER_MODES
