"""The bound follows the privatised magnitudes, and no client alone moves it."""

import pytest
from sqsgd.training.algorithm import next_bound

from sqsgd.federated.bounds import clip_rate


def test_the_bound_moves_both_ways_within_limits():
    assert next_bound(10.0, [10.0] * 10, floor=0.1) == 15.0  # all at the bound: it grows
    assert next_bound(10.0, [4.0] * 10, floor=0.1) == 6.0
    assert next_bound(10.0, [0.1] * 10, floor=0.1) == 5.0  # at most halved
    assert next_bound(0.11, [-3.0] * 10, floor=0.1) == 0.1
    assert next_bound(10.0, [4.0] * 9 + [1e9], floor=0.1) == 6.0  # one client moves nothing
    assert next_bound(10.0, [1e9] * 10, floor=0.1) == 20.0  # at most doubled


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 10, 100])
def test_one_client_cannot_raise_the_bound_alone(clients):
    honest = [4.0] * (clients - 1)
    assert next_bound(10.0, [*honest, 1e9], floor=0.1) == 6.0
    assert next_bound(10.0, [*honest, -1e9], floor=0.1) in (6.0, 5.0)


def test_the_clip_rate_counts_what_is_near_the_bound():
    assert clip_rate([0.5, 0.96, 1.0, 1.2], 1.0) == 0.75
    assert clip_rate([], 1.0) is None
