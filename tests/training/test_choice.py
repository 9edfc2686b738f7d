"""``scheme = "auto"``, the default: one choice for trainings, plans and federations."""

import pytest

from sqsgd import RunConfig, plan
from sqsgd.federation.node.server import FederationSettings

DIM = 119850
"""LeNet-5, of which ``sqsgd`` reports a block of 4,096 weights at epsilon 400 in 256 bytes."""


@pytest.mark.parametrize(
    ("clients", "participation", "rounds", "expected"),
    [
        (10, "all", 600, "sqsgd"),
        (10, "all", 290, "sqsgd-stateless"),  # 9.9 reports about each weight
        (10, "all", 300, "sqsgd"),
        (100, "10", 600, "sqsgd-stateless"),  # 60 visits per client: two reports about each weight
        (1000, "10", 600, "sqsgd-stateless"),
        (100, "10", 3000, "sqsgd"),
        (600, "once", 600, "sqsgd-stateless"),
    ],
)
def test_a_residual_is_kept_only_where_it_is_heard(clients, participation, rounds, expected):
    config = RunConfig(epsilon=400.0, clients=clients, participation=participation, rounds=rounds)
    assert config.make_scheme(DIM, visits=config.average_reports, once=config.once).name == expected
    planned = plan(
        dim=DIM, epsilon=400.0, bytes=256, clients=config.asked, rounds=round(config.average_reports)
    )
    assert planned.recommendation.scheme == expected
    asked = FederationSettings(epsilon=400.0, sends="gradient")
    assert asked.make_scheme(DIM, visits=config.average_reports, once=config.once).name == expected


def test_a_name_is_taken_as_it_is():
    config = RunConfig(epsilon=400.0, scheme="sqsgd", clients=100, participation="10", rounds=20)
    assert config.make_scheme(DIM, visits=config.average_reports).name == "sqsgd"
    with pytest.raises(ValueError, match="keeps a residual"):
        config.make_scheme(DIM, once=True)
