"""Packing against plain twins; one compiled version of each kernel."""

import numpy as np
import pytest
import reference
from random_words import words

from sqsgd import Aggregate, Task, make_scheme, seeded_rng
from sqsgd._internal.kernels import coding, rotation, sampling
from sqsgd.core.codec import Column
from sqsgd.core.random import secure_rng
from sqsgd.core.task import Tasks


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("size", [1, 7, 8, 9, 64, 1001])
def test_fold_is_the_plain_bit_stream(bits, size):
    codes = words(size, "u1") & np.uint8(2**bits - 1)
    packed = Column(size, 2**bits).pack(codes)
    assert packed == reference.pack_bits(codes, bits)
    assert np.array_equal(Column(size, 2**bits).unpack(packed), codes)


def test_one_version_each():
    """Kernels of one type of arguments each: numba's cache may mix up several (see ``compiled``)."""
    named = [item for module in (coding, rotation, sampling) for item in vars(module).items()]
    kernels = [value for name, value in named if hasattr(value, "signatures") and not name.startswith("_")]
    rng = seeded_rng(1)
    for levels in (2, 3, 4, 16, 128, 256):
        for x in every_kind_of_vector():
            scheme = make_scheme(
                "sqsgd-paper", dim=200, epsilon=100.0, bytes=512, levels=levels, rule="optimal"
            )
            tasks = [Task(round=0, client=client, seed=0, dim=200, bound=1.0) for client in range(2)]
            scheme.aggregate([(task, scheme.encode(x, task, rng)) for task in tasks])
            sparse = make_scheme("sqsgd", dim=200, epsilon=30.0, bytes=8, code="sparse", coordinates=128)
            sparse.aggregate([(task, sparse.encode(x, task, rng)) for task in tasks])
            q = scheme.mechanism.quantizer
            for codes in (np.zeros(256, int), np.zeros(512, np.uint8)[::2]):
                codes.setflags(write=False)
                q.estimate(q.privatize(codes, rng), 1.0)
    use_many_at_once()
    used = [kernel for kernel in kernels if kernel.signatures]
    assert len(used) > 15
    assert {kernel.__name__: len(kernel.signatures) for kernel in used if len(kernel.signatures) > 1} == {}


def use_many_at_once():
    """Batches of different schemes and sizes, from arrays of every kind."""
    sparse = {"epsilon": 20.0, "bytes": 8, "code": "sparse"}
    for dim, name, options in [
        (200, "privunit-index", {"epsilon": 4.0}), (20, "privunit-index", {"epsilon": 4.0}),
        (300, "sqsgd-stateless", sparse),
        (64, "sqsgd-stateless", {**sparse, "norm_epsilon": 2.0}),
    ]:  # fmt: skip
        scheme = make_scheme(name, dim=dim, **options)
        tasks = Tasks(Task(round=0, client=0, seed=0, dim=dim, bound=1.0), range(5))
        x = np.ones((5, dim), np.float32)
        frozen = x.copy()
        frozen.setflags(write=False)
        for rows in (x, frozen, np.asfortranarray(x), x.astype(float), np.repeat(x, 2, axis=1)[:, ::2]):
            for made, rng in ((scheme, secure_rng()), (scheme, seeded_rng(0))):
                messages = made.encode_many(rows, tasks, rng)
                messages.setflags(write=False)
                Aggregate(made).add_many(tasks, messages, np.ones(5))
                Aggregate(made).add_many(tasks, np.asfortranarray(messages))
                Aggregate(made).add_many(Tasks(tasks.task, range(1)), messages[:1])


def every_kind_of_vector():
    x = np.linspace(-1, 1, 400).astype(np.float32)
    frozen = x[:200].copy()
    frozen.setflags(write=False)
    unaligned = np.frombuffer(b"x" + x[:200].tobytes(), np.uint8)[1:].view(np.float32)
    return [x[:200], x[::2], frozen, unaligned, *(x[:200].astype(kind) for kind in (float, ">f4", "f2"))]
