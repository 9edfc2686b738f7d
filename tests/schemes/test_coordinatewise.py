"""Plans and errors of the coordinate-wise schemes: optimal, measured, and computed independently."""

import time

import numpy as np
import pytest
from cases import unit_vector

from sqsgd import Task, make_scheme, seeded_rng
from sqsgd.codec import Column
from sqsgd.mechanisms.budget_split import equal_share
from sqsgd.mechanisms.ordinal import OrdinalChannel
from sqsgd.mechanisms.piecewise_grid import PiecewiseGrid
from sqsgd.schemes._coordinatewise import best_plan, energy

D400, D2000 = 1 << 17, 1 << 21


@pytest.mark.parametrize(
    ("name", "options", "dim", "epsilon", "bits", "expected"),
    [
        ("piecewise", {"rule": "paper"}, D400, 400.0, 2048, 3719),
        ("piecewise", {}, D400, 400.0, 2048, 2380),
        ("piecewise", {"rule": "paper", "reach": 119850**0.5}, 119850, 400.0, 2048, 3.1e7),
        ("piecewise", {"rule": "paper"}, D2000, 2000.0, 57344, 11903),
        ("piecewise", {}, D2000, 2000.0, 57344, 7619),
        ("piecewise", {"rule": "paper", "reach": 1722224**0.5}, 1722224, 2000.0, 57344, 1.3e9),
        ("ldp-fl", {}, D400, 400.0, 2048, 10123),
        ("ldp-fl", {"coordinates": 2048}, D400, 400.0, 2048, 60781),
        ("ldp-fl", {}, D2000, 2000.0, 57344, 32397),
        ("ldp-fl", {"coordinates": 57344}, D2000, 2000.0, 57344, 1.1e6),
        ("ldp-fed", {"coordinates": 512, "levels": 16}, D400, 400.0, 2048, 64692),
        ("ldp-fed", {"coordinates": 8192, "levels": 128}, D2000, 2000.0, 57344, 7.5e6),
    ],
)
def test_errors_agree_with_independent_computations(name, options, dim, epsilon, bits, expected):
    """To the given digits, and 0.1 % for the finite grid and the clamping that they omit."""
    scheme = make_scheme(name, dim=dim, epsilon=epsilon, bits=bits, **options)
    digits = 0.02 if expected > 1e6 else 0.001
    assert scheme.nmse == pytest.approx(expected, rel=digits)


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


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("piecewise", {}),
        ("piecewise", {"rule": "paper"}),
        ("piecewise", {"levels": 3}),
        ("ldp-fed", {}),
        ("ldp-fed", {"levels": 16}),
        ("ldp-fl", {}),
        ("ldp-fl", {"per_weight": True}),
    ],
)
def test_the_predicted_error(name, options, share):
    """Within 1 %: rotated vectors are close to Gaussian; clamping adds 0.6 % at most to the prediction."""
    dim, reports = 512, 2500
    scheme = make_scheme(name, dim=dim, epsilon=100.0, bytes=32, **options)
    rng, errors = seeded_rng(6), []
    for client in range(reports):
        t = Task(round=client, client=client, seed=5, dim=dim, bound=1.0)
        x = np.float32(share) * unit_vector(dim, seed=client % 50)
        estimate = scheme.decode(scheme.encode(x, t, rng), t)
        errors.append(np.sum((estimate - x) ** 2) / share**2)
    error = scheme.mechanism.relative_error(share)
    for stage in reversed(scheme.transforms):
        error = stage.error_before(error, dim)
    assert abs(np.mean(errors) - error) < 0.01 * error + 3 * np.std(errors) / reports**0.5


@pytest.mark.parametrize("name", ["piecewise", "ldp-fed", "ldp-fl", "fedsel"])
def test_schemes_for_huge_vectors_are_made_quickly(name):
    started = time.perf_counter()
    scheme = make_scheme(name, dim=2**31, epsilon=400.0, bytes=256)
    assert scheme.bits < 4000
    assert time.perf_counter() - started < 5  # seconds; a tenth of that on a quiet machine


@pytest.mark.parametrize("name", ["piecewise", "ldp-fed", "ldp-fl", "fedsel"])
def test_without_a_limit_on_bits(name):
    free, bounded = (make_scheme(name, dim=1000, epsilon=50.0, bits=bits) for bits in (None, 15))
    assert free.nmse < bounded.nmse
    assert free.privacy.epsilon == pytest.approx(50.0, rel=1e-9)
