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
from sqsgd.federation.collect import intake
from sqsgd.federation.flower.cohort import NodeOrder
from sqsgd.training.order import secret_order

COUNT = 100


class Drawn:
    """An order in place of a generator's bytes."""

    def __init__(self, order):
        self.order = repr(list(order)).encode()

    def take(self, _count):
        return np.frombuffer(self.order, np.uint8)


class Slots:
    """Of a database only what is written, and that some slots are late and others wait."""

    def __init__(self):
        self.rows = []

    def write_many(self, _statement, rows):
        self.rows = rows

    def read(self, statement, *_):
        return [(slot,) for slot in range(COUNT)] if " < ?" in statement else [(COUNT,)]

    def transaction(self, **_):
        return pytest.MonkeyPatch.context()


def begun():
    intake.new_round(database := Slots(), 0, COUNT)
    return database.rows


def freed():
    intake.free_expired(database := Slots(), SimpleNamespace(round=0), 0.0)
    assert len(database.rows) == COUNT + 1  # those that were free before are drawn again
    return database.rows


def nodes(rounds):
    order = NodeOrder(COUNT // 2)
    return [order.slots(round, range(COUNT), rounds) for round in range(2)]


ORDERS = {
    "users of a run": lambda: secret_order(COUNT, COUNT).cohort(0),
    "slots of a round": begun,
    "slots of devices that are late": freed,
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
