"""``scheme = "auto"``, the default: one choice for trainings, plans and federations."""

import numpy as np
import pytest

from sqsgd import RunConfig, make_scheme, plan, seeded_rng
from sqsgd.core.task import Task
from sqsgd.federation.node.server import FederationSettings
from sqsgd.training.algorithm import client_step

DIM = 119850
"""LeNet-5."""


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.1", "shards:1"])
@pytest.mark.parametrize(
    ("clients", "participation", "rounds", "average"),
    [
        (10, "all", 600, 0.9),
        (10, "all", 200, 0.9),
        (10, "all", 100, 0.0),  # too few rounds: an average would be late
        (100, "10", 600, 0.0),  # a client's last report is about a model of ten rounds ago
        (1000, "10", 600, 0.0),
        (100, "50", 600, 0.0),
        (600, "once", 600, 0.0),
    ],
)
def test_an_average_is_kept_only_while_it_is_new(clients, participation, rounds, average, partition):
    """The choice depends on what is known beforehand, so it is the same however the clients' data differ."""
    config = RunConfig(
        epsilon=400.0, clients=clients, participation=participation, rounds=rounds, partition=partition
    )
    often = {"visits": config.average_reports, "apart": config.apart, "once": config.once}
    expected = ("sqsgd" if average else "sqsgd-stateless", average)
    scheme = config.make_scheme(DIM, **often)
    assert (scheme.name, scheme.average) == expected
    assert config.chosen(scheme).make_scheme(DIM).average == average
    asked = FederationSettings(epsilon=400.0, sends="gradient")
    made = asked.make_scheme(DIM, **often)
    assert (made.identity, made.average) == (scheme.identity, average)
    assert asked.for_rounds(made, clients=10, rounds=rounds).options.get("average", 0.0) == average
    if participation == "all":
        planned = plan(dim=DIM, epsilon=400.0, bytes=256, clients=clients, rounds=rounds)
        assert planned.recommendation.scheme == expected[0]
        assert (f"average={average:g}" in planned.recommendation.options) == bool(average)


def test_a_name_is_taken_as_it_is():
    config = RunConfig(epsilon=400.0, scheme="sqsgd", clients=100, participation="10", rounds=20)
    scheme = config.make_scheme(DIM, visits=config.average_reports)
    assert (scheme.name, scheme.average, scheme.sends_block) == ("sqsgd", 0.0, True)
    with pytest.raises(ValueError, match="keeps a residual"):
        config.make_scheme(DIM, once=True)
    with pytest.raises(ValueError, match="clients of sqsgd-stateless keep nothing"):
        make_scheme("sqsgd-stateless", dim=DIM, epsilon=400.0, bytes=256, average=0.9)


def test_a_report_is_about_the_average():
    """The message of an average is that of a stateless client whose gradient is the average."""
    scheme = make_scheme("sqsgd", dim=300, epsilon=20.0, bytes=32, average=0.75)
    numbers, kept, expected = np.random.default_rng(0), None, np.zeros(300, np.float32)
    assert scheme.keeps_state
    assert not scheme.sends_block
    for round in range(5):
        gradient = numbers.standard_normal(300).astype(np.float32)
        task = Task(round=round, client=1, seed=2, dim=300, bound=1.0)
        message, kept = client_step(scheme, task, gradient, kept, seeded_rng(round))
        expected = np.float32(0.75) * expected + np.float32(0.25) * gradient
        assert np.array_equal(kept, expected)
        assert message == scheme.encode(expected, task, seeded_rng(round))
