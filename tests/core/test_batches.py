"""Many clients at once: the same bytes and the same sums as one by one, for every scheme."""

from dataclasses import replace

import numpy as np
import pytest
from cases import CASES

from sqsgd import Aggregate, MalformedReport, Task, make_scheme, seeded_rng
from sqsgd.core import Scheme, batches
from sqsgd.core.batches import each_part
from sqsgd.mechanisms.scalardp import ScalarDP
from sqsgd.mechanisms.sparse_law import SparseLaw
from sqsgd.mechanisms.sparse_matches import SparseMatches
from sqsgd.randomness import secure_rngs, seeded_rngs
from sqsgd.task import Tasks
from sqsgd.transforms import Rotate

BASE = (7 << 128) | (3 << 64)


def tasks(scheme, count, **changes):
    usual = {"round": 3, "client": 0, "seed": 7, "dim": scheme.dim, "bound": 1.0}
    return Tasks(Task(**{**usual, **changes}), 2**40 + 5 * np.arange(count))


def vectors(scheme, count, seed=1):
    """Of all lengths from zero to twice the bound; some sparse, some with equal magnitudes."""
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal((count, scheme.dim))
    x[1::5] = np.sign(x[1::5])
    x[2::5] *= numbers.random((len(x[2::5]), scheme.dim)) < 0.05
    x *= numbers.uniform(0, 2, (count, 1)) / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9)
    x[0] = 0
    return x.astype(np.float32)


def one_by_one(scheme, x, asked):
    return [
        scheme.encode(row, task, seeded_rng(BASE + task.client)) for row, task in zip(x, asked, strict=True)
    ]


def schemes_for_kernels():
    """(name, scheme, clients): what ``randomize_many`` of some mechanism has kernels for, at many sizes."""
    for dim, epsilon, more in [
        (3, 1.0, {}), (40, 0.1, {"nearest": 40}), (64, 4.0, {}), (300, 8.0, {"nearest": 1}), (3920, 4.0, {}),
    ]:  # fmt: skip
        scheme = make_scheme("privunit-index", dim=dim, epsilon=epsilon, **more)
        yield f"privunit-index {dim} {epsilon}", scheme, 300
        yield f"privunit-index {dim} {epsilon}, wire 2", replace(scheme, wire=2), 40
    for size, near, count, threshold, norm in [
        (4, 2, 1, 1, None), (64, 8, 3, 2, None), (64, 60, 30, 20, 3.0), (4096, 40, 4, 4, 1.0),
        (64, 8, 3, 2, 20.0),
    ]:  # fmt: skip
        law = SparseLaw(size=size, near=near, count=count, threshold=threshold, epsilon=5.0)
        symbol = None if norm is None else ScalarDP(1.0, norm)
        yield f"sparse {size} {near} {count} {norm}", Scheme(
            name="sparse", dim=size - 1, transforms=(Rotate(rounds=2),),
            mechanism=SparseMatches(law=law, norm=symbol), wire=2,
        ), 200  # fmt: skip


KERNELS = [pytest.param(scheme, count, id=name) for name, scheme, count in schemes_for_kernels()]
EVERY = [pytest.param(case.make(dim=70, bytes=32), 7, id=str(case)) for case in CASES]


