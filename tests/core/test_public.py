"""Public streams never change: clients and servers of different versions must agree."""

import numpy as np
import pytest
import reference
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from sqsgd.core.random import EVERYONE, PublicStream, many_words


def stream(**changes):
    return PublicStream(**{"seed": 1234, "round": 7, "client": 3, "purpose": "coordinates", **changes})


# Golden vectors: they must never change, or clients and servers of different versions disagree.
GOLDEN_WORDS = [100149900, 1687615314, 2355596095, 706352620]
GOLDEN_SIGNS = [4099071405, 2930373123]
GOLDEN_SUBSET = [2190, 2794, 19710, 47092, 65732]
GOLDEN_LARGE_SUBSET = [1, 2, 4, 6, 7, 8, 9]


def test_golden_public_words():
    assert stream().words(4).tolist() == GOLDEN_WORDS
    assert stream(client=EVERYONE, purpose="signs 0").words(2).tolist() == GOLDEN_SIGNS


def test_golden_subsets():
    assert stream().subset(119850, 5).tolist() == GOLDEN_SUBSET
    assert stream().subset(10, 7).tolist() == GOLDEN_LARGE_SUBSET


def test_the_key_is_the_documented_hash():
    """The construction of docs/wire-format.md, written out independently."""
    import hashlib

    message = b"".join(n.to_bytes(8, "little") for n in (1234, 7)) + b"coordinates"
    key = hashlib.blake2b(message, digest_size=32, person=b"sqsgd public").digest()
    first = (3).to_bytes(8, "big") + bytes(8)
    keystream = Cipher(algorithms.AES(key), modes.CTR(first)).encryptor().update(bytes(400_000))
    expected = [int.from_bytes(keystream[i : i + 4], "little") for i in range(0, 40, 4)]
    assert stream().words(10).tolist() == expected
    assert stream().words(100_000).tobytes() == keystream
    pieces = stream()
    taken = [pieces.words(count).tobytes() for count in (3, 1, 5000, 20_000, 10)]
    assert b"".join(taken) == keystream[: 4 * 25_014]


@pytest.mark.parametrize("change", [{"seed": 1235}, {"round": 8}, {"client": 4}, {"purpose": "signs 0"}])
def test_any_change_gives_another_stream(change):
    assert stream().words(4).tolist() != stream(**change).words(4).tolist()


@pytest.mark.parametrize(
    ("dim", "size"), [(1, 1), (5, 5), (100, 1), (100, 49), (100, 50), (100, 51), (100, 99), (3000, 700)]
)
def test_subset_is_the_written_map(dim, size):
    words = iter(stream().words(20_000))
    chosen = stream().subset(dim, size)
    assert chosen.tolist() == reference.subset(words, dim, size)


def test_subsets_are_uniform():
    counts = np.zeros(20)
    for client in range(20_000):
        counts[stream(client=client).subset(6, 3) @ np.array([0, 1, 3]) % 20] += (
            1  # every subset has its cell
        )
    from itertools import combinations

    cells = np.zeros(20)
    for subset in combinations(range(6), 3):
        cells[np.array(subset) @ np.array([0, 1, 3]) % 20] += 1
    seen = cells > 0
    assert stats.chisquare(counts[seen], 1000 * cells[seen]).pvalue > 1e-6


@pytest.mark.parametrize("count", [1, 5, 64])
def test_many_streams_are_the_single_ones(count):
    clients = np.array([0, 3, 2**63 + 1, EVERYONE - 1], np.uint64)
    rows = many_words(seed=1234, round=7, clients=clients, purpose="coordinates", count=count)
    for client, row in zip(clients.tolist(), rows, strict=True):
        assert row.tobytes() == stream(client=client).words(2 * count).tobytes()
