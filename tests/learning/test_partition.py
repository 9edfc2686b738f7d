"""Partitions, cohorts and batches: complete, disjoint, uniform and reproducible."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqsgd.learning.partition import _mixed, batch_indices, cohort, partition

LABELS = np.repeat(np.arange(10), 60)


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    scheme=st.sampled_from(["iid", "dirichlet:0.001", "dirichlet:0.3", "dirichlet:1000", "shards:1"]),
    seed=st.integers(0, 2**40),
    data=st.data(),
)
def test_every_image_has_one_owner_and_every_client_an_image(labels, scheme, seed, data):
    clients = data.draw(st.integers(1, len(labels)))
    parts = partition(labels, clients, scheme, seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all(map(np.array_equal, parts, partition(labels, clients, scheme, seed)))


def test_the_stream_is_the_one_that_was_published():
    # A change here changes every recorded experiment. Integers only, so no machine or NumPy may differ.
    assert [part.tolist() for part in partition([0] * 6, 2, "iid", 1)] == [[5, 3, 0], [2, 1, 4]]
    assert cohort(clients=1000, size=5, round=2, seed=1).tolist() == [61, 342, 572, 617, 662]
    assert batch_indices(np.arange(50, 90), 5, round=2, client=3, seed=1).tolist() == [57, 66, 71, 73, 78]


@pytest.mark.parametrize(
    ("scheme", "least", "most", "classes"),
    [
        ("iid", 59, 60, (9.5, 10)),
        ("shards:2", 58, 60, (1, 2)),
        ("dirichlet:0.01", 1, 600, (1, 3)),
        ("dirichlet:1", 10, 300, (6, 9.6)),
        ("dirichlet:1000", 40, 80, (9, 10)),
    ],
)
def test_sizes_and_classes_are_those_of_the_scheme(scheme, least, most, classes):
    sizes = [len(part) for part in partition(LABELS[:-7], 10, scheme, seed=0)]
    assert least <= min(sizes) <= max(sizes) <= most
    held = [len(np.unique(LABELS[part])) for part in partition(LABELS, 10, scheme, seed=0)]
    assert classes[0] <= np.mean(held) <= classes[1]


def test_dirichlet_shares_have_the_mean_and_variance_of_dirichlet():
    beta, clients, images = 0.5, 4, 5000
    shares = np.array(
        [[len(part) / images for part in partition(np.zeros(images, int), clients, f"dirichlet:{beta}", seed)]
         for seed in range(300)]
    )  # fmt: skip
    mean, variance = 1 / clients, (1 / clients) * (1 - 1 / clients) / (clients * beta + 1)
    assert np.abs(shares.mean(axis=0) - mean).max() < 5 * np.sqrt(variance / 300)
    assert np.abs(shares.var(axis=0) / variance - 1).max() < 0.35


@pytest.mark.parametrize(
    ("clients", "scheme", "message"),
    [
        (601, "iid", "601 clients cannot share 600 examples"),
        (300, "shards:3", "N must be .* at most 2, because 300 clients share 600 images"),
        (5, "dirichlet", "'dirichlet:'.*BETA must be positive"),
        (5, "iid:3", "'iid:3' is unknown; write iid, dirichlet:BETA, shards:N, drawn or natural"),
    ],
)
def test_impossible_partitions_say_what_would_be_possible(clients, scheme, message):
    with pytest.raises(ValueError, match=message):
        partition(LABELS, clients, scheme, seed=0)


def test_every_pair_of_clients_is_equally_likely():
    draws, pairs = 3_000, {}
    for t in range(draws):
        pair = tuple(cohort(clients=6, size=2, round=t, seed=5).tolist())
        pairs[pair] = pairs.get(pair, 0) + 1
    assert len(pairs) == 15
    statistic = sum((count - draws / 15) ** 2 for count in pairs.values()) / (draws / 15)
    assert statistic < 36.1  # chi-square, 14 degrees of freedom: exceeded once in a thousand seeds


def test_a_batch_depends_on_seed_round_and_client_and_on_nothing_else():
    indices, key = np.arange(1000, 1100), {"round": 4, "client": 2, "seed": 1}
    batch = batch_indices(indices, 32, **key)
    assert len(set(batch.tolist()) & set(indices.tolist())) == len(batch) == 32
    for change in ({"round": 5}, {"client": 3}, {"seed": 2}):
        assert not np.array_equal(batch, batch_indices(indices, 32, **(key | change)))
    assert batch_indices(indices[:2], 32, **key).tolist() == [1000, 1001]


def test_cohorts_and_drawn_images_need_no_memory_for_the_clients_left_out():
    assert len(cohort(clients=10**12, size=100, round=0, seed=0)) == 100
    parts = partition([0, 1] * 50, clients=10**12, scheme="drawn", seed=3)
    drawn, _ = parts.together(np.arange(10**9, 10**9 + 5000))
    counts = np.bincount(drawn, minlength=100)  # 50 expected of each, deviation 7
    assert 15 < counts.min() <= counts.max() < 95
    with pytest.raises(IndexError):
        parts[10**12]
    # A position is the upper half of a product, in whole numbers of any size; a change here changes every
    # recorded experiment.
    words = _mixed(np.arange(500, dtype=np.uint64) ^ parts._key)
    assert parts.together(np.arange(500))[0].tolist() == [int(word) * 100 >> 64 for word in words]


@pytest.mark.parametrize("scheme", ["iid", "dirichlet:0.3", "shards:2", "drawn"])
def test_the_images_of_many_clients_are_those_of_each(scheme):
    parts = partition(LABELS, 40, scheme, seed=3)
    clients = np.array([7, 0, 39, 7])
    images, bounds = parts.together(clients)
    assert (bounds[0], bounds[-1]) == (0, len(images))
    for place, client in enumerate(clients.tolist()):
        assert images[bounds[place] : bounds[place + 1]].tolist() == parts[client].tolist()
