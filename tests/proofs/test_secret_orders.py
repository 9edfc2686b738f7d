"""docs/proofs/shuffled-reports.md: no order can be guessed, which no test of uniformity would show.

The operating system's bytes are watched, and one bit after another is flipped: 128 bits or more must decide
an order, and nothing else.
"""

import os
import random
from types import SimpleNamespace

import numpy as np
import pytest

from sqsgd.audit.noise import ENOUGH, key_of
from sqsgd.federation.collect import device
from sqsgd.federation.flower.cohort import NodeOrder
from sqsgd.training.order import secret_order

COUNT = 100


class Drawn:
    """An order in place of a generator's bytes."""

    def __init__(self, order):
        self.order = repr(list(order)).encode()

    def take(self, _count):
        return np.frombuffer(self.order, np.uint8)


class Study:
    """Of a study only what a device draws from."""

    known = {"reports": 4, "rounds": 40, "visits": "drawn"}  # noqa: RUF012
    key, description = SimpleNamespace(new_blind=lambda: 1), b""

    @staticmethod
    def at(place):
        return place


def check_in():
    """The rounds of a device's reports, and the times of its visits."""
    return [(each["round"], each["due"]) for each in device._drawn(Study)["reports"]]


def nodes(rounds):
    order = NodeOrder(COUNT // 2)
    return [order.slots(round, range(COUNT), rounds) for round in range(2)]


ORDERS = {
    "users of a run": lambda: secret_order(COUNT, COUNT).cohort(0),
    "rounds of a device": check_in,
    "nodes of a run": lambda: nodes(2),
    "nodes of a round": lambda: nodes(0),
}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_cannot_be_guessed(name):
    found = key_of(lambda: Drawn(ORDERS[name]()))
    assert found.repeats
    assert found.bits >= ENOUGH


def test_an_order_from_two_bytes_would_be_found():
    """Each of the 65,536 orders is equally likely here, and every slot is equally likely for each node."""
    found = key_of(lambda: Drawn(random.Random(os.urandom(2)).sample(range(COUNT), COUNT)))
    assert (found.read, found.bits) == (2, 16)
