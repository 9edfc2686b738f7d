"""FedSGD: the vector arrives unchanged, to the last bit."""

import math

import numpy as np

from sqsgd import make_scheme, seeded_rng
from sqsgd.schemes.fedsgd import InClear
from sqsgd.task import Task


def test_every_bit_arrives():
    """Including subnormal numbers and the sign of zero, for every bound."""
    x = np.array([1e-45, -0.0, 0.1, -1e13, 3e-39, 1.0], np.float32)
    scheme, task = make_scheme("fedsgd", dim=6), Task(round=0, client=0, seed=0, dim=6, bound=1e-3)
    message = scheme.encode(x, task, seeded_rng(1))
    assert scheme.decode(message, task).astype(np.float32).tobytes() == x.tobytes()
    assert message == scheme.encode(x, task, seeded_rng(2))
    assert scheme.nmse == 0.0


def test_the_density_is_that_of_a_single_vector():
    mechanism, x = InClear(dim=3), np.array([1.0, 2.0, 3.0], np.float32)
    columns = mechanism.randomize(x, 1.0, seeded_rng(1))
    assert mechanism.log_density(columns, x, 1.0) == 0.0
    assert mechanism.log_density(columns, np.nextafter(x, np.float32(9)), 1.0) == -math.inf


def test_budgets_are_ignored():
    assert make_scheme("fedsgd", dim=100, epsilon=0.5, bytes=1) == make_scheme("fedsgd", dim=100)
    assert make_scheme("fedsgd", dim=100, epsilon=0.5, bytes=1).code_bits == 3200
