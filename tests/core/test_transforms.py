"""Tasks, public streams, and transforms: linear, inverted by the server, the same on both sides."""

import math
from dataclasses import replace

import numpy as np
import pytest
import reference
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from refusing import refuse

from sqsgd import Task
from sqsgd.core.random import EVERYONE, PublicStream
from sqsgd.core.task import Tasks
from sqsgd.core.transforms import Rotate, Subsample

RIGHT = {"round": 3, "client": 1, "seed": 5, "dim": 8, "bound": 1.0, "clip": 2.0}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("round", -1), ("round", 2**32), ("client", -1), ("client", 2**64 - 1), ("seed", 2**64), ("dim", 0),
     ("clip", 0.0), ("clip", math.nan)],
)  # fmt: skip
def test_tasks(name, wrong):
    refuse(f"{name} = ", lambda: Task(**{**RIGHT, name: wrong}))
    if name == "client":
        refuse("clients", lambda: Tasks(Task(**RIGHT), np.array([wrong])))


def test_shared_streams_and_streams_per_client():
    """Shared streams are the same for all clients of a round; no stream repeats in another round."""
    one, other = Task(**RIGHT), Task(**{**RIGHT, "client": 2})

    def drawn(task, purpose="signs", *, shared):
        return task.stream(purpose, shared=shared).words(4).tolist()

    assert drawn(one, shared=True) == drawn(other, shared=True)
    assert drawn(one, shared=False) == drawn(one, shared=False)
    streams = [
        drawn(one, shared=True),
        drawn(one, shared=False),
        drawn(other, shared=False),
        drawn(one, "coordinates", shared=True),
        drawn(Task(**{**RIGHT, "round": 4}), shared=True),
        drawn(Task(**{**RIGHT, "seed": 6}), shared=True),
    ]
    assert len({tuple(stream) for stream in streams}) == len(streams)


def test_many_tasks_are_single_ones_but_for_the_client():
    first = Task(round=2, client=9, seed=3, dim=8, bound=1.5, clip=2.0)
    tasks = Tasks(first, np.array([0, 7, 2**64 - 2], np.uint64))
    assert [task.client for task in tasks] == [0, 7, 2**64 - 2]
    assert all(replace(task, client=9) == first for task in tasks)
    assert tasks.bindings == [task.binding for task in tasks]
    for i, task in enumerate(tasks):
        stream = task.stream("signs 0", shared=False)
        assert tasks.words("signs 0", 5)[i].tobytes() == stream.words(10).tobytes()
    assert [[task.client for task in part] for part in tasks.parts(2)] == [[0, 7], [2**64 - 2]]
    assert tasks.parts(2)[0] is tasks.parts(2)[0]


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


@pytest.mark.parametrize(
    ("dim", "size"), [(1, 1), (5, 5), (100, 1), (100, 49), (100, 50), (100, 51), (100, 99), (3000, 700)]
)
def test_subset_is_the_written_map(dim, size):
    words = iter(stream().words(20_000))
    chosen = stream().subset(dim, size)
    assert chosen.tolist() == reference.subset(words, dim, size)


NUMBERS = np.random.default_rng(5)


def task(dim, **changes):
    return Task(**{"round": 2, "client": 1, "seed": 99, "dim": dim, "bound": 1.0, **changes})


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("dim", [1, 2, 3, 64, 100, 1000, 5000])
def test_rotation_is_orthonormal_and_inverted(rounds, dim):
    rotate, t = Rotate(rounds=rounds), task(dim)
    x, z = NUMBERS.standard_normal((2, dim)).astype(np.float32)
    y = rotate.forward(x, t)
    assert y.size == rotate.out_dim(dim) >= dim
    assert np.isclose(np.linalg.norm(y), np.linalg.norm(x), rtol=1e-5)
    assert np.isclose(y @ rotate.forward(z, t), x @ z, atol=1e-3)
    assert np.allclose(rotate.inverse(y.astype(float), t, dim), x, atol=1e-5)


def test_subsample_keeps_and_scatters():
    x, t = NUMBERS.standard_normal(1000).astype(np.float32), task(1000)
    stage = Subsample(size=100)
    chosen = stage.coordinates(t, 1000)
    assert (np.diff(chosen) > 0).all()
    y = stage.forward(x, t)
    assert np.array_equal(y, x[chosen])
    back = stage.inverse(y.astype(float), t, 1000)
    assert np.array_equal(back[chosen], y)
    assert np.count_nonzero(back) == 100
    assert np.array_equal(Subsample(size=1000).forward(x, t), x)


@pytest.mark.parametrize("transform", [Rotate(), Rotate(rounds=2), Subsample(size=3)], ids=str)
def test_estimates_of_another_length_are_refused(transform):
    """Their kernels would read beyond the end."""
    for size in (transform.out_dim(6) - 1, transform.out_dim(6) + 1):
        with pytest.raises(ValueError, match="estimate of shape"):
            transform.inverse(np.ones(size), Task(round=0, client=0, seed=1, dim=6, bound=1.0), 6)
