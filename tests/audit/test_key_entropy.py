"""How many bits of the operating system's answers a generator depends on."""

import os
import random
import time

import mutants
import pytest

from sqsgd import secure_rng, seeded_rng
from sqsgd.audit._key_entropy import ENOUGH, Key, key_of


def test_secure_rng_reads_its_whole_key_from_the_operating_system():
    assert key_of(secure_rng) == Key(read=32, repeats=True, bits=256)


@pytest.mark.parametrize(
    ("key", "read", "bits"),
    [
        ("a constant", 0, 0),
        ("4 random bytes", 4, 32),
        ("4 of 32 random bytes", 32, 32),
        ("32 random bytes folded to 4", 32, 32),
        ("16 random bytes, hashed", 16, ENOUGH),
        ("getrandom", 32, 256),
    ],
)
def test_the_bits_that_matter_are_counted(key, read, bits):
    found = key_of(mutants.keyed({**mutants.KEYS, **mutants.RIGHT_KEYS}[key]))
    assert (found.read, found.bits, found.repeats) == (read, bits, True)
    assert found.enough == (bits >= ENOUGH)


def test_the_time_of_day_is_no_key():
    found = key_of(lambda: seeded_rng(time.time_ns()))
    assert (found.read, found.enough) == (0, False)


def test_other_names_of_the_calls_are_watched_and_put_back():
    """random.SystemRandom has a name of its own for os.urandom."""
    real = os.urandom
    found = key_of(lambda: seeded_rng(random.SystemRandom().getrandbits(256)))
    assert (found.read, found.bits) == (32, 256)
    assert os.urandom is real
    assert random._urandom is real
    with pytest.raises(ZeroDivisionError):
        key_of(lambda: 1 // 0)
    assert os.urandom is real
