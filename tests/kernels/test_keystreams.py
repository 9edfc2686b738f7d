"""Many keystreams at once are those of hashlib and of the cryptography package."""

import hashlib

import numba
import numpy as np
import pytest

from sqsgd.kernels import keystreams
from sqsgd.randomness import Keystream
from sqsgd.randomness.keystream import COUNTER_MODES

NUMBERS = np.array([0, 1, 2**32, 2**63 + 12345, 2**64 - 1], np.uint64)


def expected(key: bytes, first: int, words: int) -> bytes:
    """The words of a keystream by OpenSSL."""
    target = np.empty(16 * first + 8 * words, np.uint8)
    Keystream(key, COUNTER_MODES[0]).fill(target)
    return target[16 * first :].tobytes()


@pytest.mark.parametrize(("length", "place"), [(8, 0), (31, 2), (40, 0), (128, 15)])
def test_keys_are_digests_of_the_message_with_each_number(length, place):
    message = np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes()
    template = np.zeros(16, np.uint64)
    template.view(np.uint8)[:length] = np.frombuffer(message, np.uint8)
    keys = np.empty((NUMBERS.size, 4), np.uint64)
    state = keystreams.starting_state(b"sqsgd public")
    keystreams.derived_keys(state, template, length, place, NUMBERS, keys)
    for number, key in zip(NUMBERS, keys, strict=True):
        whole = message[: 8 * place] + int(number).to_bytes(8, "little") + message[8 * place + 8 :]
        digest = hashlib.blake2b(whole, digest_size=32, person=b"sqsgd public").digest()
        assert key.tobytes() == digest


@pytest.mark.parametrize("first", [0, 1, 31])
@pytest.mark.parametrize("words", [1, 2, 15, 16, 17, 64, 129])
def test_rows_are_keystreams(first, words):
    keys = np.random.default_rng(words).integers(0, 2**64, (4, 4), np.uint64)
    rows = np.empty((4, words), np.uint64)
    keystreams.streams(keys, first, rows)
    for key, row in zip(keys, rows, strict=True):
        assert row.tobytes() == expected(key.tobytes(), first, words)


def test_tables_give_the_same_blocks_as_the_processors_instructions():
    """Both ways are compared with OpenSSL: machines without AES instructions take the second."""
    key = np.random.default_rng(3).integers(0, 2**64, 4, np.uint64)
    if keystreams.HARDWARE:
        fast = numba.njit(lambda word: keystreams._substituted_fast(word))
        words = np.random.default_rng(1).integers(0, 2**32, 300, np.uint32)
        assert [fast(word) for word in words] == [keystreams._substituted_slow(word) for word in words]

    @numba.njit
    def slowly(key, first, out):
        schedule = np.empty(60, np.uint32)
        keystreams._expand(key, schedule)
        keystreams._encrypt_slow(schedule, np.uint32(2 + first), out, 0)

    for first in (0, 254, 65_534):
        blocks = np.empty(2 * keystreams.TOGETHER, np.uint64)
        slowly(key, first, blocks)
        assert blocks.tobytes() == expected(key.tobytes(), first, blocks.size)