@pytest.mark.parametrize(("scheme", "count"), [*KERNELS, *EVERY])
def test_many_messages_are_the_single_ones(scheme, count, monkeypatch):
    """With the same streams, whatever the parts and the number of threads."""
    x, asked = vectors(scheme, count), tasks(scheme, count)
    expected = one_by_one(scheme, x, asked)
    monkeypatch.setattr(batches, "_FLOATS", 64 * scheme.dim)
    for workers in (1, 2):
        messages = scheme.encode_many(x, asked, seeded_rngs(BASE, asked.clients), workers=workers)
        assert messages.shape == (count, scheme.bits // 8)
        assert [row.tobytes() for row in messages] == expected


@pytest.mark.parametrize(("scheme", "count"), [*KERNELS, *EVERY])
@pytest.mark.parametrize("weighted", [False, True])
def test_many_reports_are_added_as_single_ones(scheme, count, weighted, monkeypatch):
    x, asked = vectors(scheme, count), tasks(scheme, count)
    weights = np.random.default_rng(5).uniform(0.1, 10, count) if weighted else None
    messages = scheme.encode_many(x, asked, seeded_rngs(BASE, asked.clients))
    single, many = Aggregate(scheme), Aggregate(scheme)
    for i, task in enumerate(asked):
        single.add(task, messages[i].tobytes(), 1.0 if weights is None else weights[i])
    monkeypatch.setattr(batches, "_FLOATS", 8 * scheme.dim)
    first = count // 2  # in two batches, and with two threads
    for rows in (slice(first), slice(first, count)):
        part = asked[rows]
        columns = many.add_many(part, messages[rows], None if weights is None else weights[rows], workers=2)
        opened = [
            scheme.open(message.tobytes(), task) for message, task in zip(messages[rows], part, strict=True)
        ]
        for place, column in enumerate(columns):
            assert np.array_equal(column, [each[place] for each in opened])
    assert (many.count, many._weight) == (single.count, single._weight)
    assert many.mean().tobytes() == single.mean().tobytes()


@pytest.mark.parametrize(
    "scheme",
    [
        make_scheme("privunit-index", dim=64, epsilon=2.0, nearest=3),
        make_scheme("sqsgd-stateless", dim=64, epsilon=20.0, bytes=8, code="sparse", norm_epsilon=2.0),
        make_scheme("sqsgd-stateless", dim=64, epsilon=3.0, bytes=8, code="sparse"),
    ],
    ids=["vertices", "sparse with a norm", "sparse"],
)
def test_words_that_decide_nothing_are_drawn_again_by_themselves(scheme, monkeypatch):
    """Words that 64 bits do not decide, or that are rejected: by a single draw from the same words on."""
    x, asked, alone = vectors(scheme, 40), tasks(scheme, 40), []
    mechanism = scheme.mechanism
    expected = one_by_one(scheme, x, asked)
    sampler = mechanism._is_near if hasattr(mechanism, "_is_near") else mechanism.law.sampler
    usual = type(mechanism).randomize

    def counted(self, *arguments):
        alone.append(arguments)
        return usual(self, *arguments)

    def undecided(words):
        values, sure = draw_many(words)
        return values, sure & (np.arange(words.size) % 3 != 0)

    draw_many = sampler.draw_many
    monkeypatch.setattr(type(mechanism), "randomize", counted)
    monkeypatch.setattr(sampler, "draw_many", undecided)
    messages = scheme.encode_many(x, asked, seeded_rngs(BASE, asked.clients))
    assert [row.tobytes() for row in messages] == expected
    assert len(alone) == 14


def test_a_batch_that_reuses_noise_is_refused():
    scheme = make_scheme("privunit-index", dim=64, epsilon=2.0)
    rngs, asked = secure_rngs(5), tasks(scheme, 5)
    scheme.encode_many(vectors(scheme, 5), asked, rngs)
    with pytest.raises(RuntimeError, match="noise would repeat"):
        scheme.encode_many(vectors(scheme, 5), asked, rngs)


@pytest.mark.parametrize("name", ["privunit-index", "fedsgd", "sqsgd"])
def test_a_row_that_is_not_finite_is_named(name):
    scheme = make_scheme(name, dim=64, epsilon=20.0, bytes=16)
    x, asked = vectors(scheme, 5), tasks(scheme, 5)
    x[3, 17] = np.nan
    with pytest.raises(ValueError, match=rf"client {asked[3].client}: x\[17\] = nan"):
        scheme.encode_many(x, asked, seeded_rngs(BASE, asked.clients))


def test_clipping_is_that_of_single_vectors():
    scheme = make_scheme("privunit-index", dim=64, epsilon=2.0)
    x, asked = vectors(scheme, 50), tasks(scheme, 50, clip=0.4)
    messages = scheme.encode_many(x, asked, seeded_rngs(BASE, asked.clients))
    assert [row.tobytes() for row in messages] == one_by_one(scheme, x, asked)


def test_shapes_that_do_not_fit_are_refused():
    scheme = make_scheme("privunit-index", dim=64, epsilon=2.0)
    x, asked = vectors(scheme, 5), tasks(scheme, 5)
    with pytest.raises(ValueError, match=r"must be floats of \(5, 64\)"):
        scheme.encode_many(x[:4], asked, secure_rngs(5))
    with pytest.raises(ValueError, match="4 generators for 5 clients"):
        scheme.encode_many(x, asked, secure_rngs(4))
    with pytest.raises(ValueError, match="workers = 0"):
        scheme.encode_many(x, asked, secure_rngs(5), workers=0)
    messages = scheme.encode_many(x, asked, secure_rngs(5))
    with pytest.raises(ValueError, match="5 tasks, 4 messages"):
        Aggregate(scheme).add_many(asked, messages[:4])
    with pytest.raises(ValueError, match="weight = 0"):
        Aggregate(scheme).add_many(asked, messages, np.array([1.0, 1.0, 0.0, 1.0, 1.0]))
    with pytest.raises(MalformedReport, match="must be uint8 of shape"):
        Aggregate(scheme).add_many(asked, messages[:, :-1])
    assert scheme.encode_many(x[:0], asked[:0], secure_rngs(0)).shape == (0, scheme.bits // 8)


@pytest.mark.parametrize("wire", [1, 2])
@pytest.mark.parametrize("place", [0, 1, 4, -1])
def test_a_malformed_report_is_named_and_none_is_added(wire, place):
    scheme = replace(make_scheme("privunit-index", dim=64, epsilon=2.0), wire=wire)
    asked = tasks(scheme, 9)
    messages = scheme.encode_many(vectors(scheme, 9), asked, secure_rngs(9))
    total = Aggregate(scheme)
    total.add_many(asked, messages)
    before = total.mean()
    damaged = messages.copy()
    damaged[6, place] ^= 1
    with pytest.raises(MalformedReport, match="report 6: "):
        total.add_many(asked, damaged)
    with pytest.raises(MalformedReport, match=r"report 0: .* another"):
        total.add_many(tasks(scheme, 9, bound=2.0), messages)
    assert total.count == 9
    assert np.array_equal(total.mean(), before)


def test_parts_come_in_order_and_an_error_ends_them():
    asked, seen = tasks(make_scheme("fedsgd", dim=2), 10), []

    def work(start, part):
        seen.append(start)
        if start == 6:
            raise KeyError(start)
        return start, len(part)

    batches_of_three = list(each_part(lambda start, part: (start, len(part)), asked, 2))
    assert batches_of_three == [(0, 10)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_FLOATS", 6)
        for workers in (1, 4):
            found = each_part(lambda start, part: (start, len(part)), asked, workers)
            assert list(found) == [(0, 3), (3, 3), (6, 3), (9, 1)]
            with pytest.raises(KeyError):
                list(each_part(work, asked, workers))
