"""Who fills which slot: everybody at most once, all orders equally likely, and nobody told."""

import itertools
import os
import tracemalloc

import numpy as np
import pytest
from reference import g_test

from sqsgd.federated import order as order_module
from sqsgd.federated.order import Order, secret_order, seeded_order


@pytest.mark.parametrize(
    ("users", "per_round"), [(1, 1), (2, 1), (10, 3), (1000, 7), (4097, 1024), (70_000, 1000)]
)
def test_every_user_has_one_slot(users, per_round):
    order, rounds = secret_order(users, per_round), users // per_round
    asked = np.concatenate([order.cohort(round) for round in reversed(range(rounds))])
    assert asked.size == rounds * per_round
    assert np.unique(asked).size == asked.size
    assert asked.min() >= 0
    assert asked.max() < users
    for wrong in (rounds, -1):
        with pytest.raises(ValueError, match="are too few"):
            order.cohort(wrong)


def counted_orders(draws):
    """How often each order of four users came up, over as many keys."""
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(draws):
        order = secret_order(4, 2)
        counts[*order.cohort(0).tolist(), *order.cohort(1).tolist()] += 1
    return list(counts.values())


def test_all_orders_are_equally_likely(monkeypatch):
    monkeypatch.setattr(order_module, "_BUCKETS", 64)  # fewer, for speed
    monkeypatch.setattr(order_module, "_SHIFT", 58)
    assert g_test(counted_orders(4000), [4000 / 24] * 24) > 1e-6
    pieces = Order._pieces

    def few_bits(self):
        for start, words in pieces(self):
            yield start, words & np.uint64(3 << 62)  # ties, which the user's number then decides

    monkeypatch.setattr(Order, "_pieces", few_bits)
    assert g_test(counted_orders(4000), [4000 / 24] * 24) < 1e-6


def test_the_order_is_that_of_the_words(monkeypatch):
    """By sorting all words at once, with the second word where the first ones are equal."""
    words = np.random.default_rng(1).integers(0, 50, (2, 5000), np.uint64) << np.uint64(58)

    def pieces(_):
        yield 0, words[:, :3000]
        yield 3000, words[:, 3000:]

    monkeypatch.setattr(Order, "_pieces", pieces)
    order = seeded_order(5000, 500, seed=1)
    expected = np.lexsort((words[1], words[0]))
    found = np.concatenate([order.cohort(round) for round in range(10)])
    assert np.array_equal(words[:, found], words[:, expected])


def test_a_secret_order_comes_from_the_operating_system(monkeypatch):
    one, other = secret_order(100, 10), secret_order(100, 10)
    assert not one.seeded
    assert one.key != other.key
    assert one.cohort(0).tolist() != other.cohort(0).tolist()
    assert one.key.hex() not in repr(one)
    assert repr(one.key) not in repr(one)
    monkeypatch.setattr(os, "urandom", lambda count: bytes(range(count)))
    assert secret_order(100, 10).key == bytes(range(32))


def test_a_seeded_order_repeats_itself_and_says_what_it_is():
    one, same, other = (seeded_order(1000, 10, seed) for seed in (1, 1, 2))
    assert one.seeded
    assert one.cohort(3).tolist() == same.cohort(3).tolist() != other.cohort(3).tolist()


def test_memory_does_not_grow_with_the_users():
    def peak(users):
        order = secret_order(users, 500)
        tracemalloc.start()
        order.cohort(1)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(1_000_000) < 1.2 * peak(100_000)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"users": 0}, "users"), ({"per_round": 11}, "per_round"), ({"key": b"short"}, "key")],
)
def test_wrong_orders_are_named(changes, name):
    with pytest.raises(ValueError, match=name):
        Order(**{"users": 10, "per_round": 2, "key": bytes(32), "seeded": True, **changes})
