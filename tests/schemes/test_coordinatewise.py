"""Coordinate-wise schemes: plans and errors, and the two readings of LDP-FL."""

import numpy as np
import pytest

from sqsgd import make_scheme
from sqsgd.core.codec import Column
from sqsgd.mechanisms.channels import OrdinalChannel, PiecewiseGrid
from sqsgd.mechanisms.scalardp import equal_share
from sqsgd.schemes.coordinatewise import best_plan, energy

CHANNELS = {"piecewise": PiecewiseGrid, "ldp-fed": OrdinalChannel}


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize(("epsilon", "bits"), [(0.5, 9), (6.0, 20), (30.0, 40), (30.0, 200), (90.0, 70)])
def test_the_plan_is_the_best_of_all(name, epsilon, bits):
    """Every number of coordinates and levels that fits; within the 0.1 % that counts as equal."""

    def energy_of(alphabet, share):
        return energy(CHANNELS[name](alphabet, share), 3.0)

    alphabets = (2, 3, 4, 5, 7, 8, 16, 32, 64)
    found = best_plan(epsilon, bits, 64, alphabets, energy_of)
    every = [(count, a) for a in alphabets for count in range(1, 65) if Column(count, a).bits <= bits]
    errors = {plan: energy_of(plan[1], equal_share(epsilon, plan[0])) / plan[0] for plan in every}
    assert errors[found] <= 1.0011 * min(errors.values())


def test_all_of_the_budget_goes_to_the_coordinates_in_equal_parts():
    """α is twice the paper's: a level costs ε / (k L), and the two ends cost a whole share."""
    scheme = make_scheme("ldp-fed", dim=300, epsilon=24.0, bytes=64, coordinates=8, levels=5)
    channel = scheme.mechanism.channel
    assert (scheme.mechanism.dim, channel.alphabet, channel.epsilon) == (8, 5, 3.0)
    chances = [channel.log_probability(np.array([0]), np.array([place]))[0] for place in (0.0, 0.25, 1.0)]
    assert chances[0] - chances[2] == pytest.approx(3.0, abs=1e-9)
    kernel = channel.log_kernel
    assert kernel[2, 2] - kernel[2, 3] == pytest.approx(3.0 / 4, abs=1e-9)
